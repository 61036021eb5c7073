"""Jobs move to other names, another prefix and another queue type, on both brokers, and none is lost on the way."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.ojs.eye import Eye, until
from tests.program_environment import program_environment
from waybill.client import Inspector, connect
from waybill.ojs import WEB, DeadLetters, Jobs, Migration, MigrationBlocked, NewJob, Retry, Standing, Topology, Worker
from waybill.ojs import check_topology as check
from waybill.ojs.topology.declarations import QueueDeclaration
from waybill.ojs.topology.mover import WINDOW

OLD = Topology(prefix="m.")
"""A prefix of its own: the delay ladder is shared by all queues of one."""


@pytest.fixture
async def prefix(broker_uri: str, queue_name: str) -> AsyncIterator[str]:
    """A prefix that is this test's; what stands below it is removed, as a ladder has many queues."""
    name = f"m-{queue_name}."
    yield name
    async with connect(broker_uri) as connection:
        channel = await connection.channel()
        for entity in Topology(prefix=name).ladder_entities():
            if isinstance(entity, QueueDeclaration):
                await channel.delete_queue(entity.name)


async def fill(uri: str, topology: Topology, queue: str) -> dict[str, str]:
    """Ten jobs that wait, two that are dead, and one that is scheduled; their ids with what they are."""
    ids: dict[str, str] = {}
    async with Jobs(uri, topology=topology) as jobs:

        @jobs.handler("move.die", queue=queue, retry=Retry(max_attempts=1))
        async def die() -> None:
            raise ValueError("dead")

        ids |= {job.id: "dead" for job in await jobs.push_many([die.job(), die.job()])}
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["discarded"] == 2)
        for number in range(10):
            ids[(await jobs.push("move.wait", [number], queue=queue, priority=number)).id] = "waits"
        due = datetime.now(UTC) + timedelta(seconds=1000)
        ids[(await jobs.push("move.wait", [], queue=queue, scheduled_at=due)).id] = "scheduled"
    return ids


async def look(uri: str, topology: Topology, queue: str) -> dict[str, str]:
    """The ids of the waiting and dead jobs of a queue, by what they are; the waiting ones are taken."""
    found: dict[str, str] = {}
    async with Jobs(uri, topology=topology) as jobs, DeadLetters(jobs, queue) as dead:
        found |= {job.id: "dead" for job in await dead.all()}
        channel = await dead._open.connection.channel()
        while (delivery := await channel.get(topology.job_queue(queue))) is not None:
            found[str(delivery.properties.message_id)] = "waits"
            delivery.ack()
        for level in range(28):
            while (delivery := await channel.get(topology.delay_level(level))) is not None:
                found[str(delivery.properties.message_id)] = "scheduled"
                assert level in {8, 9}
                bits = int("".join(delivery.routing_key.split(".")[:28]), 2)
                assert 950 < bits <= 1000
                delivery.ack()
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda old: replace(old, names=WEB),
        lambda old: replace(old, queue_type="quorum"),
        lambda old: replace(old, names=WEB, queue_type="quorum", prefix="x" + old.prefix),
    ],
    ids=["names", "type", "all"],
)
async def test_every_job_is_there_afterwards(
    broker_uri: str, queue_name: str, prefix: str, change: Callable[[Topology], Topology]
) -> None:
    old = Topology(prefix=prefix)
    new = change(old)
    ids = await fill(broker_uri, old, queue_name)
    progress: list[int] = []
    async with Migration(broker_uri, old, new) as migration:
        planned = await migration.plan([queue_name])
        assert {move.source: move.count for move in planned}[old.job_queue(queue_name)] == 10
        moved = await migration.run([queue_name], on_progress=progress.append, delete=True)
        assert moved == progress[-1] >= 12
        assert await migration.plan([queue_name]) == []
    async with connect(broker_uri) as connection:
        standings = {finding.standing for finding in await check(connection, new, [queue_name])}
        assert standings == {Standing.AGREES}
    assert await look(broker_uri, new, queue_name) == ids


async def test_old_producers_reach_the_queue_that_kept_its_name(
    broker_uri: str, eye: Eye, queue_name: str, prefix: str
) -> None:
    old = Topology(prefix=prefix)
    await fill(broker_uri, old, queue_name)
    async with Migration(broker_uri, old, replace(old, names=WEB)) as migration:
        await migration.run([queue_name])
    for exchange in ("ojs.exchange.direct", "ojs.direct"):
        await eye.publish(prefix + exchange, queue_name, b"{}")
    assert await eye.count(f"{prefix}ojs.queue.{queue_name}") == 12


async def test_a_queue_that_is_consumed_is_not_touched(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs, Worker(jobs, queues=[queue_name]):
        async with Migration(broker_uri, Topology(), Topology(names=WEB)) as migration:
            with pytest.raises(MigrationBlocked, match=f"ojs.queue.{queue_name} has 1 consumers"):
                await migration.run([queue_name])
        async with connect(broker_uri) as connection:
            found = await check(connection, Topology(), [queue_name])
    assert [finding for finding in found if finding.is_wrong] == []


async def test_a_check_names_what_is_missing_and_what_differs(broker_uri: str, eye: Eye, queue_name: str) -> None:
    await eye.call(lambda: eye.channel.queue_declare(f"ojs.queue.{queue_name}", durable=True))
    async with connect(broker_uri) as connection:
        found = {finding.name: finding for finding in await check(connection, Topology(), [queue_name])}
    assert found[f"ojs.queue.{queue_name}"].standing is Standing.DIFFERENT
    assert "x-dead-letter-exchange" in found[f"ojs.queue.{queue_name}"].detail
    assert found[f"ojs.queue.dlx.{queue_name}"].standing is Standing.MISSING
    assert found[f"ojs.queue.retry.{queue_name}.1000"].standing is Standing.ON_DEMAND
    assert not await eye.exists(f"ojs.queue.dlx.{queue_name}"), "a check makes nothing"


async def test_a_killed_migration_is_finished_by_the_next(
    broker_uri: str, queue_name: str, prefix: str, repository: Path
) -> None:
    old = Topology(prefix=prefix)
    async with Jobs(broker_uri, topology=old) as jobs:
        wait = [NewJob("move.wait", [number], {"queue": queue_name}) for number in range(300)]
        ids = {envelope.id for envelope in await jobs.push_many(wait)}
    command = [sys.executable, "-m", "waybill", "topology", "migrate", queue_name, "--uri", broker_uri]
    command += ["--prefix", prefix, "--to-names", "web", "--rate", "400", "--json"]
    environment = program_environment()
    holding = f"{prefix}ojs.queue.{queue_name}.migrating"
    async with connect(broker_uri) as connection:
        channel = await connection.channel()
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.DEVNULL)
        inspector = Inspector(connection)
        while (held := await inspector.queue(holding)) is None or held.message_count < 50:
            await asyncio.sleep(0.005)
        process.kill()
        await process.wait()
        again = await asyncio.create_subprocess_exec(*command[:-3], env=environment, stdout=asyncio.subprocess.DEVNULL)
        assert await again.wait() == 0
        found: list[str] = []
        while (delivery := await channel.get(f"{prefix}ojs.queue.{queue_name}")) is not None:
            found.append(str(delivery.properties.message_id))
            delivery.ack()
    assert set(found) == ids
    assert len(found) <= len(ids) + WINDOW
