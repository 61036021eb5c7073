"""How smoothly the list of jobs scrolls with 10,000 rows, in a real Chromium.

    python -m benchmarks.dashboard_frames [--jobs 10000] [--seconds 8] [--headed]

Scrolls the list a step each frame, and takes the intervals between frames (`requestAnimationFrame`), long tasks (50 ms
and more), and the CPU that the page's main thread took for a frame, which tells something on a busy machine, too. 60
frames a second leave 16.7 ms. A fling is four rows a frame: while rows are loaded, with all of them there, and while
jobs are pushed. Who drags the bar sees no row of a frame in the next. Ends with 1 if a frame takes more CPU than that.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import click
from playwright.sync_api import CDPSession, Page, sync_playwright

from benchmarks.dashboard import Browser, fill, server

FLING: Final = 4 * 44
"""Pixels a frame: about 10,000 a second."""
DRAG: Final = 30 * 44
FRAME_MS: Final = 1000 / 60
LATE_MS: Final = 1.5 * FRAME_MS
"""A frame was left out if the next came later than this."""
QUEUES: Final = 20
PUSH_SECONDS: Final = 0.5
SCROLL: Final = """
([seconds, pixels]) => new Promise(done => {
  const box = document.querySelector(".scroller"), intervals = [];
  let tasks = 0, longest = 0;
  const watch = new PerformanceObserver(list => {
    for (const one of list.getEntries()) (tasks += 1, longest = Math.max(longest, one.duration));
  });
  watch.observe({ type: "longtask" });
  let begin, before;
  const step = now => {
    begin ??= now;
    if (before !== undefined) intervals.push(now - before);
    before = now;
    const passed = (now - begin) / 1000, rest = box.scrollHeight - box.clientHeight;
    box.scrollTop = (pixels * intervals.length) % (rest || 1);
    if (passed < seconds) return requestAnimationFrame(step);
    watch.disconnect();
    done({ intervals, tasks, longest });
  };
  requestAnimationFrame(step);
})
"""
EMPTY: Final = """
seconds => new Promise(done => {
  const intervals = [];
  let begin, before;
  const step = now => {
    begin ??= now;
    if (before !== undefined) intervals.push(now - before);
    before = now;
    if (now - begin < 1000 * seconds) requestAnimationFrame(step);
    else done({ intervals, tasks: 0, longest: 0 });
  };
  requestAnimationFrame(step);
})
"""
WORK: Final = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")


def metrics(session: CDPSession) -> dict[str, float]:
    """What the page's main thread did so far, in seconds of CPU."""
    found = session.send("Performance.getMetrics")["metrics"]
    return {one["name"]: one["value"] for one in found if one["name"] in WORK}


def measure(page: Page, session: CDPSession, name: str, script: str, argument: object) -> float:
    """Run a script that counts frames; prints a line, and returns the milliseconds of CPU for a frame."""
    before = metrics(session)
    found: dict[str, Any] = page.evaluate(script, argument)
    work = {key: 1000 * (value - before[key]) for key, value in metrics(session).items()}
    intervals = sorted(found["intervals"])
    count = len(intervals)
    late = sum(one > LATE_MS for one in intervals)
    each = work["TaskDuration"] / count
    rate = 1000 * count / sum(intervals)
    print(
        f"{name:32} {rate:5.1f} frames a second, median {statistics.median(intervals):.1f} ms,"
        f" 99 % within {intervals[int(count * 0.99) - 1]:.1f} ms, {100 * late / count:.1f} % late;"
        f" long tasks {found['tasks']} (longest {found['longest']:.0f} ms);"
        f" CPU for a frame {each:.2f} ms (script {work['ScriptDuration'] / count:.2f},"
        f" layout and style {(work['LayoutDuration'] + work['RecalcStyleDuration']) / count:.2f})",
        flush=True,
    )
    return each


def run(url: str, jobs: int, seconds: float, *, is_headed: bool) -> bool:
    """Measure; says whether each frame had time enough."""
    browser_path, ended = shutil.which("chromium"), threading.Event()
    if browser_path is None:
        raise click.ClickException("Chromium is not installed: apt install chromium")
    asked = Browser(url)

    def push() -> None:
        while not ended.wait(PUSH_SECONDS):
            asked.ask("ojs/v1/jobs", {"type": "bench.new", "args": [1], "options": {"queue": "queue-0001"}})

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox"], headless=not is_headed
        )
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        measure(page, session, "an empty page", EMPTY, seconds / 2)
        page.goto(f"{url}/ui/#/jobs")
        page.locator(".rows .row").first.wait_for()
        worst = measure(page, session, "a fling while rows are loaded", SCROLL, [seconds, FLING])
        rows = "document.querySelector('.rows').clientHeight / 44"
        while page.evaluate(rows) < jobs:
            page.evaluate("document.querySelector('.scroller').scrollTop = 1e9")
            page.wait_for_timeout(50)
        worst = max(worst, measure(page, session, f"a fling, {jobs:,} rows", SCROLL, [seconds, FLING]))
        pushes = threading.Thread(target=push)
        pushes.start()
        try:
            worst = max(worst, measure(page, session, "the same, two pushes a second", SCROLL, [seconds, FLING]))
            worst = max(worst, measure(page, session, "other rows in each frame", SCROLL, [seconds, DRAG]))
            print(f"{page.evaluate(rows):,.0f} rows, {page.locator('.rows .row').count()} elements for them")
        finally:
            ended.set()
            pushes.join()
        browser.close()
    return worst <= FRAME_MS


@click.command()
@click.option("--jobs", default=10_000, show_default=True)
@click.option("--seconds", default=8.0, show_default=True, help="Of each scroll.")
@click.option("--headed", is_flag=True, help="Show the browser.")
def main(jobs: int, seconds: float, *, headed: bool) -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as name:
        state = Path(name) / "jobs.db"
        fill(state, jobs, QUEUES)
        with server(state) as (url, _):
            is_smooth = run(url, jobs, seconds, is_headed=headed)
    if not is_smooth:
        sys.exit(f"a frame takes more than {FRAME_MS:.1f} ms")


if __name__ == "__main__":
    main()
