"""Job queues with partitions, on both brokers: each job is in one AMQP queue, and all programs see one OJS queue."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.ojs.eye import Eye, until
from tests.program_environment import program_environment
from waybill.client import Inspector, connect
from waybill.ojs import (
    Coordinator,
    DeadLetters,
    Jobs,
    Migration,
    NewJob,
    Retry,
    Standing,
    Topology,
    TopologyConflict,
    Worker,
    check_topology,
)
from waybill.ojs.topology.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration
from waybill.ojs.topology.declarer import TopologyDeclarer
from waybill.ojs.topology.job_queues import job_queue_counts
from waybill.ojs.topology.mover import WINDOW
from waybill.ojs.topology.topology import QueueType

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


def divided(queue: str, count: int = 4, *, kind: QueueType = "classic", prefix: str = "") -> Topology:
    return Topology(prefix=prefix, queue_type=kind, partitions={queue: count})


async def counts(uri: str, names: list[str]) -> list[int]:
    async with connect(uri) as connection:
        inspector = Inspector(connection)
        return [0 if (found := await inspector.queue(name)) is None else found.message_count for name in names]


async def take_all(uri: str, names: list[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    async with connect(uri) as connection, await connection.channel() as channel:
        for name in names:
            while (delivery := await channel.get(name)) is not None:
                found[str(delivery.properties.message_id)] += 1
                delivery.ack()
    return found


def test_one_partition_is_no_partition() -> None:
    assert divided("email", 1).all_entities("email") == Topology().all_entities("email")
    assert divided("email", 4).all_entities("other") == Topology().all_entities("other")


def test_jobs_find_no_way_before_all_partitions_are_bound() -> None:
    entities = divided("email", 2).job_queue_entities("email")
    assert entities == [
        QueueDeclaration("ojs.queue.email", {"x-max-length": 0, "x-max-length-bytes": 2}, is_exact=True),
        ExchangeDeclaration("ojs.exchange.partitions.email", "x-consistent-hash", {"hash-property": "message_id"}),
        QueueDeclaration("ojs.partition.email.0", Topology().job_queue_arguments("email")),
        QueueDeclaration("ojs.partition.email.1", Topology().job_queue_arguments("email")),
        BindingDeclaration("ojs.partition.email.0", "ojs.exchange.partitions.email", "16"),
        BindingDeclaration("ojs.partition.email.1", "ojs.exchange.partitions.email", "16"),
        BindingDeclaration("ojs.exchange.partitions.email", "ojs.exchange.direct", "email", to_exchange=True),
    ]


@pytest.mark.parametrize("settings", [{"partitions": {"a": 0}}, {"partitions": {"a": 257}}])
def test_figures_that_cannot_be(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="partitions of queue a"):
        Topology(**settings)  # type: ignore[arg-type]


def test_a_key_is_not_looked_for_in_other_partitions() -> None:
    with pytest.raises(ValueError, match="deduplicate"):
        Topology(partitions={"a": 2}, deduplicate=True)


@KINDS
async def test_each_job_is_in_one_partition_and_all_are_done(broker_uri: str, queue_name: str, kind: QueueType) -> None:
    topology = divided(queue_name, kind=kind)
    done: Counter[int] = Counter()
    async with Jobs(broker_uri, topology=topology) as jobs:

        @jobs.handler(
            "spread.run", queue=queue_name, retry=Retry(initial_interval=timedelta(seconds=1), max_attempts=2)
        )
        async def run(number: int) -> None:
            done[number] += 1
            if number == 0 and done[number] == 1:
                raise ValueError("once")

        await jobs.push_many([run.job(number) for number in range(100)])
        found = await counts(broker_uri, [*topology.job_queues(queue_name), topology.job_queue(queue_name)])
        assert sum(found) == 100
        assert min(found[:4]) > 0
        assert found[4] == 0
        async with connect(broker_uri) as connection:
            whole = await job_queue_counts(Inspector(connection), topology, queue_name)
            assert whole is not None
            assert whole.message_count == 100
            checked = await check_topology(connection, topology, [queue_name])
            # The queues that all share may be of another type here.
            assert [one for one in checked if one.is_wrong and queue_name in one.name] == []
        async with Worker(jobs, concurrency=5) as worker:
            await until(lambda: worker.counts["completed"] == 100)
            assert worker.is_consuming
            worker.quiet()
            await until(lambda: not worker.is_consuming)
            await jobs.push_many([run.job(number) for number in range(100, 110)])
            worker.resume()
            await until(lambda: worker.counts["completed"] == 110)
    assert done == Counter({**dict.fromkeys(range(110), 1), 0: 2})


async def test_other_numbers_of_partitions_are_refused(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri, topology=divided(queue_name, 2)) as jobs:
        await jobs.push("spread.run", [], queue=queue_name)
    for other in (Topology(), divided(queue_name, 3)):
        async with Jobs(broker_uri, topology=other) as jobs:
            with pytest.raises(TopologyConflict, match="exists with other properties"):
                await jobs.push("spread.run", [], queue=queue_name)
    assert sum(await counts(broker_uri, divided(queue_name, 3).job_queues(queue_name))) == 1


async def test_an_undivided_queue_is_not_divided_by_the_way(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        await jobs.push("spread.run", [], queue=queue_name)
    async with Jobs(broker_uri, topology=divided(queue_name)) as jobs:
        with pytest.raises(TopologyConflict, match="exists with other properties"):
            await jobs.push("spread.run", [], queue=queue_name)
    async with connect(broker_uri) as connection:
        declarer = TopologyDeclarer(await connection.channel(), divided(queue_name))
        with pytest.raises(TopologyConflict, match="exists with other properties"):
            await declarer.ensure_queue(queue_name, as_found=True)
    async with Jobs(broker_uri) as jobs:
        await jobs.push("spread.run", [], queue=queue_name)
    names = [f"ojs.queue.{queue_name}", *divided(queue_name).job_queues(queue_name)]
    assert await counts(broker_uri, names) == [2, 0, 0, 0, 0]


@KINDS
async def test_a_coordinator_that_does_not_know_makes_no_copies(
    broker_uri: str, queue_name: str, kind: QueueType, eye: Eye
) -> None:
    """It uses queues as they are, and binds the one that stands in for the partitions."""
    topology = divided(queue_name, kind=kind)
    async with Jobs(broker_uri, topology=topology) as jobs:
        await jobs.push("spread.run", [], queue=queue_name)
        async with (
            Jobs(broker_uri, topology=Topology(queue_type=kind)) as others,
            Coordinator(others, queues=[queue_name]),
        ):
            await jobs.push_many([NewJob("spread.run", [], {"queue": queue_name}) for _ in range(9)])
    # A program that knows nothing of it binds the stand-in.
    await eye.call(lambda: eye.channel.queue_bind(f"ojs.queue.{queue_name}", "ojs.exchange.direct", queue_name))
    await eye.publish("ojs.exchange.direct", queue_name, b"{}")
    found = await counts(broker_uri, [*topology.job_queues(queue_name), topology.job_queue(queue_name)])
    assert sum(found) == 11
    assert found[-1] == 0


async def test_dead_letters_come_back_to_a_partition(broker_uri: str, queue_name: str) -> None:
    topology = divided(queue_name)
    async with Jobs(broker_uri, topology=topology) as jobs:

        @jobs.handler("spread.die", queue=queue_name, retry=Retry(max_attempts=1))
        async def die() -> None:
            raise ValueError("dead")

        await die.push()
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["discarded"] == 1)
        async with DeadLetters(jobs, queue_name) as dead:
            assert await dead.retry([job.id for job in await dead.all()]) == 1
    assert sum(await counts(broker_uri, topology.job_queues(queue_name))) == 1


async def test_a_killed_worker_loses_nothing(broker_uri: str, queue_name: str, repository: Path) -> None:
    topology = divided(queue_name)
    program = f"""
import asyncio
from waybill.ojs import Jobs, Topology, Worker

jobs = Jobs({broker_uri!r}, topology=Topology(partitions={{{queue_name!r}: 4}}))

@jobs.handler("spread.kill", queue={queue_name!r})
async def run(number: int) -> None:
    print(number, flush=True)
    await asyncio.sleep(3600)

asyncio.run(Worker(jobs, concurrency=8).run())
"""
    async with Jobs(broker_uri, topology=topology) as jobs:
        done: Counter[int] = Counter()

        @jobs.handler("spread.kill", queue=queue_name, retry=Retry(initial_interval=timedelta(seconds=1)))
        async def run(number: int) -> None:
            done[number] += 1

        await jobs.push_many([run.job(number) for number in range(40)])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, env=program_environment(), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(8):
            assert await process.stdout.readline()
        process.kill()
        await process.wait()
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["completed"] >= 40)
        assert set(done) == set(range(40))
    assert sum(await counts(broker_uri, topology.job_queues(queue_name))) == 0


@KINDS
async def test_the_number_of_partitions_changes(
    broker_uri: str, queue_name: str, kind: QueueType, queue_names: Callable[[], str]
) -> None:
    prefix = f"p-{queue_names()}."
    ids: set[str] = set()
    steps = [divided(queue_name, count, prefix=prefix, kind=kind) for count in (1, 4, 2, 1)]
    for old, new in pairwise(steps):
        async with Jobs(broker_uri, topology=old) as jobs:
            pushed = await jobs.push_many([NewJob("spread.wait", [], {"queue": queue_name}) for _ in range(20)])
            ids |= {job.id for job in pushed}
        async with Migration(broker_uri, old, new) as migration:
            planned = await migration.plan([queue_name])
            assert sum(move.count for move in planned) == len(ids)
            assert await migration.run([queue_name]) == len(ids)
            assert await migration.plan([queue_name]) == []
        found = await counts(broker_uri, new.job_queues(queue_name))
        assert sum(found) == len(ids)
        assert min(found) > 0
        left = [*set(old.job_queues(queue_name)) - set(new.job_queues(queue_name)), new.job_queue(queue_name)]
        assert sum(await counts(broker_uri, left[:-1])) == 0
        async with connect(broker_uri) as connection:
            standings = {one.standing for one in await check_topology(connection, new, [queue_name])}
            assert standings == {Standing.AGREES}
    assert await take_all(broker_uri, steps[-1].job_queues(queue_name)) == Counter(dict.fromkeys(ids, 1))
    await _remove(broker_uri, prefix)


async def test_a_killed_change_of_partitions_is_finished_by_the_next(
    broker_uri: str, queue_name: str, queue_names: Callable[[], str]
) -> None:
    prefix = f"p-{queue_names()}."
    old, new = divided(queue_name, 1, prefix=prefix), divided(queue_name, 3, prefix=prefix)
    async with Jobs(broker_uri, topology=old) as jobs:
        wait = [NewJob("spread.wait", [], {"queue": queue_name}) for _ in range(300)]
        ids = {envelope.id for envelope in await jobs.push_many(wait)}
    command = [sys.executable, "-m", "waybill", "topology", "migrate", queue_name, "--uri", broker_uri]
    command += ["--prefix", prefix, "--to-partitions", f"{queue_name}=3", "--json"]
    environment = program_environment()
    holding = f"{prefix}ojs.queue.{queue_name}.migrating"
    async with connect(broker_uri) as connection:
        inspector = Inspector(connection)
        for watched, least in ((holding, 50), (new.job_queues(queue_name)[1], 20)):
            process = await asyncio.create_subprocess_exec(
                *command, "--rate", "400", env=environment, stdout=asyncio.subprocess.DEVNULL
            )
            while (held := await inspector.queue(watched)) is None or held.message_count < least:
                assert process.returncode is None, "it has ended before it could be killed"
                await asyncio.sleep(0.005)
            process.kill()
            await process.wait()
    again = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.DEVNULL)
    assert await again.wait() == 0
    found = await take_all(broker_uri, new.job_queues(queue_name))
    assert set(found) == ids
    assert found.total() <= len(ids) + 2 * WINDOW
    await _remove(broker_uri, prefix)


async def _remove(uri: str, prefix: str) -> None:
    """Remove the ladder below a prefix: it has many queues."""
    async with connect(uri) as connection, await connection.channel() as channel:
        for entity in Topology(prefix=prefix).ladder_entities():
            if isinstance(entity, QueueDeclaration):
                await channel.delete_queue(entity.name)
