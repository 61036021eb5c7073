"""A system of jobs moves from one broker to another and back, on ours and on RabbitMQ, with all that belongs to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.move.stream_events import found_events
from tests.ojs.eye import until
from tests.rabbitmq import RabbitMQ
from waybill.broker import Broker
from waybill.client import Inspector, connect
from waybill.move import JobsMove, Moved, System
from waybill.ojs import DeadLetters, Jobs, Retry, Topology, Unique, Worker

NAMES = Topology(prefix="moving.")


@pytest.fixture(params=["waybill", "rabbitmq"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, str]]:
    """A broker of ours, and another: ours or RabbitMQ."""
    async with Broker(port=0) as ours:
        if request.param == "waybill":
            async with Broker(port=0) as other:
                yield ours.uri(), other.uri()
        else:
            rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
            yield ours.uri(), rabbitmq.uri("/ojs")


async def test_jobs_move_to_partitions_and_back(pair: tuple[str, str]) -> None:
    here, there = pair
    queue, ran = "spreads", Counter[int]()
    divided = Topology(prefix="moving.", partitions={queue: 3})
    async with with_handlers(here, queue, ran) as jobs:
        for number in range(30):
            await jobs.push("move.run", [number], queue=queue)
    one, other = System(here, NAMES), System(there, divided)
    assert (await JobsMove(one, other, [queue]).run()).jobs == 30
    async with connect(there) as connection:
        found = [await Inspector(connection).queue(name) for name in divided.job_queues(queue)]
    assert all(one is not None and one.message_count for one in found)
    assert (await JobsMove(other, one, [queue]).run()).jobs == 30
    async with with_handlers(here, queue, ran) as jobs, Worker(jobs) as worker:
        await until(lambda: worker.counts["completed"] == 30)
    assert ran == Counter(range(30))


async def move(source: str, target: str, *queues: str) -> Moved:
    return await JobsMove(System(source, NAMES), System(target, NAMES), queues).run()


def with_handlers(uri: str, queue: str, ran: Counter[int]) -> Jobs:
    jobs = Jobs(uri, topology=NAMES)

    @jobs.handler("move.die", queue=queue, retry=Retry(max_attempts=1))
    async def die() -> None:
        raise ValueError("dead")

    @jobs.handler("move.run", queue=queue)
    async def run(number: int) -> None:
        ran[number] += 1

    return jobs


async def test_jobs_of_all_kinds_move_there_and_back(pair: tuple[str, str]) -> None:
    here, there = pair
    queue, ran = "travels", Counter[int]()
    async with with_handlers(here, queue, ran) as jobs:
        dead = [await jobs.push("move.die", [], queue=queue) for _ in range(2)]
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["discarded"] == 2)
        for number in range(50):
            await jobs.push("move.run", [number], queue=queue)
        await jobs.push("move.run", [50], queue=queue, unique=Unique(), priority=100)
        soon = datetime.now(UTC) + timedelta(seconds=4)
        await jobs.push("move.run", [51], queue=queue, scheduled_at=soon)
    plan = await JobsMove(System(here, NAMES), System(there, NAMES)).plan()
    assert {one.source: one.message_count for one in plan if one.kind in {"jobs", "dead letters"}} == {
        NAMES.job_queue(queue): 51,
        NAMES.dead_letter_queue(queue): 2,
    }
    assert (await move(here, there)).jobs == 54
    assert (await move(there, here, queue)).jobs == 54
    assert (await move(here, there)).jobs == 54
    async with connect(here) as connection:
        assert set((await found_events(connection, NAMES)).values()) == {1}
    async with with_handlers(there, queue, ran) as jobs, DeadLetters(jobs, queue) as letters:
        assert {job.id for job in await letters.all()} == {job.id for job in dead}
        async with Worker(jobs):
            await until(lambda: len(ran) == 52)
    assert set(ran.values()) == {1}
    # The place of the unique job is free again.
    async with with_handlers(here, queue, ran) as jobs:
        assert (await jobs.push("move.run", [50], queue=queue, unique=Unique(), priority=100)).id
