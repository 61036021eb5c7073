"""Every page is there, in both themes, for screen readers and on a phone, with what the server knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.dashboard.conftest import ARTEFACTS, REPORT, Server, until

Shown = Callable[[str, str], Any]

PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1280, "height": 860}
SHIFTS = """
window.shift = 0;
new PerformanceObserver(list => { for (const one of list.getEntries()) window.shift += one.value; })
  .observe({type: "layout-shift", buffered: true});
"""
RULES = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
COLOURFUL = {"overview", "jobs", "job-failed", "workflow", "pipeline"}
"""Pages that have all colours between them."""
COLOURS = "axe.run(document, {runOnly: {type: 'rule', values: ['color-contrast', 'link-in-text-block']}})"


@pytest.fixture(scope="module")
def known(server: Server) -> dict[str, str]:
    """Have something on every page; returns the addresses of what is there."""
    done = server.push("mail.send", "ada@example.com", queue="mail", tags=["welcome"])
    failed = [server.push("report.make", 1990 + number, queue="reports") for number in range(3)]
    running = server.push("import.run", 1000, queue="imports")
    waiting = server.push("image.resize", {"url": "a.png", "sizes": [64, 128], "deep": {"no": None}}, queue="images")
    server.push("mail.send", "later@example.com", queue="mail", delay_until="2100-01-01T00:00:00Z")
    cron = {"name": "nightly", "cron": "0 3 * * *", "type": "mail.send", "args": ["x@example.com"]}
    server.ask("POST", "cron", {**cron, "queue": "mail"})
    first = {"id": "a", "type": "mail.send", "args": ["a"], "options": {"queue": "mail"}}
    then = {"id": "b", "type": "image.resize", "args": ["b"], "depends_on": ["a"], "options": {"queue": "images"}}
    flow = server.ask("POST", "workflows", {"type": "dag", "name": "monthly", "steps": [first, then]})["id"]
    for job in failed:
        server.wait(job, "discarded")
    server.wait(done, "completed")
    server.wait(running, "active")
    server.ask("POST", "admin/pipeline/report", REPORT)
    server.ask("POST", "admin/operations", {"action": "cancel", "filter": {"queue": "nothing"}})
    group = server.ask("GET", "admin/failures")["items"][0]["fingerprint"]
    return {
        "overview": "overview",
        "jobs": "jobs",
        "job-done": f"job/{done}",
        "job-failed": f"job/{failed[0]}",
        "job-running": f"job/{running}",
        "job-waiting": f"job/{waiting}",
        "failures": "failures",
        "failure": f"failures/{group}",
        "queues": "queues",
        "queue": "queues/images",
        "workers": "workers",
        "cron": "cron",
        "cron-job": "cron/nightly",
        "workflows": "workflows",
        "workflow": f"workflow/{flow}",
        "enqueue": "enqueue",
        "operations": "operations",
        "pipeline": "pipeline",
        "audit": "audit",
        "broker": "broker",
        "broker-queues": "broker/queues",
        "broker-queue": "broker/queues/%2Fojs/ojs.queue.images",
        "broker-streams": "broker/streams",
        "broker-exchanges": "broker/exchanges",
        "broker-exchange": "broker/exchanges/%2Fojs/ojs.exchange.direct",
        "broker-connections": "broker/connections",
        "broker-channels": "broker/channels",
        "broker-users": "broker/users",
        "broker-policies": "broker/policies",
    }


def test_every_page_can_be_read_by_everybody(page: Any, server: Server, known: dict[str, str], axe: str) -> None:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    found = []
    page.goto(f"{server.url}/ui/")
    page.evaluate(f"{axe};0")
    for name, address in known.items():
        page.goto(f"{server.url}/ui/#/{address}")
        until(page, "Boolean(document.querySelector('h1') && !document.querySelector('[aria-busy]'))")
        page.screenshot(path=ARTEFACTS / f"{name}-light.png")
        results = [page.evaluate(RULES)]
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=ARTEFACTS / f"{name}-dark.png")
        if name in COLOURFUL:
            results.append(page.evaluate(COLOURS))
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)
        width = page.evaluate("document.documentElement.scrollWidth")
        page.set_viewport_size(WIDE)
        found += [(name, one["id"], one["nodes"][0]["html"]) for each in results for one in each["violations"]]
        found += [(name, "too wide for a phone", width)] if width > PHONE["width"] else []
    assert found == []


def test_nothing_moves_while_numbers_change(page: Any, server: Server, known: dict[str, str]) -> None:
    page.add_init_script(SHIFTS)
    page.goto(f"{server.url}/ui/#/{known['overview']}")
    value = page.locator(".stat-value").nth(2)
    value.wait_for()
    page.wait_for_timeout(300)
    before = page.evaluate("window.shift")
    completed = page.locator(".stat-text").nth(2).inner_text()
    for number in range(3):
        server.push("mail.send", f"{number}@example.com", queue="mail")
    until(page, f"document.querySelectorAll('.stat-text')[2].innerText !== {completed!r}")
    assert page.evaluate("window.shift") - before < 0.01


def test_the_pages_tell_what_is_known(shown: Shown, known: dict[str, str]) -> None:
    page = shown(known["job-failed"], "report.make")
    assert page.locator(".failure").inner_text().startswith("ValueError")
    page = shown(known["job-waiting"], "image.resize")
    assert "No worker takes jobs of queue images" in page.locator(".why").inner_text()
    assert "a.png" in page.locator(".tree").first.inner_text()
    page = shown(known["job-done"], "mail.send")
    assert "attempt 1" in page.locator(".steps").inner_text()
    assert "sent" in page.locator(".tree").first.inner_text()
    page = shown(known["workflow"], "monthly")
    assert page.locator(".node").count() == 2
    page = shown(known["cron-job"], "nightly")
    assert page.locator("ol.list li").count() == 5
    page = shown("workers", "Workers")
    page.locator(".worker", has_text="import.run").wait_for()
    page = shown("queues", "Queues")
    assert page.locator("tbody tr").count() >= 4


def test_each_failed_attempt_has_its_traceback_and_a_job_its_trace(shown: Shown, server: Server) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    meta = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    body = {"type": "feed.read", "args": ["a.example"], "meta": meta, "options": {"queue": "feeds"}}
    job = server.ask("POST", "jobs", body)["job"]["id"]
    server.wait(job, "discarded")
    page = shown(f"job/{job}", "feed.read")
    page.locator(".failure").nth(1).wait_for()
    assert page.locator(".failure .code").count() == 2
    # What is of libraries is faded.
    last = page.locator(".failure code").first.locator("span:not(.quiet)")
    assert [line.split(" in ")[1] for line in last.all_inner_texts()] == ['read: raise OSError(f"no route to {url}")\n']
    assert page.locator(f"a[href='https://traces.example.com/{trace}']").inner_text() == trace
    names = page.locator(".steps li > span:nth-child(2)")
    assert names.all_inner_texts() == ["enqueued", "queue wait", "attempt 1", "retry wait", "attempt 2"]
    # A server that was started since has no events of it.
    page.route("**/ojs/v1/events?*", lambda route: route.fulfill(json={"events": []}))
    page.reload()
    page.locator(".failure").nth(1).wait_for()
    assert names.all_inner_texts() == ["enqueued", "until attempt 1 failed", "retry wait", "attempt 2"]


def test_streams_are_listed_with_their_offsets(shown: Shown, known: dict[str, str]) -> None:
    page = shown("broker/streams", "Broker")
    row = page.locator("tbody tr", has_text="ojs.events")
    row.wait_for()
    assert int(row.locator("td").nth(4).inner_text().replace(",", "")) > 0


def test_what_is_not_there_is_said(shown: Shown) -> None:
    shown("job/019461a8-0000-7000-8000-000000000000", "").locator("text=Not found").wait_for()
    shown("queues/nowhere", "").locator("text=No such queue").wait_for()
    shown("jobs?text=nobodyhasthis", "Jobs").locator("text=No job matches").wait_for()
