"""Attempts that hang are replaced by the next one, and what they say afterwards is refused."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from waybill.ojs import Coordinator, JobInfo, Jobs, Retry, Worker, current_job

SOON = Retry(max_attempts=2, jitter=False)


async def info_of(jobs: Jobs, job_id: str, queue: str, state: str, attempt: int) -> JobInfo:
    while (job := await jobs.info(job_id, queue)) is None or (job.state, job.attempt) != (state, attempt):
        await asyncio.sleep(0.02)
    return job


async def test_a_coroutine_that_ignores_its_time_limit_is_replaced(
    broker_uri: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.runner.GIVE_UP_SECONDS", 0.2)
    release = asyncio.Event()
    ignored: list[str] = []
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("hung.deaf", queue=queue_name, timeout=0.2, retry=SOON)
        async def deaf() -> str:
            attempt = current_job().attempt
            while attempt == 1 and not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    ignored.append("once")
            return f"attempt {attempt}"

        async with Worker(jobs, coordinator=True, concurrency=2) as worker:
            pushed = await deaf.push()
            job = await info_of(jobs, pushed.id, queue_name, "completed", 2)
            assert job.result == "attempt 2"
            assert ignored == ["once"]
            release.set()
            await until(lambda: worker._runner is not None and not worker._runner.lost)
            assert worker.counts["completed"] == 1


PROGRAM = """
import asyncio
from waybill import Jobs
from waybill.client import ReconnectPolicy

jobs = Jobs({uri!r}, reconnect=ReconnectPolicy(first_delay_s=0.05))

@jobs.handler("hung.stopped", queue={queue!r})
async def stopped(path: str) -> str:
    while not __import__("pathlib").Path(path).exists():
        await asyncio.sleep(0.02)
    return "late"
"""


@requirement("OJS-041", "OJS-101")
async def test_a_worker_that_stands_still_on_a_live_connection_loses_its_job(
    broker_uri: str, eye: Eye, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    """The process is stopped, its socket stays open: the broker misses its heartbeats and gives the job away."""
    (tmp_path / "program.py").write_text(
        PROGRAM.format(uri=f"{broker_uri}?heartbeat=2", queue=queue_name), encoding="utf-8"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(repository / "src"), *sys.path])}
    release = asyncio.Event()
    async with Jobs(broker_uri) as jobs, Coordinator(jobs, queues=[queue_name]):
        attempts: list[int] = []

        @jobs.handler("hung.stopped", queue=queue_name, retry=Retry(max_attempts=9, jitter=False))
        async def stopped(path: str) -> str:
            attempts.append(current_job().attempt)
            await release.wait()
            return "in time"

        with subprocess.Popen(  # noqa: ASYNC220 - it starts in a moment
            [sys.executable, "-m", "waybill", "worker", "program:jobs"],
            cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            pushed = await stopped.push(str(tmp_path / "go"))
            while (job := await jobs.info(pushed.id, queue_name)) is None or job.state != "active":
                await asyncio.sleep(0.02)
            process.send_signal(signal.SIGSTOP)
            events = await eye.tap("ojs.exchange.events", "#")
            async with Worker(jobs) as worker:
                await until(lambda: len(attempts) == 1)
                await info_of(jobs, pushed.id, queue_name, "active", attempts[0])
                assert attempts[0] > job.attempt
                (tmp_path / "go").touch()
                process.send_signal(signal.SIGCONT)
                late = b""
                while b'"late"' not in late:
                    late = (await eye.wait_for(events)).body
                process.terminate()
                _, errors = await asyncio.to_thread(process.communicate, None, 30)
                job = await jobs.info(pushed.id, queue_name)
                assert job is not None, errors
                assert (job.state, job.attempt) == ("active", attempts[0]), "the late result is refused"
                assert job.result is None
                release.set()
                job = await info_of(jobs, pushed.id, queue_name, "completed", attempts[0])
                assert job.result == "in time"
                assert worker.counts["completed"] == 1
    assert await eye.count(f"ojs.queue.{queue_name}") == 0
