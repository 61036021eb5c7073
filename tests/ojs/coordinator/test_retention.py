"""Jobs that have ended long ago are forgotten, and no others; PostgreSQL drops their partition."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.ojs.coordinator.test_job_store import ERROR
from tests.ojs.databases import make_database
from waybill.ojs.coordinator.database import partitions, retention
from waybill.ojs.coordinator.job_store import JobFilter, JobStore
from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.coordinator.sql_job_store import SqlJobStore
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import derived_id
from waybill.ojs.spec.timestamps import format_timestamp

NOW = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
KEEP_DAYS = 3


def id_of(days_ago: float, number: int) -> str:
    stamp = int((NOW - timedelta(days=days_ago)).timestamp() * 1000)
    return f"{stamp >> 16:08x}-{stamp & 0xFFFF:04x}-7000-8000-{number:012x}"


def event(kind: str, job_id: str, days_ago: float, **data: object) -> ReceivedEvent:
    time = format_timestamp(NOW - timedelta(days=days_ago))
    return ReceivedEvent(f"evt_{job_id}_{kind}", kind, "/test", time, job_id, {"job_type": "a", "queue": "q", **data})


def ended(job_id: str, days_ago: float, ended_days_ago: float | None = None) -> list[ReceivedEvent]:
    end = days_ago if ended_days_ago is None else ended_days_ago
    return [event("job.enqueued", job_id, days_ago), event("job.completed", job_id, end, attempt=1)]


@pytest.fixture
def kept(database: str) -> Iterator[SqlJobStore]:
    with SqlJobStore(database, KEEP_DAYS) as store:
        yield store


def fill(store: JobStore) -> tuple[list[str], list[str]]:
    """Fold the events of eight days; returns the ids that are to go, and those that are to stay."""
    going = [id_of(days_ago, number) for days_ago in range(8, 4, -1) for number in range(50)]
    events = [one for number, job_id in enumerate(going) for one in ended(job_id, 8 - number // 50)]
    failed, old_text = id_of(8, 60), "00-an-id-that-tells-no-time"
    events += [*ended(old_text, 7), event("job.enqueued", failed, 8)]
    events.append(event("job.discarded", failed, 7, total_attempts=1, last_error=ERROR))
    going += [failed, old_text]
    waiting, late, unique, retried = (id_of(8, number) for number in range(70, 74))
    young, foreign, future = id_of(1, 1), "zz-waits", id_of(-400, 1)
    events += [event("job.enqueued", waiting, 8, scheduled_at="2099-01-01T00:00:00Z"), *ended(late, 8, 1)]
    events.append(event("job.reserved", unique, 8, unique_key="k", states=["completed"]))
    events += [*ended(unique, 8), *ended(retried, 8), event("job.enqueued", retried, 7.5)]
    events += [*ended(young, 1), event("job.enqueued", foreign, 8), *ended(future, 1)]
    store.apply([(0, events)])
    return going, [waiting, late, unique, retried, young, foreign, future]


def forget_all(store: JobStore) -> int:
    count = 0
    while True:
        found = store.forget_old(NOW)
        count += found.jobs
        if not found.is_more:
            return count


def test_what_has_ended_long_ago_goes_and_nothing_else(
    kept: SqlJobStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "DELETED_AT_ONCE", 7)
    going, staying = fill(kept)
    before = kept.many(staying)
    counts = kept.counts()
    assert len(kept.many(going)) == len(going)
    assert [group.count for group in kept.failures(10)] == [1]
    forget_all(kept)
    assert kept.many(going) == []
    assert kept.many(staying) == before
    assert kept.counts() == counts, "they are counted, as they are in memory"
    assert kept.failures(10) == []
    assert {detail.info.id for detail in kept.page(JobFilter(), "", 100)[0]} == set(staying)
    reserved = event("job.reserved", "again", 0, unique_key="k", states=["completed"])
    assert kept.apply([(1, [reserved])])[reserved.id] == kept.get(staying[2])
    kept.apply([(2, [event("job.completed", staying[0], 0, attempt=1)])])
    job = kept.get(staying[0])
    assert job is not None
    assert job.state == "completed"
    with open_job_store(database) as without_limit:
        assert forget_all(without_limit) == 0


def test_many_that_stay_keep_their_partition(kept: SqlJobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_MOVED", 2)
    going, staying = fill(kept)
    before = kept.many(staying)
    forget_all(kept)
    assert (kept.many(going), kept.many(staying)) == ([], before)


@pytest.fixture
def tables(postgresql: str) -> Iterator[tuple[SqlJobStore, "psycopg.Connection[tuple[str, ...]]"]]:
    """A store in PostgreSQL, and a connection to look at its tables."""
    database = make_database(postgresql)
    with SqlJobStore(database, KEEP_DAYS) as store, psycopg.connect(database.replace("+psycopg", "")) as connection:
        connection.autocommit = True
        yield store, connection


def rows_of(connection: "psycopg.Connection[tuple[str, ...]]") -> dict[str, int]:
    """How many rows there are in each partition."""
    found = connection.execute("SELECT inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = inhrelid"
                               " WHERE inhparent = 'waybill_job'::regclass").fetchall()  # fmt: skip
    counts = {}
    for (name,) in found:
        row = connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchone()  # noqa: S608
        assert row is not None
        counts[name] = int(row[0])
    return counts


def test_days_get_a_partition_each_which_is_dropped_as_a_whole(
    tables: tuple[SqlJobStore, "psycopg.Connection[tuple[str, ...]]"],
) -> None:
    store, connection = tables
    going = [ended(id_of(4 - number / 10, number), 4 - number / 10) for number in range(40)]
    for offset, events in enumerate(going):
        store.apply([(offset, events)])
    before = rows_of(connection)
    assert before[partitions.OTHER] == 0
    assert (len(before), sum(before.values())) == (6, 40), "a day each, and the default one"
    waits = id_of(4, 100)
    store.apply([(100, [event("job.enqueued", waits, 4)])])
    forget_all(store)
    after = rows_of(connection)
    assert set(before) - set(after) == {min(set(before) - {partitions.OTHER})}
    assert after[partitions.OTHER] == 1, "the job that waits has moved"
    job = store.get(waits)
    assert job is not None
    assert job.state == "available"
    plan = "\n".join(
        row[0]
        for row in connection.execute(f"EXPLAIN SELECT * FROM waybill_job WHERE id = '{id_of(2, 1)}'".encode())  # noqa: S608
    )
    assert "Append" not in plan, "one partition is looked at"


def test_a_partition_takes_over_what_came_before_its_time(
    tables: tuple[SqlJobStore, "psycopg.Connection[tuple[str, ...]]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, connection = tables
    in_three_days = id_of(-3, 1)
    store.apply([(0, [event("job.enqueued", in_three_days, 0)])])
    assert rows_of(connection) == {partitions.OTHER: 1}
    monkeypatch.setattr("time.time", (NOW + timedelta(days=3)).timestamp)
    store.apply([(1, [event("job.enqueued", id_of(-3, 2), 0)])])
    assert sorted(rows_of(connection).values()) == [0, 2]
    assert len(store.many([in_three_days, id_of(-3, 2)])) == 2


def test_hostile_ids_make_few_partitions(
    tables: tuple[SqlJobStore, "psycopg.Connection[tuple[str, ...]]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, connection = tables
    ids = ["", "0199_abc-0000", "\ufffd", "ffffffff-ffff", "019b7680", "019b7680'--", *(id_of(n, n) for n in range(40))]
    store.apply([(0, [event("job.enqueued", one, 0) for one in ids if one])])
    assert len(rows_of(connection)) == 1 + partitions.MOST_AT_ONCE
    monkeypatch.setattr(partitions, "MOST", 5)
    for offset, one in enumerate(ids[1:], 1):
        store.apply([(offset, [event("job.started", one, 0, attempt=1)])])
    assert len(rows_of(connection)) == 1 + 5
    assert sum(rows_of(connection).values()) == len(ids) - 1


def test_an_id_of_the_time_0_belongs_to_no_day(postgresql: str) -> None:
    database = make_database(postgresql)
    with SqlJobStore(database) as store, psycopg.connect(database.replace("+psycopg", "")) as connection:
        store.apply([(0, [event("job.enqueued", derived_id(0, "celery", "a-task"), 1)])])
        assert rows_of(connection) == {partitions.OTHER: 1}


def test_a_partition_that_cannot_be_made_holds_nothing_up(
    tables: tuple[SqlJobStore, "psycopg.Connection[tuple[str, ...]]"],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, connection = tables
    monkeypatch.setattr(partitions, "LOCK_SECONDS", 0.05)
    connection.autocommit = False
    connection.execute("SELECT count(*) FROM waybill_job")
    store.apply([(0, ended(id_of(0, 1), 0))])
    assert "could not create a partition" in caplog.text
    connection.commit()
    connection.autocommit = True
    assert rows_of(connection) == {partitions.OTHER: 1}
    monkeypatch.setattr(store._partitions, "_not_before", 0.0)
    store.apply([(1, ended(id_of(0, 2), 0))])
    assert sorted(rows_of(connection).values()) == [0, 2]
