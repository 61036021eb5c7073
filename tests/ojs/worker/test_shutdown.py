"""Graceful shutdown (ojs-graceful-shutdown.md)."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from tests.program_environment import program_environment
from waybill.ojs import Jobs, Retry, Worker, current_job


async def test_running_jobs_are_finished_and_waiting_ones_handed_back_as_new(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    entered, release = asyncio.Event(), asyncio.Event()
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("stop.slow", queue=queue_name)
        async def slow() -> None:
            entered.set()
            await release.wait()

        await jobs.push_many(slow.job() for _ in range(4))
        worker = Worker(jobs, concurrency=1, prefetch=3)
        running = asyncio.get_running_loop().create_task(worker.run())
        await entered.wait()
        worker.stop()
        await until(lambda: not worker.is_consuming)
        release.set()
        await running
        assert worker.counts["completed"] == 1
        assert await eye.count(f"ojs.queue.{queue_name}") == 3
        messages = [await eye.wait_for(f"ojs.queue.{queue_name}") for _ in range(3)]
    handed_back = [message for message in messages if not message.redelivered]
    assert [message.headers["x-ojs-attempt"] for message in messages] == [1, 1, 1]
    assert len(handed_back) == 3, "a job that was never started has used no attempt"


async def test_what_is_handed_back_does_not_forget_that_a_worker_vanished_with_it(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    """Handed back it would come as new to the next worker, and a job that kills its workers would go on for ever."""
    entered, release = asyncio.Event(), asyncio.Event()
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("stop.slow", queue=queue_name, retry=Retry(jitter=False))
        async def slow() -> None:
            entered.set()
            await release.wait()

        lost = await slow.push()
        method = (await eye.call(lambda: eye.channel.basic_get(f"ojs.queue.{queue_name}")))[0]
        await slow.push()
        async with Worker(jobs, concurrency=1, prefetch=2) as worker:
            await entered.wait()
            await eye.call(lambda: eye.channel.basic_nack(method.delivery_tag, requeue=True))
            await until(lambda: worker.held_count == 2)
            worker.quiet()
            await until(lambda: not worker.is_consuming)
            asyncio.get_running_loop().call_later(0.1, release.set)
        assert worker.counts["retried"] == 1
        again = await eye.wait_for(f"ojs.queue.{queue_name}")
    assert (again.properties.message_id, again.headers["x-ojs-attempt"]) == (lost.id, 2)


async def test_a_job_that_outlives_the_grace_period_is_interrupted_and_tried_again(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    entered = asyncio.Event()
    cancelled = asyncio.Event()
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("stop.endless", queue=queue_name, retry=Retry(jitter=False))
        async def endless() -> None:
            entered.set()
            try:
                await asyncio.sleep(3600)
            finally:
                cancelled.set()

        async with Worker(jobs, grace_period=0.1):
            await endless.push()
            await entered.wait()
        assert cancelled.is_set()
        again = await eye.wait_for(f"ojs.queue.{queue_name}")
    assert again.headers["x-ojs-attempt"] == 2
    assert again.json()["error"]["type"] == "ShutdownError"


async def test_a_thread_that_outlives_the_grace_period_loses_its_job(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    entered, release = threading.Event(), threading.Event()
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("stop.thread", queue=queue_name, retry=Retry(jitter=False))
        def stuck() -> None:
            entered.set()
            release.wait(30)

        async with Worker(jobs, grace_period=0.1) as worker:
            await stuck.push()
            await asyncio.to_thread(entered.wait)
        release.set()
        assert worker.counts["retried"] == 1
        assert (await eye.wait_for(f"ojs.queue.{queue_name}")).headers["x-ojs-attempt"] == 2


async def test_a_quiet_worker_takes_nothing_and_can_be_woken(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("stop.quiet", queue=queue_name)
        async def quiet() -> None: ...

        async with Worker(jobs) as worker:
            assert worker.is_consuming
            worker.quiet()
            await until(lambda: not worker.is_consuming)
            await quiet.push()
            assert await eye.count(f"ojs.queue.{queue_name}") == 1
            worker.resume()
            await until(lambda: worker.counts["completed"] == 1)


async def test_a_second_stop_ends_the_grace_period(broker_uri: str, queue_name: str) -> None:
    entered = asyncio.Event()
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("stop.twice", queue=queue_name)
        async def twice() -> None:
            entered.set()
            await asyncio.sleep(3600)

        worker = Worker(jobs, grace_period=3600)
        running = asyncio.get_running_loop().create_task(worker.run())
        await twice.push()
        await entered.wait()
        worker.stop()
        worker.stop()
        async with asyncio.timeout(20):
            await running


PROGRAM = """
import asyncio
from waybill import Jobs

jobs = Jobs({uri!r})

@jobs.handler("stop.program", queue={queue!r})
async def slow(seconds: float) -> None:
    await asyncio.sleep(seconds)
"""


async def test_the_command_drains_on_sigterm_and_says_what_it_did(
    broker_uri: str, eye: Eye, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(uri=broker_uri, queue=queue_name), encoding="utf-8")
    environment = program_environment()
    with subprocess.Popen(  # noqa: ASYNC220 - it starts in a moment
        [sys.executable, "-m", "waybill", "worker", "program:jobs", "--concurrency", "2", "--json"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        async with Jobs(broker_uri) as jobs:
            for _ in range(4):
                await jobs.push("stop.program", [1.0], queue=queue_name)
        while await eye.count(f"ojs.queue.{queue_name}") > 2:
            assert process.poll() is None, process.communicate()
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        output, errors = await asyncio.to_thread(process.communicate, None, 30)
    assert process.returncode == 0, errors
    assert json.loads(output).items() >= {"completed": 2, "failed": 0, "retried": 0, "discarded": 0}.items()
    assert await eye.count(f"ojs.queue.{queue_name}") == 2


@requirement("OJS-029")
async def test_the_job_of_a_worker_that_was_killed_is_tried_again_elsewhere(
    broker_uri: str, eye: Eye, queue_name: str, tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(uri=broker_uri, queue=queue_name), encoding="utf-8")
    environment = program_environment()
    attempts: list[int] = []
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("stop.program", queue=queue_name)
        async def quick(seconds: float) -> None:
            attempts.append(current_job().attempt)

        with subprocess.Popen(  # noqa: ASYNC220 - it starts in a moment
            [sys.executable, "-m", "waybill", "worker", "program:jobs"],
            cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            await jobs.push("stop.program", [3600.0], queue=queue_name)
            while await eye.count(f"ojs.queue.{queue_name}"):
                await asyncio.sleep(0.02)
            process.kill()
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["completed"] == 1)
    assert attempts == [2]
