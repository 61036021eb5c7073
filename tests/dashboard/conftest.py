"""One server and one browser for all tests of the dashboard: `waybill up` with a worker, and Debian's Chromium."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.program_environment import program_environment

PROGRAM: Final = """
import asyncio

from waybill import Jobs, Retry

jobs = Jobs()


@jobs.handler("mail.send", queue="mail")
async def send(address: str) -> dict[str, object]:
    return {"sent": True, "to": address}


@jobs.handler("report.make", queue="reports", retry=Retry(max_attempts=1))
async def make(year: int) -> None:
    raise ValueError(f"no figures for {year}")


@jobs.handler("feed.read", queue="feeds", retry=Retry(max_attempts=2, jitter=False))
async def read(url: str) -> None:
    raise OSError(f"no route to {url}")


@jobs.handler("import.run", queue="imports")
async def run(rows: int) -> None:
    await asyncio.sleep(3600)
"""
_TIMES: Final = {"p50": 120, "p95": 900, "p99": 1500}
REPORT: Final = {
    "start": "2026-01-01T10:00:00Z",
    "end": "2026-01-01T11:00:00Z",
    "bucket_seconds": 60,
    "totals": {
        "events": 4000,
        "malformed": 0,
        "jobs": 1000,
        "pushed": 1000,
        "completed": 950,
        "discarded": 20,
        "cancelled": 0,
        "open": 30,
        "attempts": 1100,
        "failures": 130,
        "retries": 110,
        "recovered": 80,
        "redelivered": 0,
        "repeated": 0,
        "queue_wait": _TIMES,
        "run": _TIMES,
    },
    "timeline": [
        {"start": f"2026-01-01T10:{minute:02}:00Z", "enqueued": 20, "completed": 12 + minute % 9, "failed": minute % 4}
        | {"discarded": 0, "queue_wait": _TIMES, "run": {**_TIMES, "p50": 100 + 5 * minute}}
        for minute in range(60)
    ],
    "job_types": [
        {"job_type": "advised.run", "queue": "advised", "pushed": 1000, "completed": 950, "discarded": 20}
        | {"retries": 110, "queue_wait": _TIMES, "run": _TIMES}
    ],
    "errors": [{"error_type": "TimeoutError", "failed": 130, "retried": 110}],
    "workers": [{"worker_id": "worker-1", "attempts": 1100, "utilisation": 0.42}],
    "recommendations": [
        {
            "job_type": "advised.run",
            "max_attempts": {"value": 4, "evidence": "80 of 130 jobs that failed at first recovered by attempt 4"},
            "timeout_s": None,
            "concurrency": {"value": 4, "evidence": "12 at work at a time"},
        }
    ],
}
"""What `waybill pipeline report --json` writes, as far as the page looks at it."""
TRACES: Final = "https://traces.example.com/{trace_id}"
CHROMIUM: Final = "chromium"
START_SECONDS: Final = 60
WAIT_SECONDS: Final = 15.0
REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
ARTEFACTS: Final = REPOSITORY / "build" / "screenshots"


class Server:
    """A server that runs, and its API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: object = None, key: str = "") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(f"{self.url}/ojs/v1/{path}", data, headers, method=method)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310 - our own server
            return json.loads(response.read() or b"null")

    def push(self, job_type: str, *args: object, queue: str = "default", **options: object) -> str:
        body = {"type": job_type, "args": args, "options": {"queue": queue, **options}}
        found: str = self.ask("POST", "jobs", body)["job"]["id"]
        return found

    def wait(self, job_id: str, *states: str) -> Any:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            job = self.ask("GET", f"jobs/{job_id}")["job"]
            if job["state"] in states:
                return job
            assert time.monotonic() < deadline, job
            time.sleep(0.02)


def start(arguments: list[str], directory: Path) -> tuple[subprocess.Popen[str], str]:
    """Start `waybill up`; returns the process and the address of its dashboard."""
    log = (directory / "up.log").open("w")
    environment = {name: one for name, one in program_environment().items() if not name.startswith("WAYBILL_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "waybill", "up", *arguments, "--port", "0", "--amqp-port", "0"],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=directory,
        env=environment | {"HOME": str(directory)},
    )
    log.close()
    assert process.stdout is not None
    for line in process.stdout:
        name, _, value = line.strip().partition(" ")
        if name == "dashboard":
            return process, value.strip().rstrip("/")
    raise AssertionError((directory / "up.log").read_text())


def stop(process: subprocess.Popen[str]) -> int:
    """End it as Ctrl-C does."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(START_SECONDS)
    finally:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()


def until(page: Any, expression: str, wanted: object = True) -> None:
    """Wait until an expression of JavaScript has a value. The policy forbids what Playwright has for that."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := page.evaluate(expression)) != wanted:
        assert time.monotonic() < deadline, (expression, found)
        page.wait_for_timeout(20)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("dashboard")
    (directory / "shop.py").write_text(PROGRAM)
    options = ["--no-reload", "--data-dir", "data", "--grace-period", "0", "--trace-url", TRACES]
    process, url = start(["shop:jobs", *options], directory)
    try:
        yield Server(url)
    finally:
        stop(process)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for the tests of a file: its event loop may not be there for those of others."""
    executable = shutil.which(CHROMIUM)
    if executable is None:
        pytest.skip("Chromium is not installed: apt install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """A page of the dashboard. What a browser complains of, or the policy refuses, is a failure."""
    context = browser.new_context(viewport={"width": 1280, "height": 860}, color_scheme="light")
    found = context.new_page()
    found.set_default_timeout(WAIT_SECONDS * 1000)
    complaints: list[str] = []
    found.on("pageerror", lambda error: complaints.append(str(error)))
    found.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    found.base = server.url
    yield found
    context.close()
    wrong = [one for one in complaints if "the server responded with a status of 40" not in one]
    assert wrong == []


@pytest.fixture
def shown(page: Any, server: Server) -> Callable[[str, str], Any]:
    """Open a page of the dashboard, and return it when its title is there."""

    def open_page(address: str, title: str) -> Any:
        page.goto(f"{server.url}/ui/#/{address}")
        page.locator("h1", has_text=title).first.wait_for()
        return page

    return open_page


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which npm fetches once."""
    place = REPOSITORY / "build" / "npm"
    script = place / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("npm is not installed: apt install npm")
        place.mkdir(parents=True, exist_ok=True)
        command = [
            npm,
            "install",
            "--prefix",
            str(place),
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
            "axe-core@^4.10",
        ]
        done = subprocess.run([*command, "axe-core@^4.10"], capture_output=True, text=True, check=False, timeout=100)
        if not script.exists():
            pytest.skip(f"axe-core cannot be installed by npm: {done.stderr[-300:]}")
    return script.read_text()
