"""What was done when is known after a restart, too: each minute is a record."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend import history as history_module
from waybill.backend import history_records
from waybill.backend.backend import Backend
from waybill.backend.history import DAY, MINUTE, History
from waybill.backend.history_records import HOURS, KIND, MOST_QUEUES, HistoryRecords
from waybill.ojs import Jobs
from waybill.ojs.coordinator.job_counts import CountChanges, CountMark, JobCounts
from waybill.ojs.coordinator.records import Record


class KeptRecords:
    """Records as a stream keeps them, without one."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def put_soon(self, key: str, value: msgspec.Struct, *, expires_at: str | None = None) -> None:
        assert expires_at is not None
        self.values[key] = msgspec.json.encode(value)

    async def list(self, prefix: str, limit: int, after: str = "") -> list[Record]:
        keys = [key for key in sorted(self.values) if key.startswith(prefix) and key > after]
        return [Record(key, self.values[key], 1, "", "") for key in keys[:limit]]


class Server:
    """A server that counts jobs of a queue; `now` is Unix time."""

    def __init__(self, records: Any, now: float) -> None:
        self.now = now
        self.history = History(lambda: self.now)
        self.records = HistoryRecords(self.history, records, lambda: self.now)
        self._counts = JobCounts({("a", "completed"): 0})
        self._version = 0

    def look(self, seconds: float, **completed: int) -> None:
        """Let time go by, and look at how many jobs are completed now."""
        self.now += seconds
        self._version += 1
        new = {(queue, "completed"): count for queue, count in completed.items()}
        self._counts.take(CountChanges(CountMark(0, self._version), new))
        self.history.add(self._counts)

    def completed(self) -> int:
        found = self.history.series(3600.0)["completed"]
        assert isinstance(found, list)
        return sum(one or 0 for one in found)


async def test_a_server_begins_with_what_the_one_before_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_records, "READ_AT_ONCE", 4)
    records = KeptRecords()
    old = Server(records, 1_000_000.0)
    await old.records.read()
    for minute in range(1, 11):
        old.look(MINUTE, a=10 * minute)
        old.records.write()
    # Looked at again and again within the minute that is kept: none of it counts twice.
    for count in (101, 102, 103):
        old.look(5.0, a=count)
        old.records.write()
    old.records.write(is_last=True)
    new = Server(records, old.now + 1.0)
    await new.records.read()
    assert new.completed() == old.completed() == 93
    assert new.history.rates() == pytest.approx(old.history.rates(), rel=0.2)
    assert new.history.throughput("a")["processed_per_minute"] == pytest.approx(10.0, rel=0.2)
    # What comes in the same minute is added to what was kept of it.
    new.look(1.0, a=103)
    new.look(1.0, a=110)
    new.records.write(is_last=True)
    last = Server(records, new.now + 1.0)
    await last.records.read()
    assert last.completed() == new.completed() == 100


async def test_hours_are_known_for_a_month(monkeypatch: pytest.MonkeyPatch) -> None:
    """ojs-admin-api section 10.2: minutes for a day, hours for thirty days."""
    monkeypatch.setattr(history_records, "READ_AT_ONCE", 7)
    records = KeptRecords()
    server = Server(records, 1000 * DAY)
    await server.records.read()
    for minute in range(1, 30 * 60 + 1):
        server.look(MINUTE, a=minute)
        server.records.write()
    server.records.write(is_last=True)
    again = Server(records, server.now + 1.0)
    await again.records.read()
    for one in (server, again):
        older = await one.records.hours(1000 * DAY)
        data = one.history.periods(60, 1000 * DAY, one.now, "a", older)
        assert sum(int(str(period["processed"])) for period in data) == 30 * 60 - 1
        assert [period["processed"] for period in data[1:-2]] == [60] * (len(data) - 3)
        assert len(await one.records.hours(1001 * DAY)) < len(older)
    # What the last server did not save is saved by the next one.
    saved = dict(records.values)
    records.values = {key: value for key, value in saved.items() if key < f"{HOURS}00024020" or key.startswith(KIND)}
    later = Server(records, server.now + 1.0)
    await later.records.read()
    later.records.write()
    assert sorted(records.values) == sorted(saved)


async def test_what_is_over_is_written_once_and_what_is_not_does_not_count_later() -> None:
    records = KeptRecords()
    server = Server(records, 6_000_000.0)
    await server.records.read()
    server.look(1.0, a=0)
    server.look(20.0, a=5)
    server.records.write()
    assert records.values == {}
    server.look(MINUTE, a=7)
    server.records.write()
    assert len(records.values) == 1
    records.values.clear()
    server.records.write()
    assert records.values == {}
    server.look(MINUTE, a=7)
    server.records.write()
    server.look(MINUTE, a=7)
    server.records.write()
    # The minute in which seven was seen, and none of those in which nothing was done.
    assert len(records.values) == 1


async def test_a_minute_keeps_its_busiest_queues_and_records_of_others_are_left_out() -> None:
    records = KeptRecords()
    server = Server(records, 9_000_000.0)
    many = {f"q{number}": 1 for number in range(MOST_QUEUES + 50)}
    server.look(0.0, **dict.fromkeys(many, 0))
    server.look(MINUTE, **many | {"q7": 9})
    server.records.write(is_last=True)
    (kept,) = records.values.values()
    queues = msgspec.json.decode(kept)["queues"]
    assert (len(queues), queues["q7"]) == (MOST_QUEUES, [9, 9, 0])
    records.values[f"{KIND}{int(server.now // MINUTE):010d}x"] = b'{"of": "another version"}'
    later = Server(records, server.now + 1.0)
    await later.records.read()
    assert later.completed() == len(many) + 8


@pytest.mark.parametrize("state", ["memory", "sqlite"])
async def test_how_long_jobs_waited_is_known_after_a_restart(
    uri: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ojs-admin-api section 10.2."""
    monkeypatch.setattr(history_module, "LEAST_SECONDS", 0.0)
    database = ":memory:" if state == "memory" else f"{tmp_path}/jobs.sqlite"
    names = ("timestamp", "processed", "failed", "enqueued", "latency_p50_ms", "latency_p99_ms")

    async def history(client: Client, query: str = "") -> list[Any]:
        found: list[Any] = (await client.ask("GET", f"/ojs/v1/admin/stats/history?period=1d{query}"))["data"]
        return [one for one in found if one["processed"]]

    async with Backend(Jobs(uri, results=False), database=database) as backend:
        client = Client(backend)
        job = await client.push()
        await asyncio.sleep(0.02)
        await client.fetch()
        await client.ack(job)
        [before] = await history(client)
        assert set(before) == set(names)
        assert (before["processed"], before["latency_p50_ms"]) == (1, before["latency_p99_ms"])
        assert before["latency_p50_ms"] >= 20
        assert await history(client, "&queue=email") == [before]
    async with Backend(Jobs(uri, results=False), database=database) as backend:
        [after] = await history(Client(backend))
        assert {name: after[name] for name in names[1:]} == {name: before[name] for name in names[1:]}


async def test_the_overview_goes_on_after_a_restart(uri: str) -> None:
    async with client_of(uri) as client:
        job = await client.push()
        await client.fetch()
        await client.ack(job)
    async with client_of(uri) as client:
        found = await client.ask("GET", "/ojs/v1/admin/overview")
        assert sum(one or 0 for one in found["series"]["completed"]) == 1
        assert sum(one or 0 for one in found["series"]["enqueued"]) == 1
