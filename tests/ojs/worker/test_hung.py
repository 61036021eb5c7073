"""Attempts that hang are replaced by the next one, and what they say afterwards is refused."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from tests.program_environment import program_environment
from waybill.ojs import Coordinator, JobInfo, Jobs, Retry, Worker, current_job

SOON = Retry(max_attempts=2, jitter=False)


async def info_of(jobs: Jobs, job_id: str, queue: str, state: str, attempt: int) -> JobInfo:
    while (job := await jobs.info(job_id, queue)) is None or (job.state, job.attempt) != (state, attempt):
        await asyncio.sleep(0.02)
    return job


async def test_a_coroutine_that_ignores_its_time_limit_is_replaced(
    broker_uri: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.worker.runner.GIVE_UP_SECONDS", 0.2)
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


@contextlib.contextmanager
def worker_program(directory: Path, repository: Path, uri: str, queue: str) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own, which is killed at the end, stopped or not."""
    (directory / "program.py").write_text(PROGRAM.format(uri=uri, queue=queue), encoding="utf-8")
    environment = program_environment()
    with subprocess.Popen(
        [sys.executable, "-m", "waybill", "worker", "program:jobs", "--concurrency", "1"],
        cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@requirement("OJS-041", "OJS-101")
async def test_a_worker_that_stands_still_on_a_live_connection_loses_its_job(
    broker_uri: str, eye: Eye, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    """The process is stopped, its socket stays open: the broker misses its heartbeats and gives the job away."""
    release = asyncio.Event()
    async with Jobs(broker_uri) as jobs, Coordinator(jobs, queues=[queue_name]):
        attempts: list[int] = []

        @jobs.handler("hung.stopped", queue=queue_name, retry=Retry(max_attempts=9, jitter=False))
        async def stopped(path: str) -> str:
            attempts.append(current_job().attempt)
            await release.wait()
            return "in time"

        with worker_program(tmp_path, repository, f"{broker_uri}?heartbeat=2", queue_name) as process:
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


@requirement("OJS-040")
async def test_a_coordinator_replaces_an_attempt_of_which_nothing_is_heard(
    broker_uri: str, eye: Eye, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    """Without heartbeats of the connection the broker sees nothing: only a coordinator misses the beats of the job."""
    attempts: list[int] = []
    release = asyncio.Event()
    async with Jobs(broker_uri) as jobs, Coordinator(jobs, queues=[queue_name]):

        @jobs.handler("hung.stopped", queue=queue_name, retry=Retry(max_attempts=2, jitter=False), visibility_timeout=2)
        async def stopped(path: str) -> str:
            attempts.append(current_job().attempt)
            await release.wait()
            return "in time"

        with worker_program(tmp_path, repository, f"{broker_uri}?heartbeat=0", queue_name) as process:
            pushed = await stopped.push(str(tmp_path / "go"))
            while (job := await jobs.info(pushed.id, queue_name)) is None or job.visible_until is None:
                await asyncio.sleep(0.02)
            assert (job.state, job.attempt, job.visibility_ms) == ("active", 1, 2000)
            waits = await eye.tap("ojs.exchange.retry", f"{queue_name}.1000")
            process.send_signal(signal.SIGSTOP)
            async with Worker(jobs) as worker:
                copy = await eye.wait_for(waits)
                assert copy.properties.message_id == pushed.id
                assert copy.properties.headers["x-ojs-attempt"] == 2
                assert copy.json()["errors"][0]["type"] == "WorkerLost"
                await until(lambda: attempts == [2])
                # It goes on just when its attempt is over, and could say so before it has heard of that.
                (tmp_path / "go").touch()
                process.send_signal(signal.SIGCONT)
                queue = f"ojs.queue.{queue_name}"
                process.terminate()
                _, errors = await asyncio.to_thread(process.communicate, None, 30)
                assert "was replaced" in errors
                job = await info_of(jobs, pushed.id, queue_name, "active", 2)
                assert job.result is None
                release.set()
                job = await info_of(jobs, pushed.id, queue_name, "completed", 2)
                assert job.result == "in time"
                assert worker.counts == {"completed": 1, "failed": 0, "retried": 0, "discarded": 0, "cancelled": 0}
            assert await eye.count(queue) == 0
            assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 0
    assert attempts == [2]


async def test_a_replaced_attempt_was_the_last_one_and_comes_back_to_nobody(
    broker_uri: str, eye: Eye, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    """The dead letter is the coordinator's copy; the broker's own, of the worker that is killed, is dropped."""
    async with Jobs(broker_uri) as jobs, Coordinator(jobs, queues=[queue_name]):

        @jobs.handler("hung.stopped", queue=queue_name, retry=Retry(max_attempts=1), visibility_timeout=2)
        async def stopped(path: str) -> str:
            raise AssertionError(path)

        with worker_program(tmp_path, repository, f"{broker_uri}?heartbeat=0", queue_name) as process:
            pushed = await stopped.push(str(tmp_path / "go"))
            while (job := await jobs.info(pushed.id, queue_name)) is None or job.visible_until is None:
                await asyncio.sleep(0.02)
            process.send_signal(signal.SIGSTOP)
            job = await info_of(jobs, pushed.id, queue_name, "discarded", 1)
            assert job.error is not None
            assert job.error["type"] == "WorkerLost"
            while await eye.count(f"ojs.queue.dlx.{queue_name}") == 0:
                await asyncio.sleep(0.02)
            process.kill()
        async with Worker(jobs) as worker:
            await until(lambda: worker.redelivered_count == 1)
            while await eye.count(f"ojs.queue.{queue_name}") > 0:
                await asyncio.sleep(0.02)
            assert set(worker.counts.values()) == {0}
        assert await eye.count(f"ojs.queue.{queue_name}") == 0
        assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 1


async def test_a_worker_asks_whether_a_late_attempt_is_still_its_own(
    broker_uri: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("hung.late", queue=queue_name)
        async def late() -> None:
            await release.wait()

        async with Worker(jobs) as worker:
            runner = worker._runner
            assert runner is not None
            monkeypatch.setattr(runner.leases, "_look", lambda: None)
            pushed = await late.push()
            await until(lambda: worker.running_count == 1)
            (execution,) = runner.active
            assert not runner.leases.is_late(execution)
            execution.started -= 31
            assert runner.leases.is_late(execution)
            # Where nobody could have replaced it, nobody is asked.
            assert await runner.leases.is_own(execution)
            async with Coordinator(jobs, queues=[queue_name]) as coordinator:
                assert await runner.leases.is_own(execution)
                assert coordinator._replacement is not None
                coordinator._replacement._replaced[pushed.id, 1] = None
                assert not await runner.leases.is_own(execution)
                release.set()
                await until(lambda: worker.running_count == 0)
                assert worker.counts["completed"] == 0
                assert (await info_of(jobs, pushed.id, queue_name, "active", 1)).result is None
