"""The event stream in partitions: where events go, who folds what, and what is refused."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32

import pytest
import sqlalchemy as sql

from tests.client.breaking import until
from tests.ojs.coordinator.test_job_store import event
from tests.ojs.databases import make_database
from waybill.client import connect
from waybill.ojs import Topology
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.database.members import Member, share_of
from waybill.ojs.coordinator.database.tables import JOBS
from waybill.ojs.coordinator.job_counts import JobCounts
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.coordinator.sql_job_store import SqlJobStore
from waybill.ojs.coordinator.stream_identity import StreamReplaced
from waybill.ojs.errors import DatabaseUnusable
from waybill.ojs.spec.event_partitions import partition_of, partition_of_job
from waybill.ojs.spec.events import JobEnqueued, ReceivedEvent, encode_event, make_event, read_events
from waybill.ojs.spec.identifiers import derived_id, new_id
from waybill.ojs.workflow.numbering import member_job_id, new_workflow_id, node_job_id, nodes_prefix

Messages = list[tuple[int, list[ReceivedEvent]]]


def ids_in(partition: int, count: int, partitions: int = 2) -> list[str]:
    """New ids of jobs whose events belong to a partition."""
    found: list[str] = []
    while len(found) < count:
        job_id = new_id()
        if partition_of_job(job_id, partitions) == partition:
            found.append(job_id)
    return found


def life(job_id: str, second: int = 0) -> list[ReceivedEvent]:
    kinds = "job.enqueued", "job.started", "job.completed"
    return [event(kind, job_id, second + at, attempt=1, queue="q") for at, kind in enumerate(kinds)]


def test_the_partition_of_a_job_never_changes() -> None:
    job_id = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
    assert partition_of_job(job_id, 1000) == crc32(job_id.encode()) % 1000 == 100
    assert partition_of("job.started", job_id, 1000) == 100
    assert {partition_of(kind, job_id, 1000) for kind in ("cron.claimed", "worker.started", "claim.pushed")} == {0}
    assert partition_of_job("\ud800 any text \0", 7) in range(7)


def test_events_that_depend_on_each_others_order_are_in_one_partition() -> None:
    workflow = new_workflow_id()
    jobs = [
        derived_id(1_700_000_000_000, "cron", "nightly", "tick"),
        node_job_id(nodes_prefix(workflow, 0), 3),
        node_job_id(nodes_prefix(workflow, 1), 3),
        member_job_id(workflow, 70_000),
    ]
    assert {partition_of("job.completed", one, 64) for one in jobs} == {0}


def test_every_partition_is_folded_by_one_coordinator_and_the_first_by_the_leader() -> None:
    for count in range(1, 6):
        for leader in [None, *range(count)]:
            members = [Member(f"c{number}", number == leader) for number in range(count)]
            shares = [share_of(members, one.id, 4) for one in members]
            assert sorted(number for share in shares for number in share) == [0, 1, 2, 3]
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
            assert 0 in shares[leader or 0]


@pytest.fixture
def two_stores(database: str) -> "Callable[[], tuple[SqlJobStore, SqlJobStore]]":
    return lambda: (SqlJobStore(database, event_partitions=2), SqlJobStore(database, event_partitions=2))


def test_two_coordinators_fold_two_partitions_at_the_same_time(
    two_stores: Callable[[], tuple[SqlJobStore, SqlJobStore]],
) -> None:
    chance = random.Random(5)
    lives = [life(job_id, number) for part in (0, 1) for number, job_id in enumerate(ids_in(part, 60))]
    streams: list[list[ReceivedEvent]] = [[], []]
    for one in lives:
        for found in one:
            # Programs that know no partitions put all of their events into the first.
            own = partition_of(found.type, found.subject, 2)
            streams[0 if chance.random() < 0.3 else own].append(found)
    first, second = two_stores()
    with first, second, ThreadPoolExecutor(2) as pool:

        def fold(store: SqlJobStore, partition: int) -> None:
            events = streams[partition]
            for offset in range(0, len(events), 7):
                store.apply([(offset, events[offset : offset + 7])], partition=partition)

        followed = JobCounts()
        done = [pool.submit(fold, first, 0), pool.submit(fold, second, 1)]
        for future in done:
            future.result(60)
            followed.take(first.count_changes(followed.mark))
        followed.take(first.count_changes(followed.mark))
        assert first.counts() == {("q", "completed"): len(lives)} == followed.by_pair
        assert {second.get(one[0].subject).state for one in lives} == {"completed"}  # type: ignore[union-attr]


def test_a_unique_key_is_reserved_once_whatever_the_partition(postgresql: str) -> None:
    database = make_database(postgresql)
    wish = {"unique_key": "", "states": ["pending", "available", "active"], "reserved_until": "2199-01-01T00:00:00Z"}
    reservations: list[list[ReceivedEvent]] = [
        [event("job.reserved", job_id, 1, **wish | {"unique_key": f"key{number}"}) for number, job_id in enumerate(ids)]
        for ids in (ids_in(0, 40), ids_in(1, 40))
    ]
    stores = [SqlJobStore(database, event_partitions=2) for _ in range(2)]
    with stores[0], stores[1], ThreadPoolExecutor(2) as pool:

        def fold(partition: int) -> list[bool]:
            verdicts: dict[str, object] = {}
            events = reservations[partition]
            # The keys in different orders: nobody may wait for ever.
            for offset, found in enumerate(events if partition else reversed(events)):
                verdicts |= stores[partition].apply([(offset, [found])], partition=partition)
            return [verdicts[found.id] is None for found in events]

        won = list(pool.map(fold, (0, 1)))
        assert [sum(pair) for pair in zip(*won, strict=True)] == [1] * 40
        again = stores[0].recall(reservations[1])
        assert [again[found.id] is None for found in reservations[1]] == won[1]


def test_a_reservation_does_not_overwrite_the_jobs_that_it_competes_with(
    two_stores: Callable[[], tuple[SqlJobStore, SqlJobStore]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (there,), (new,) = ids_in(0, 1), ids_in(1, 1)
    first, second = two_stores()
    with first, second:
        first.apply([(0, [event("job.enqueued", there, 1, queue="q", unique_key="k")])])
        load = second._same

        def load_late(*arguments: object) -> object:
            found = load(*arguments)  # type: ignore[arg-type]
            # Its row was read, and changes before the fold is over.
            monkeypatch.setattr(second, "_same", load)
            if second._partitions is not None:
                first.apply([(1, [event("job.started", there, 2, queue="q", attempt=1)])])
            return found

        monkeypatch.setattr(second, "_same", load_late)
        wish = {"unique_key": "k", "states": ["available", "active"]}
        verdicts = second.apply([(0, [event("job.reserved", new, 3, **wish)])], partition=1)
        assert [found and found.id for found in verdicts.values()] == [there]
        if second._partitions is not None:
            assert first.get(there).state == "active"  # type: ignore[union-attr]


def test_positions_and_marks_are_kept_by_partition(
    two_stores: Callable[[], tuple[SqlJobStore, SqlJobStore]],
) -> None:
    first, second = two_stores()
    (one,), (other,) = ids_in(0, 1), ids_in(1, 1)
    with first, second:
        first.apply([(4, life(one))], partition=0)
        first.apply([(9, life(other))], partition=1)
        assert [second.begin(number)[0] for number in (0, 1)] == [5, 10]
        assert [second.follow(number) for number in (0, 1)] == [5, 10]
        # What another has folded is skipped, by who folds late as well.
        second.apply([(9, [event("job.cancelled", other, 1)])], partition=1)
        assert second.get(other).state == "completed"  # type: ignore[union-attr]
        second.clear()
        for partition, job_id in enumerate((one, other)):
            with pytest.raises(StreamReplaced):
                first.apply([(10, life(job_id))], partition=partition)
        with pytest.raises(StreamReplaced):
            first.follow(1)
        first.begin_anew(0)
        first.begin_anew(1)
        assert [first.begin(number)[0] for number in (0, 1)] == [0, 0], "begun anew once, not once for each partition"
        first.apply([(0, life(one))])
        assert first.counts() == {("q", "completed"): 1}


def test_in_memory_all_partitions_begin_anew_together() -> None:
    (one,), (other,) = ids_in(0, 1), ids_in(1, 1)
    store = MemoryJobStore()
    assert [store.begin(number)[0] for number in (0, 1)] == [0, 0]
    store.apply([(0, life(one))])
    store.apply([(3, life(other))], partition=1)
    assert [store.begin(number)[0] for number in (0, 1)] == [1, 4]
    store.begin_anew(1)
    store.begin(1)
    with pytest.raises(StreamReplaced):
        store.apply([(1, life(one))])
    store.apply([(0, life(other))], partition=1)
    store.begin_anew(0)
    assert (store.begin(0)[0], store.counts()) == (0, {("q", "completed"): 1}), "nothing is forgotten twice"


def test_what_a_database_has_lost_of_a_partition_is_folded_again_by_all(
    two_stores: Callable[[], tuple[SqlJobStore, SqlJobStore]],
) -> None:
    first, second = two_stores()
    ids = ids_in(1, 4)
    messages: Messages = [(offset, life(job_id)) for offset, job_id in enumerate(ids)]
    with first, second:
        first.apply(messages[:3], partition=1)
        assert second.follow(1) == 3
        with first._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE waybill_position SET next_offset = 1 WHERE stream = 'events-1'")
            connection.execute(sql.delete(JOBS).where(JOBS.c.id > ids[0]))
        with pytest.raises(StreamReplaced, match="its position is 1, after 3"):
            second.follow(1)
        with pytest.raises(StreamReplaced):
            first.apply(messages[3:], partition=1)
        second.begin_anew(1)
        assert second.begin(1)[0] == 1
        second.apply(messages[1:], partition=1)
        assert [second.get(job_id).state for job_id in ids] == ["completed"] * 4  # type: ignore[union-attr]


def test_the_number_of_partitions_can_be_raised_and_not_lowered(database: str) -> None:
    with SqlJobStore(database) as old:
        old.apply([(0, life("any"))])
        with SqlJobStore(database, event_partitions=3) as new:
            assert [new.begin(number)[0] for number in range(3)] == [1, 0, 0]
            assert new.counts() == {("q", "completed"): 1}, "what is known stays"
            with pytest.raises(StreamReplaced):
                old.apply([(1, life("other"))])
            old.begin_anew()
            with pytest.raises(DatabaseUnusable, match="event_partitions=3"):
                old.begin()
            assert new.counts() == {("q", "completed"): 1}
    with pytest.raises(DatabaseUnusable, match="3 event partitions, and this coordinator knows of 2"):
        SqlJobStore(database, event_partitions=2)


def test_coordinators_share_partitions_until_one_dies(postgresql: str) -> None:
    database = make_database(postgresql)
    with SqlJobStore(database, event_partitions=4) as one, SqlJobStore(database, event_partitions=4) as two:
        assert one.share("one", leads=False) == {0, 1, 2, 3}
        assert two.share("two", leads=True) == {0, 2}
        assert one.share("one", leads=False) == {1, 3}
        with one._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE waybill_coordinator SET seen_at = seen_at - 7 WHERE id = 'two'")
        assert one.share("one", leads=False) == {0, 1, 2, 3}
        assert two.share("two", leads=False) == {1, 3}
        one.leave("one")
        assert two.share("two", leads=False) == {0, 1, 2, 3}


async def test_events_are_in_the_partition_of_their_job_in_order(broker_uri: str, queue_name: str) -> None:
    topology = Topology(prefix=f"{queue_name}.", event_partitions=3)
    jobs = [new_id() for _ in range(300)]
    seen: defaultdict[int, list[ReceivedEvent]] = defaultdict(list)
    sizes: Counter[int] = Counter()
    broker = await BrokerConnection.open(broker_uri, topology, "/test", None)
    confirmed: list[int] = []
    try:
        await broker.declarer.ensure_shared()
        await broker.declarer.ensure_shared()
        events = broker.events
        for turn in range(3):
            for job_id in jobs:
                events.record_started(job_id, events.timestamp(), "a.b", queue_name, turn + 1, "w")
                if turn == 2:
                    events.record(job_id, JobEnqueued(job_type="a.b", queue=queue_name, priority=0))
            events.record("cron", JobEnqueued(job_type="a.b", queue=queue_name, priority=0))
            events.after(lambda turn=turn: confirmed.append(turn))  # type: ignore[misc]
            await asyncio.sleep(0)
        events.mark(2, "evt_mark")
        assert await events.drain(30)
        assert confirmed == [0, 1, 2]
        # A program that knows no partitions.
        async with connect(broker_uri) as other:
            channel = await other.channel(confirms=True)
            data = JobEnqueued(job_type="a.b", queue="q", priority=0)
            foreign = encode_event(make_event("/x", "2025-01-01T00:00:00Z", "foreign", data, "f")).encode()
            await channel.publish(foreign, exchange=topology.events, routing_key="job.started", mandatory=True)
            reading = await other.channel(prefetch_count=100)

            def take(partition: int) -> "Callable[[object], None]":
                def took(delivery: object) -> None:
                    found = read_events(delivery.body)[0]  # type: ignore[attr-defined]
                    seen[partition] += found
                    sizes[partition] += 1
                    delivery.ack()  # type: ignore[attr-defined]

                return took

            for number, name in enumerate(topology.event_streams):
                await reading.consume(name, take(number), arguments={"x-stream-offset": "first"})
            await until(lambda: sum(map(len, seen.values())) >= 1200 + 3 + 2)
    finally:
        await broker.close()
    assert [one.id for one in seen[2] if one.type == "view.marked"] == ["evt_mark"]
    assert [one.id for one in seen[0] if one.subject == "foreign"] == ["f"]
    for number, found in seen.items():
        mine = [one for one in found if one.subject not in {"foreign", "cron"} and one.type.startswith("job.")]
        assert {partition_of(one.type, one.subject, 3) for one in mine} == {number}
        attempts: defaultdict[str, list[object]] = defaultdict(list)
        for one in mine:
            attempts[one.subject].append(one.data.get("attempt"))
        assert all(order == [1, 2, 3, None] for order in attempts.values())
    assert all(sizes[number] < len(seen[number]) for number in range(3)), "many events in one message"
