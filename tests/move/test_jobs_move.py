"""A system of jobs moves from one broker to another and back, on ours and on RabbitMQ, with all that belongs to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.move.stream_events import found_events
from tests.ojs.eye import until
from tests.rabbitmq import RabbitMQ
from tests.soak.move.one_way import events_of
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


async def test_partitions_that_nobody_names_move_as_well(pair: tuple[str, str]) -> None:
    here, there = pair
    queue, ran = "parts", Counter[int]()
    names = Topology(prefix="unnamed.")
    divided = replace(names, partitions={queue: 3}, event_partitions=3)
    fewer = replace(names, event_partitions=2)
    async with with_handlers(here, queue, ran, divided) as jobs:
        pushed = {(await jobs.push("move.run", [number], queue=queue)).id for number in range(30)}
    one, other = System(here, names), System(there, fewer)
    plan = await JobsMove(one, other, [queue]).plan()
    assert {item.source for item in plan if item.kind == "stream"} >= {*divided.event_streams}
    assert (await JobsMove(one, other, [queue]).run()).jobs == 30
    assert await pushes_of(there, fewer) == Counter(pushed)
    # The target's queue is a placeholder that keeps nothing.
    assert (await JobsMove(System(there, names), one, [queue]).run()).jobs == 30
    assert await pushes_of(here, divided) == Counter(pushed)
    async with with_handlers(here, queue, ran, divided) as jobs, Worker(jobs) as worker:
        await until(lambda: worker.counts["completed"] == 30)
    assert ran == Counter(range(30))


async def pushes_of(uri: str, topology: Topology) -> Counter[str]:
    """Return the jobs whose push is in a stream of events, with how often, after a look that they are in several."""
    found: Counter[str] = Counter()
    async with connect(uri) as connection:
        for stream in topology.event_streams:
            told = [event.subject async for event in events_of(connection, stream) if event.type == "job.enqueued"]
            assert told
            found.update(told)
    return found


async def move(source: str, target: str, *queues: str) -> Moved:
    return await JobsMove(System(source, NAMES), System(target, NAMES), queues).run()


def with_handlers(uri: str, queue: str, ran: Counter[int], topology: Topology = NAMES) -> Jobs:
    jobs = Jobs(uri, topology=topology)

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
