"""kill -9 of the coordinator while somebody waits for a result: the next one tells it, on both brokers."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.client.breaking import until
from tests.program_environment import program_environment
from waybill.ojs import Jobs, Worker


@contextmanager
def coordinator(repository: Path, uri: str, queue: str) -> Iterator[subprocess.Popen[str]]:
    """A coordinator as a process, ready; killed in the end if the test has not done so."""
    environment = program_environment()
    command = [sys.executable, "-m", "waybill", "coordinator", queue, "--uri", uri]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready")
            yield process
        finally:
            process.kill()


async def test_a_result_arrives_although_the_coordinator_is_killed_meanwhile(
    repository: Path, broker_uri: str, queue_name: str
) -> None:
    ends = {"between": asyncio.Event(), "after": asyncio.Event()}
    # Without a reply queue, only coordinators can tell.
    async with Jobs(broker_uri, results=False) as jobs, Jobs(broker_uri, results=False) as others:

        @jobs.handler("results.killed", queue=queue_name)
        async def square(end: str, number: int) -> int:
            await ends[end].wait()
            return number * number

        async with Worker(jobs) as worker:
            between, after = await square.push("between", 3), await square.push("after", 4)
            with coordinator(repository, broker_uri, queue_name) as first:
                waits = [asyncio.create_task(one.result(timeout=100)) for one in (between, others.job(after.id))]
                await until(lambda: worker.running_count == 2)
                for asker in (jobs, others):
                    await is_asked(asker)
                # What is asked later is answered: the first coordinator has the questions of both.
                assert await jobs.info(between.id) is not None
                first.kill()
                first.wait()
            ends["between"].set()
            await until(lambda: worker.counts["completed"] == 1)
            assert not waits[0].done()
            with coordinator(repository, broker_uri, queue_name):
                assert await waits[0] == 9
                assert not waits[1].done()
                ends["after"].set()
                assert await waits[1] == 16


async def is_asked(jobs: Jobs) -> None:
    """Return when the question for a result is with the broker."""
    inbox = await jobs.inbox()
    await until(lambda: any(wait.due_at > inbox._loop.time() for wait in inbox._waits.values()))
    await until(lambda: not inbox._asking)
