"""Dead letters: found with their errors, tried again without a loss, on both brokers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.ojs.eye import Eye, until
from tests.program_environment import program_environment
from waybill.ojs import DeadLetters, InvalidJob, Jobs, Retry, Worker, current_job

TWICE = Retry(max_attempts=2, initial_interval=timedelta(milliseconds=1))


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


class Failing:
    """A handler that fails until it is told otherwise, and two dead jobs and one of another error."""

    def __init__(self, jobs: Jobs, queue: str) -> None:
        self.runs: list[tuple[object, int]] = []
        self.works = False
        self.handler = jobs.handler("dead.some", queue=queue, retry=Retry(max_attempts=1))(self.run)

    async def run(self, number: int) -> None:
        self.runs.append((number, current_job().attempt))
        if not self.works:
            raise ValueError(f"no good: {number}") if number < 10 else KeyError("gone")


async def die(jobs: Jobs, failing: Failing, numbers: list[int]) -> list[str]:
    pushed = [(await failing.handler.push(number)).id for number in numbers]
    async with Worker(jobs, concurrency=1) as worker:
        await until(lambda: worker.counts["discarded"] == len(numbers))
    return pushed


async def test_they_are_listed_with_their_errors_and_stay(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    ids = await die(jobs, Failing(jobs, queue_name), [1, 2, 10])
    async with DeadLetters(jobs, queue_name) as dead:
        for _ in range(2):
            found = await dead.all()
            assert [job.id for job in found] == ids
        assert [job.error for job in found] == ["no good: 1", "no good: 2", "'gone'"]
        assert [job.error_type for job in found] == ["ValueError", "ValueError", "KeyError"]
        assert found[0].fingerprint == found[1].fingerprint != found[2].fingerprint
        assert {job.reason for job in found} == {"rejected"}
        assert len(await dead.all(limit=1)) == 1
        assert await dead.count() == 3
    assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 3


async def test_they_say_how_the_job_ended(jobs: Jobs, queue_name: str) -> None:
    """State, time and the whole history of errors, though the broker moved the message as it was."""

    @jobs.handler("dead.twice", queue=queue_name, retry=TWICE)
    async def twice() -> None:
        raise ValueError(f"attempt {current_job().attempt}")

    pushed = await twice.push()
    async with Worker(jobs) as worker:
        await until(lambda: worker.counts["discarded"] == 1)
    async with DeadLetters(jobs, queue_name) as dead:
        (job,) = await dead.all()
    envelope = job.envelope
    assert envelope is not None
    assert (envelope["id"], envelope["state"], envelope["attempt"]) == (pushed.id, "discarded", 2)
    assert envelope["discarded_at"] == job.discarded_at
    assert job.discarded_at is not None
    assert job.died_at is not None
    assert job.died_at[:10] == job.discarded_at[:10]
    error, errors = envelope["error"], envelope["errors"]
    assert isinstance(error, dict)
    assert isinstance(errors, list)
    assert (error["type"], error["message"], error["code"]) == ("ValueError", "attempt 2", "HANDLER_ERROR")
    assert [(one["attempt"], one["message"]) for one in errors] == [(1, "attempt 1"), (2, "attempt 2")]


async def test_a_message_that_is_no_job_has_no_envelope(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    deep = b"[" * 2000 + b"]" * 2000
    jobs.handler("dead.never", queue=queue_name)(print)
    async with Worker(jobs) as worker:
        await eye.publish("ojs.exchange.direct", queue_name, deep, message_id=f"deep-{queue_name}", type="x.y")
        await until(lambda: worker.counts["discarded"] == 1)
    async with DeadLetters(jobs, queue_name) as dead:
        (job,) = await dead.all()
    assert job.envelope is None
    assert job.discarded_at is not None
    assert job.error_type == "InvalidJob"


async def test_a_job_is_tried_again_with_all_its_attempts(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    failing = Failing(jobs, queue_name)
    ids = await die(jobs, failing, [1, 2, 3])
    async with DeadLetters(jobs, queue_name) as dead, Worker(jobs, coordinator=True) as worker:
        failing.works = True
        assert await dead.retry([ids[1], ids[2]], changes={"args": [7]}) == 2
        await until(lambda: worker.counts["completed"] == 2)
        assert failing.runs[3:] == [(7, 1), (7, 1)]
        while (job := await jobs.info(ids[1], queue_name)) is None or job.state != "completed":
            await asyncio.sleep(0.02)
        assert job.attempt == 1
        assert [job.id for job in await dead.all()] == [ids[0]]
    assert await eye.count(f"ojs.queue.{queue_name}") == 0


async def test_a_retry_that_is_stopped_half_way_loses_nothing(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    ids = await die(jobs, Failing(jobs, queue_name), [1, 2, 3, 4])
    async with DeadLetters(jobs, queue_name) as dead:
        progress: list[int] = []
        running = asyncio.get_running_loop().create_task(dead.retry(ids, rate=2, on_progress=progress.append))
        await until(lambda: progress == [1])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert [job.id for job in await dead.all()] == ids[1:]
    again = await eye.wait_for(f"ojs.queue.{queue_name}")
    assert again.properties.message_id == ids[0]
    assert again.headers["x-ojs-attempt"] == 1
    assert "x-death" not in again.headers
    assert (again.json()["state"], again.json()["attempt"]) == ("available", 0)


async def test_what_is_edited_must_be_a_job(jobs: Jobs, queue_name: str) -> None:
    ids = await die(jobs, Failing(jobs, queue_name), [1])
    async with DeadLetters(jobs, queue_name) as dead:
        with pytest.raises(InvalidJob, match="type"):
            await dead.retry(ids, changes={"type": "No Type"})
        assert await dead.count() == 1


async def test_discard_and_purge(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    ids = await die(jobs, Failing(jobs, queue_name), [1, 2, 3])
    await eye.publish("ojs.exchange.dlx", queue_name, b"no job at all")
    async with DeadLetters(jobs, queue_name) as dead:
        assert await dead.discard([ids[0], "unknown"]) == 1
        found = await dead.all()
        assert [job.id for job in found[:2]] == ids[1:]
        assert found[2].error_type == "InvalidJob"
        assert await dead.purge() == 3
        assert await dead.all() == []


async def test_a_killed_retry_loses_nothing(jobs: Jobs, broker_uri: str, eye: Eye, queue_name: str) -> None:
    failing = Failing(jobs, queue_name)
    pushed = await jobs.push_many([failing.handler.job(number) for number in range(60)])
    async with Worker(jobs, concurrency=10) as worker:
        await until(lambda: worker.counts["discarded"] == 60)
    command = [sys.executable, "-m", "waybill", "dlq", "retry", "--all", "--rate", "100", "--queue", queue_name]
    environment = program_environment()
    process = await asyncio.create_subprocess_exec(*command, "--uri", broker_uri, env=environment)
    while await eye.count(f"ojs.queue.{queue_name}") < 5:
        await asyncio.sleep(0.005)
    process.kill()
    await process.wait()
    await until_requeued(eye, f"ojs.queue.dlx.{queue_name}", 50)
    again = set()
    while (message := await eye.get(f"ojs.queue.{queue_name}")) is not None:
        again.add(message.properties.message_id)
    async with DeadLetters(jobs, queue_name) as dead:
        still = {job.id for job in await dead.all()}
    assert again | still == {envelope.id for envelope in pushed}
    assert again
    assert still
    assert len(again & still) <= 1, "the one that was confirmed and not yet acknowledged"


async def until_requeued(eye: Eye, queue: str, most_taken: int) -> None:
    """Wait until the broker has noticed that the process is gone, and given back what that held."""
    async with asyncio.timeout(20):
        before = -1
        while (count := await eye.count(queue)) != before or count < 60 - most_taken:
            before = count
            await asyncio.sleep(0.1)
