"""What the pages of the dashboard cost with a large state: the time of each answer, and the CPU of looking each second.

    python -m benchmarks.dashboard [--jobs 1000000] [--queues 5000] [--seconds 20] [--state FILE]

Fills a database with that many jobs, starts `waybill up` on it, and asks for what each page asks for, as
a browser does. The limits: each page answers in 200 ms, and a page that asks again each second takes at most 3 % of a
core. Ends with 1 if one is exceeded. A state that was filled once is used again.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from waybill.ojs.coordinator.sql_job_store import SqlJobStore
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.timestamps import format_timestamp

MOST_MS: Final = 200.0
MOST_SHARE: Final = 0.03
ROUNDS: Final = 5
BATCH: Final = 5000
FOLDED: Final = 20_000
TYPES: Final = [f"bench.type{number}.run" for number in range(40)]
STATES: Final = ("completed", "available", "discarded", "cancelled", "scheduled", "retryable", "active")
SHARES: Final = (80, 8, 5, 3, 2, 1.9, 0.1)
ERRORS: Final = 150
LOOKED_AT: Final = (
    *("overview", "jobs", "jobs that failed", "job", "job that waits", "failures"),
    *("queues", "queues, fullest first", "queue", "workers"),
)
TRACE: Final = "\n".join(f"/srv/app/module_{number}.py:{number} in call: return call()" for number in range(20))


def events_of(number: int, count: int, queues: int, chance: random.Random) -> Iterator[ReceivedEvent]:
    """The events of one job; jobs end now, and begin a second before one another."""
    queue, kind = f"queue-{chance.randrange(queues):04d}", chance.choice(TYPES)
    state = chance.choices(STATES, SHARES)[0]
    begin = datetime.now(UTC) - timedelta(milliseconds=50 * (count - number))
    stamp = int(begin.timestamp() * 1000)
    job_id = f"{stamp >> 16:08x}-{stamp & 0xFFFF:04x}-7{number & 0xFFF:03x}-8000-{number:012x}"

    def event(name: str, seconds: float, **data: object) -> ReceivedEvent:
        told = {"job_type": kind, "queue": queue, **data}
        time = format_timestamp(begin + timedelta(seconds=seconds))
        return ReceivedEvent(
            id=f"evt_{job_id}_{name}", type=f"job.{name}", source="bench", subject=job_id, time=time, data=told
        )

    job = {"id": job_id, "type": kind, "queue": queue, "args": [{"to": f"user{number}@example.com", "n": number}]}
    later = {"scheduled_at": "2100-01-01T00:00:00Z"} if state == "scheduled" else {}
    yield event("enqueued", 0, job={**job, "tags": ["bench"], "meta": {}}, **later)
    if state in {"completed", "discarded", "retryable", "active"}:
        yield event("started", 0.1 + chance.random(), attempt=1, worker_id=f"worker-{number % 50}")
    message = f"row {number} of 'file{number}.csv' is bad: cause {chance.choice('abcdefgh')}"
    error = {"type": f"Error{chance.randrange(ERRORS)}", "message": message, "code": "handler_error"}
    if state in {"discarded", "retryable"}:
        yield event("failed", 1.5, attempt=1, error={**error, "stack_trace": TRACE})
    if state == "retryable":
        yield event("retrying", 1.5, attempt=1, next_retry_at="2100-01-01T00:00:00Z")
    elif state == "discarded":
        yield event("discarded", 1.5, total_attempts=1, last_error=error, dead_letter=True)
    elif state == "completed":
        yield event("completed", 1.2 + chance.random(), attempt=1, result={"ok": True}, duration_ms=900)
    elif state == "cancelled":
        yield event("cancelled", 3)


def fill(state: Path, count: int, queues: int) -> None:
    """Fold the events of some jobs, and copy those with other ids and queues until there are so many.

    The position stays at the beginning of the stream: the broker's is empty.
    """
    chance = random.Random(1)
    folded = min(count, FOLDED)
    with SqlJobStore(str(state)) as store:
        for start in range(0, folded, BATCH):
            jobs = range(start, min(folded, start + BATCH))
            found = [event for number in jobs for event in events_of(number, folded, queues, chance)]
            store.apply([(0, found)], keeps_position=True)
    with closing(sqlite3.connect(state)) as connection:
        names = [row[1] for row in connection.execute("pragma table_info(waybill_job)")]
        first = [dict(zip(names, row, strict=True)) for row in connection.execute("select * from waybill_job")]
        insert = f"insert into waybill_job values ({', '.join('?' * len(names))})"  # noqa: S608 - of our own
        for copy in range(1, count // folded):
            rows = []
            for job in first:
                job_id = f"{int(job['id'][:8], 16) - copy:08x}{job['id'][8:]}"
                queue = f"queue-{(int(job['queue'][6:]) + 37 * copy) % queues:04d}"
                rows.append(tuple((job | {"id": job_id, "queue": queue}).values()))
            connection.executemany(insert, rows)
        connection.execute("delete from waybill_count")
        copied = "insert into waybill_count select queue, state, count(*), 1 from waybill_job group by 1, 2"
        connection.execute(copied)
        connection.commit()


@contextmanager
def server(state: Path) -> Iterator[tuple[str, int]]:
    """Start a server on a state: its address and its process."""
    command = [sys.executable, "-m", "waybill", "up", "--memory", "--database", str(state)]
    arguments = [*command, "--port", "0", "--amqp-port", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("the server has no output")
            url = next(line.split()[1] for line in process.stdout if line.strip().startswith("dashboard"))
            yield url.rstrip("/"), process.pid
        finally:
            process.terminate()
            process.wait()


class Browser:
    """Asks as pages do."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{path}", data, headers)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - our own server
            return json.load(response)

    def pages(self) -> dict[str, list[str]]:
        """Return what each page asks for."""
        job = self.ask("ojs/v1/admin/search?state=discarded&limit=1")["items"][0]
        waiting = self.ask("ojs/v1/admin/search?state=available&limit=1")["items"][0]["id"]
        group = self.ask("ojs/v1/admin/failures")["items"][0]["fingerprint"]
        found = {
            "overview": ["overview", "failures?limit=6"],
            "jobs": ["search?limit=200"],
            "jobs, one state": ["search?limit=200&state=completed"],
            "jobs that failed": ["search?limit=200&state=discarded"],
            "jobs, one queue": [f"search?limit=200&queue={job['queue']}"],
            "jobs, one type": [f"search?limit=200&type={TYPES[7]}"],
            "jobs, an id": [f"search?limit=200&id={job['id'][:20]}"],
            "jobs, a rare text": ["search?limit=200&text=nobody-has-this"],
            "jobs, a text": ["search?limit=200&text=user77"],
            "jobs of an hour": [f"search?limit=200&since={format_timestamp(datetime.now(UTC) - timedelta(hours=1))}"],
            "job": [f"jobs/{job['id']}", f"../events?subject={job['id']}&limit=100", f"../jobs/{job['id']}/logs"],
            "job that waits": [f"jobs/{waiting}", f"jobs/{waiting}/why", f"../events?subject={waiting}&limit=100"],
            "failures": ["failures"],
            "failures, one group": ["failures", f"search?fingerprint={group}&limit=200"],
            "queues": ["queue-summaries?limit=50"],
            "queues, fullest first": ["queue-summaries?limit=50&sort=waiting"],
            "queues, by a part": ["queue-summaries?limit=50&search=99"],
            "queue": [f"queue-summaries?name={job['queue']}"],
            "workers": ["workers?per_page=100&jobs=true"],
            "cron": ["../cron"],
            "workflows": ["../workflows?limit=100"],
            "operations": ["operations"],
            "audit": ["audit?limit=100"],
        }
        base = "ojs/v1/admin/"
        return {name: [urllib.parse.urljoin(f"/{base}", path)[1:] for path in paths] for name, paths in found.items()}


def cpu_of(pid: int) -> float:
    """Return the seconds of CPU that the threads of a process have taken, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e9


def share_of(pid: int, seconds: int, each_second: Callable[[], object]) -> float:
    """Return which share of a core a process takes while something is done each second."""
    before, begin = cpu_of(pid), time.monotonic()
    for number in range(seconds):
        each_second()
        time.sleep(max(0.0, begin + number + 1 - time.monotonic()))
    return (cpu_of(pid) - before) / (time.monotonic() - begin)


def measure(url: str, pid: int, seconds: int) -> bool:
    """Print what each page costs; says whether all is within the limits."""
    browser = Browser(url)
    is_good = True
    pages = browser.pages()
    time.sleep(2)
    idle = share_of(pid, 5, lambda: None)
    click.echo(f"nobody looks: {100 * idle:.1f} % of a core")
    pushing = {"type": "bench.tick", "args": [], "options": {"queue": "bench-ticks"}}
    for name, paths in pages.items():
        times, taken = [], []
        for _ in range(ROUNDS):
            begin, before = time.perf_counter(), cpu_of(pid)
            for path in paths:
                browser.ask(urllib.parse.quote(path, safe="/?&=:,%.-_"))
            times.append((time.perf_counter() - begin) * 1000)
            taken.append((cpu_of(pid) - before) * 1000)
            # What was counted is old by the next look.
            browser.ask("ojs/v1/jobs", pushing)
        is_good &= max(times) <= MOST_MS
        wrong = "" if max(times) <= MOST_MS else f"   MORE THAN {MOST_MS:.0f} ms"
        figures = (
            f"median {statistics.median(times):6.1f} ms   most {max(times):6.1f} ms   CPU at most {max(taken):6.1f} ms"
        )
        click.echo(f"{name:24} {figures}{wrong}")
    stop = threading.Event()

    def push() -> None:
        while not stop.wait(1.0):
            browser.ask("ojs/v1/jobs", pushing)

    threading.Thread(target=push, daemon=True).start()
    base = share_of(pid, seconds // 2, lambda: None)
    for name in LOOKED_AT:
        share = share_of(pid, seconds, lambda paths=pages[name]: [browser.ask(path) for path in paths]) - base  # type: ignore[misc]
        wrong = "" if share <= MOST_SHARE else f"   MORE THAN {100 * MOST_SHARE:.0f} %"
        is_good &= share <= MOST_SHARE
        click.echo(f"{name:24} each second takes {100 * share:.1f} % of a core{wrong}")
    stop.set()
    return is_good


@click.command()
@click.option("--jobs", default=1_000_000, show_default=True)
@click.option("--queues", default=5000, show_default=True)
@click.option("--seconds", default=20, show_default=True, help="How long each page is looked at.")
@click.option("--state", type=click.Path(path_type=Path), help="A database that is filled, if it is not there.")
def main(jobs: int, queues: int, seconds: int, state: Path | None) -> None:
    """Measure everything, and print a line for each."""
    with tempfile.TemporaryDirectory(prefix="waybill-dashboard-") as directory:
        filled, where = state or Path(directory) / "filled.db", Path(directory) / "jobs.db"
        if not filled.exists():
            fill(filled, jobs, queues)
        # A server changes it: it belongs to the events of one broker.
        shutil.copy(filled, where)
        with server(where) as (url, pid):
            is_good = measure(url, pid, seconds)
    click.echo(f"load average {os.getloadavg()[0]:.1f}")
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
