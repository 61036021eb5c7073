"""Records: what comes first in the stream counts, and what is over is as if it were not there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tests.ojs.coordinator.test_job_store import event
from waybill.broker import Broker
from waybill.ojs import Coordinator, Jobs
from waybill.ojs.coordinator.event_fold import fold_messages
from waybill.ojs.coordinator.feature_fold import FeatureFolds
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.open_store import IN_MEMORY, open_job_store
from waybill.ojs.coordinator.records import EXPIRES, RecordFold, RecordRow, Records
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.timestamps import format_timestamp

KEY = "record-thing/a"


class Thing(msgspec.Struct):
    size: int


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStore]:
    database = IN_MEMORY if request.param == "memory" else str(tmp_path / "jobs.sqlite")
    with open_job_store(database) as store:
        store.features = FeatureFolds([RecordFold(lambda user: user == "boss")])
        yield store


class Stream:
    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._offset = 0

    def write(self, *events: ReceivedEvent, user: str | None = "boss") -> RecordRow | None:
        fold_messages(self._store, [(self._offset, msgspec.json.encode(list(events)), user)])
        self._offset += 1
        return self._store.row(KEY, RecordRow)


def put(size: int, second: int, **fields: object) -> ReceivedEvent:
    return event("record.put", "thing/a", second, value={"size": size}, **fields)


def test_the_last_value_counts(store: JobStore) -> None:
    stream = Stream(store)
    first = put(1, 1)
    stream.write(first, put(2, 2))
    row = stream.write(first)
    assert row is not None
    assert (bytes(row.value), row.version, row.created_at) == (b'{"size":1}', 3, first.time)
    assert stream.write(event("record.removed", "thing/a", 4)) is None


def test_of_those_who_expect_the_same_the_first_wins(store: JobStore) -> None:
    stream = Stream(store)
    for size in (1, 2):
        stream.write(put(size, size, expected=0))
    row = stream.write(put(3, 3, expected=7))
    assert row is not None
    assert (bytes(row.value), row.version) == (b'{"size":1}', 1)
    stream.write(event("record.removed", "thing/a", 4, expected=2))
    assert stream.write(put(5, 5, expected=1)) is not None
    assert stream.write(event("record.removed", "thing/a", 6, expected=2)) is None


def test_what_is_over_is_as_if_it_were_not_there(store: JobStore) -> None:
    stream = Stream(store)
    stream.write(put(1, 1, expires_at=event("tick", "a", 5).time))
    row = stream.write(put(2, 4, expected=0))
    assert row is not None
    assert row.version == 1
    assert [key for key, _ in store.marked(EXPIRES + (row.expires_at or "")[:13], RecordRow, 9)] == [KEY]
    row = stream.write(put(3, 6, expected=0))
    assert row is not None
    assert (row.version, row.expires_at) == (2, None)


def test_only_trusted_users_write(store: JobStore) -> None:
    stream = Stream(store)
    assert stream.write(put(1, 1), user="guest") is None
    assert stream.write(put(1, 1), user=None) is None


@pytest.mark.parametrize(
    "data", [{}, {"value": {}, "expected": "1"}, {"value": [], "expires_at": 7}, {"value": 1, "expires_at": "é" * 99}]
)
def test_odd_records_do_no_harm(store: JobStore, data: dict[str, object]) -> None:
    stream = Stream(store)
    stream.write(event("record.put", "thing/a", 1, **data))
    stream.write(event("record.put", "x" * 400, 1, value=1))
    assert stream.write(put(2, 2)) is not None


async def test_records_are_there_for_every_coordinator_and_after_a_restart() -> None:
    async with Broker(port=0) as broker:
        async with Jobs(broker.uri()) as jobs, Coordinator(jobs, queues=[]) as one, Coordinator(jobs, queues=[]) as two:
            events = (await jobs.broker_connection()).events
            here, there = Records(one.view, events), Records(two.view, events)
            assert await here.put("thing/a", Thing(1), expected=0)
            assert not await there.put("thing/a", Thing(2), expected=0)
            found = await there.get("thing/a")
            assert found is not None
            assert (found.read(Thing), found.version) == (Thing(1), 1)
            await here.put("thing/b", Thing(3))
            await here.put("other/c", Thing(4))
            assert [one.key for one in await here.list("thing/", 9)] == ["thing/a", "thing/b"]
            assert [one.key for one in await here.list("thing/", 9, after="thing/a")] == ["thing/b"]
            await here.remove("thing/b")
            assert await here.get("thing/b") is None
            with pytest.raises(ValueError, match="key"):
                await here.put("x" * 256, Thing(1))
        async with Jobs(broker.uri()) as jobs, Coordinator(jobs, queues=[]) as later:
            records = Records(later.view, (await jobs.broker_connection()).events)
            assert await records.put("thing/c", Thing(5))
            assert [one.key for one in await records.list("thing/", 9)] == ["thing/a", "thing/c"]


async def test_what_has_expired_is_removed() -> None:
    async with Broker(port=0) as broker, Jobs(broker.uri()) as jobs, Coordinator(jobs, queues=[]) as coordinator:
        records = Records(coordinator.view, (await jobs.broker_connection()).events)
        now = datetime.now(UTC)
        for name, hours in (("old", -3), ("older", -30), ("new", 3)):
            expires_at = format_timestamp(now + timedelta(hours=hours))
            await records.put(f"thing/{name}", Thing(1), expires_at=expires_at)
        assert await records.get("thing/old") is None
        await records.sweep(now - timedelta(hours=48), now)
        kept = await coordinator.view.listed("record-thing/", RecordRow, 9)
        assert [key for key, _ in kept] == ["record-thing/new"]
