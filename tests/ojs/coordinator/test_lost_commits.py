"""A database that has lost its last transactions, as a replica that lacked them when it was promoted.

The events are folded again, and nobody acts on what the database says before that is noticed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
import sqlalchemy as sql
from msgspec import structs

from tests.client.breaking import until
from tests.ojs.coordinator.test_job_store import event
from tests.ojs.databases import make_database
from waybill.client import ConnectionLost
from waybill.ojs import Coordinator, Jobs, Topology, Worker, chain
from waybill.ojs.coordinator.claims import Claim
from waybill.ojs.coordinator.database.position import stream_of
from waybill.ojs.coordinator.database.tables import JOBS, METADATA, POSITIONS
from waybill.ojs.coordinator.event_reader import EventReader
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.sql_job_store import SqlJobStore
from waybill.ojs.coordinator.stream_identity import StreamMark, StreamReplaced
from waybill.ojs.spec.event_partitions import partition_of_job
from waybill.ojs.spec.identifiers import derived_id, push_event_id

Begin = Callable[[EventReader, int, StreamMark | None], Awaitable[None]]
Snapshot = Mapping[str, Sequence[Mapping[str, Any]]]


def snapshot(store: JobStore) -> Snapshot:
    """All that a database has now."""
    assert isinstance(store, SqlJobStore)
    with store._engine.connect() as connection:
        return {
            table.name: [dict(row._mapping) for row in connection.execute(sql.select(table))]
            for table in METADATA.sorted_tables
        }


def lose(store: JobStore, kept: Snapshot) -> None:
    """Let the database have no more than that."""
    assert isinstance(store, SqlJobStore)
    with store._engine.begin() as connection:
        for table in METADATA.sorted_tables:
            connection.execute(sql.delete(table))
            if kept[table.name]:
                connection.execute(sql.insert(table), list(kept[table.name]))


@pytest.mark.plain_source
def test_what_a_database_has_lost_is_neither_recalled_nor_overlooked(database: str) -> None:
    messages = [(offset, [event("job.enqueued", f"job{offset}", 1)]) for offset in range(4)]
    with SqlJobStore(database) as owner, SqlJobStore(database) as follower:
        owner.apply(messages[:2])
        kept = snapshot(owner)
        owner.apply(messages[2:])
        assert follower.follow(0) == 4
        follower.check()
        lose(owner, kept)
        with pytest.raises(StreamReplaced, match="its position is 2, after 4"):
            follower.recall(messages[3][1])
        # An epoch has begun: the other one need not compare anything.
        with pytest.raises(StreamReplaced, match="another coordinator"):
            owner.check()


def test_another_push_of_a_claimed_job_does_not_reopen_it(database: str) -> None:
    """A leader that sees old claims pushes their jobs again: such a copy does not run, but its event comes last."""
    job_id = derived_id(1_700_000_000_000, "workflow", "a", "1")
    first, second = (
        structs.replace(event("job.enqueued", job_id, second), id=push_event_id(job_id)) for second in (1, 5)
    )
    life = [first, event("job.started", job_id, 2, attempt=1), event("job.completed", job_id, 3, attempt=1)]
    with SqlJobStore(database) as store:
        for offset, one in enumerate((*life, second)):
            store.apply([(offset, [one])])
        [found] = store.many([job_id])
        assert (found.state, found.enqueued_at) == ("completed", first.time)
        # As it is when a dead letter is tried again.
        store.apply([(4, [event("job.enqueued", job_id, 9)])])
        [found] = store.many([job_id])
        assert (found.state, found.ended_at) == ("available", None)


async def run_chain(
    uri: str, queue: str, database: str, monkeypatch: pytest.MonkeyPatch, is_moment: Callable[[Claim], bool]
) -> list[int]:
    """Run chains of two jobs. What the database learns between a moment of a claim and its next fold is lost once.

    Such a moment may be missed, so that another chain is needed. Returns which step ran. All jobs end.
    """
    ran: list[int] = []
    lost: list[str] = []
    async with Jobs(uri, create_queues=True) as jobs:

        @jobs.handler("lost.step", queue=queue)
        async def step(number: int) -> None:
            ran.append(number)

        folded = JobView.folded

        async def folded_and_lost(self: JobView, event_id: str, record: Callable[[], None]) -> None:
            kept = await self.read(snapshot)
            claims = await self.listed("claim/", Claim, 9)
            await folded(self, event_id, record)
            if not lost and any(is_moment(one) for _, one in claims):
                lost.append(event_id)
                await self.read(lambda store: lose(store, kept))

        async with Coordinator(jobs, queues=[queue], database=database) as coordinator:
            monkeypatch.setattr(JobView, "folded", folded_and_lost)
            async with Worker(jobs, queues=[queue]), asyncio.timeout(60):
                while not lost:
                    handle = await chain(step.job(1), step.job(2)).push(jobs)
                    assert (await handle.wait(timeout=60)).state == "completed"
            async with asyncio.timeout(30):
                while (await coordinator.view.read(lambda store: store.counts())).get((queue, "completed")) != len(ran):
                    await asyncio.sleep(0.01)
    return ran


async def test_a_copy_is_not_refused_because_its_admission_was_lost(
    waybill_uri: str, queue_name: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.worker.admission.ANSWER_SECONDS", 0.5)
    ran = await run_chain(waybill_uri, queue_name, database, monkeypatch, lambda one: one.is_pushed and not one.copy)
    assert ran == [1, 2] * (len(ran) // 2)


def failing_once(begin: Begin) -> Begin:
    """A connection that is lost while reading begins anew."""
    calls = iter((False,))

    async def begin_or_fail(self: EventReader, offset: int, mark: StreamMark | None) -> None:
        if not next(calls, True):
            raise ConnectionLost("as it was told to")
        await begin(self, offset, mark)

    return begin_or_fail


async def test_a_loss_is_noticed_though_no_event_comes(
    waybill_uri: str, queue_name: str, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.job_view.SHARE_SECONDS", 0.05)
    monkeypatch.setattr("waybill.ojs.coordinator.stream_fold.RETRY_SECONDS", 0.01)
    topology = Topology(prefix=f"{queue_name}.", event_partitions=2)
    async with Jobs(waybill_uri, topology=topology, create_queues=True) as jobs:

        @jobs.handler("lost.plain", queue=queue_name)
        async def plain(number: int) -> None: ...

        async with Coordinator(jobs, queues=[queue_name], database=make_database(postgresql)) as coordinator:
            view = coordinator.view
            await until(lambda: len(view.lags()) == 2)
            before = await view.read(snapshot)
            async with Worker(jobs, queues=[queue_name]):
                pushed = [await plain.push(number) for number in range(20)]
                for job in pushed:
                    await view.settled(job.id, lambda found: found is not None and found.state == "completed", 30)
            ids = [job.id for job in pushed if partition_of_job(job.id, 2) == 1]
            assert ids
            # Only what the second partition has brought is lost, and nothing comes in it any more.
            kept = dict(await view.read(snapshot))
            second = stream_of(1)
            kept[POSITIONS.name] = [
                one
                for positions, is_second in ((kept, False), (before, True))
                for one in positions[POSITIONS.name]
                if (one["stream"] == second) is is_second
            ]
            others = [one for one in kept[JOBS.name] if one["id"] not in ids]
            # One whose events the stream does not have any more.
            kept[JOBS.name] = [*others, {**others[0], "id": "of-old"}]
            monkeypatch.setattr(EventReader, "begin", failing_once(EventReader.begin))
            await view.read(lambda store: lose(store, kept))
            assert await view.many(ids) == []
            async with asyncio.timeout(30):
                while {one.state for one in await view.many(ids)} != {"completed"}:
                    await asyncio.sleep(0.01)
            assert len(await view.many([*ids, "of-old"])) == len(ids) + 1, "nothing was forgotten"
