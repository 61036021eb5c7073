"""Progress and checkpoints (ojs-progress, ojs-durable-execution), on both brokers."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.ojs.eye import Eye, until
from tests.program_environment import program_environment
from waybill.client import connect
from waybill.ojs import Coordinator, JobInfo, Jobs, Retry, Worker, current_job
from waybill.ojs.spec.events import ReceivedEvent, decode_events


@pytest.fixture
async def progress(broker_uri: str) -> AsyncIterator[list[ReceivedEvent]]:
    """The job.progress events from now on."""
    found: list[ReceivedEvent] = []

    def take(delivery: Any) -> None:
        delivery.ack()
        found.extend(event for event in decode_events(delivery.body) if event.type == "job.progress")

    async with Jobs(broker_uri) as jobs:
        await jobs.push("stream.declared", queue="stream")
    async with connect(broker_uri) as connection:
        channel = await connection.channel(prefetch_count=100)
        await channel.consume("ojs.events", take, arguments={"x-stream-offset": "next"})
        yield found


async def info_of(jobs: Jobs, job_id: str, queue: str, state: str) -> JobInfo:
    while (job := await jobs.info(job_id, queue)) is None or job.state != state:
        await asyncio.sleep(0.02)
    return job


async def test_progress_is_told_once_a_second_and_never_goes_back(
    broker_uri: str, progress: list[ReceivedEvent], queue_name: str
) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("progress.busy", queue=queue_name)
        def busy() -> None:
            job = current_job()
            job.progress(0, 10_000, "begun")
            for number in range(10_000):
                job.progress(number, 10_000)
            job.progress(0.25, message="back")
            job.progress(float("nan"))

        async with Worker(jobs):
            pushed = await busy.push()
            await until(lambda: any(event.data.get("progress_message") == "back" for event in progress))
    mine = [event for event in progress if event.subject == pushed.id]
    percents: list[Any] = [event.data["progress_percent"] for event in mine]
    assert percents == sorted(percents)
    assert len(mine) < 100, "ten thousand calls"
    assert percents[-1] == 99.99
    assert mine[-1].data["progress_message"] == "back"


async def test_the_state_of_a_job_tells_how_far_it_is(broker_uri: str, queue_name: str) -> None:
    release = asyncio.Event()
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("progress.half", queue=queue_name)
        async def half() -> None:
            current_job().progress(3, 6, "half of it")
            current_job().checkpoint({"page": 3})
            await release.wait()

        async with Worker(jobs, coordinator=True):
            pushed = await half.push()
            while (job := await info_of(jobs, pushed.id, queue_name, "active")).checkpoint is None:
                await asyncio.sleep(0.02)
            assert (job.progress, job.progress_message) == (0.5, "half of it")
            assert (job.checkpoint.state, job.checkpoint.sequence) == ({"page": 3}, 1)
            release.set()
            job = await info_of(jobs, pushed.id, queue_name, "completed")
            assert (job.progress, job.checkpoint) == (1.0, None)


async def test_a_retry_goes_on_from_the_checkpoint(broker_uri: str, eye: Eye, queue_name: str) -> None:
    seen: list[object] = []
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("progress.resume", queue=queue_name, retry=Retry(jitter=False))
        def resume() -> None:
            job = current_job()
            seen.append(job.last_checkpoint)
            if job.attempt < 3:
                job.checkpoint({"row": job.attempt})
                raise ValueError("once more")

        async with Worker(jobs):
            await resume.push()
            for number, delay_ms in enumerate((1000, 2000), 1):
                waiting = f"ojs.queue.retry.{queue_name}.{delay_ms}"
                while not await eye.exists(waiting):
                    await asyncio.sleep(0.02)
                retried = await eye.wait_for(waiting)
                assert retried.json()["checkpoint"]["state"] == {"row": number}
                assert retried.json()["checkpoint"]["sequence"] == number
                await eye.publish("ojs.exchange.direct", queue_name, retried.body, headers=retried.headers)
            await until(lambda: len(seen) == 3)
    assert seen == [None, {"row": 1}, {"row": 2}]


async def test_what_is_no_checkpoint_is_refused(broker_uri: str, queue_name: str) -> None:
    refused: list[str] = []
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("progress.odd", queue=queue_name)
        async def odd() -> None:
            for state in (object(), "x" * 1024 * 1024):
                try:
                    current_job().checkpoint(state)
                except (TypeError, ValueError) as error:
                    refused.append(type(error).__name__)

        async with Worker(jobs) as worker:
            await odd.push()
            await until(lambda: worker.counts["completed"] == 1)
    assert refused == ["TypeError", "ValueError"]


PROGRAM = """
import time
from waybill import Jobs
from waybill.ojs import current_job

jobs = Jobs({uri!r})

@jobs.handler("progress.crash", queue={queue!r})
def crash() -> None:
    current_job().checkpoint([1, 2, 3])
    time.sleep(3600)
"""


async def test_after_a_crash_the_coordinator_hands_the_checkpoint_on(
    broker_uri: str, eye: Eye, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(uri=broker_uri, queue=queue_name), encoding="utf-8")
    environment = program_environment()
    seen: list[object] = []
    async with Jobs(broker_uri) as jobs, Coordinator(jobs, queues=[queue_name]):

        @jobs.handler("progress.crash", queue=queue_name, retry=Retry(jitter=False))
        async def crash() -> None:
            seen.append((current_job().attempt, current_job().last_checkpoint))

        with subprocess.Popen(  # noqa: ASYNC220 - it starts in a moment
            [sys.executable, "-m", "waybill", "worker", "program:jobs"],
            cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            pushed = await crash.push()
            while (await info_of(jobs, pushed.id, queue_name, "active")).checkpoint is None:
                await asyncio.sleep(0.02)
            process.kill()
        async with Worker(jobs):
            await until(lambda: bool(seen))
    assert seen == [(2, [1, 2, 3])]
