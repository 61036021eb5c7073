"""Which partition of the events lags, and who folds it, as Prometheus reads it."""

import asyncio
from datetime import UTC, datetime

import psycopg
import pytest

from tests.client.breaking import until
from tests.ojs.coordinator.partitions_program import Application
from tests.ojs.databases import make_database
from waybill.ojs import Coordinator
from waybill.ojs.coordinator.partition_lag import age_of
from waybill.ojs.observe.metrics import CoordinatorMetrics
from waybill.ojs.spec.events import JobEnqueued, encode_event, make_event

Values = dict[str, dict[str, float]]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def scrape(coordinator: Coordinator) -> Values:
    """By metric and partition, without the prefix of its name."""
    return {
        family.name: {
            sample.labels["partition"].removeprefix(coordinator._jobs.topology.prefix): sample.value
            for sample in family.samples
        }
        for family in CoordinatorMetrics(coordinator).collect()
        if family.name.startswith(("ojs_coordinator_lag", "ojs_coordinator_partition"))
    }


def owned_by(coordinator: Coordinator) -> list[str]:
    """The partitions that a coordinator folds, without the prefix."""
    return [
        one.stream.removeprefix(coordinator._jobs.topology.prefix) for one in coordinator.lags() if one.is_folded_here
    ]


def message(time: str) -> bytes:
    return encode_event(make_event("/test", time, "a-job", JobEnqueued(job_type="a", queue="q"))).encode()


def test_the_age_is_that_of_the_first_valid_event() -> None:
    first, second = message("2026-01-01T11:59:30Z"), message("2026-01-01T11:59:50Z")
    assert age_of([first, second], NOW) == 30
    assert age_of([b"no event", message("yesterday"), second], NOW) == 10
    assert age_of([b"[" + second + b"," + first + b"]"], NOW) == 10
    assert age_of([message("2026-01-01T12:00:05Z")], NOW) == 0, "a clock is wrong"
    assert age_of([b"no event"], NOW) == 0
    assert age_of([], NOW) == 0


async def test_a_partition_that_cannot_be_read_has_no_lag(waybill_uri: str, queue_name: str) -> None:
    application = Application(waybill_uri, f"{queue_name}.", queue_name)
    async with application.jobs, application.coordinator(":memory:") as coordinator:
        # The events of the start are folded, too.
        await until(lambda: scrape(coordinator)["ojs_coordinator_lag_seconds"] == {"ojs.events": 0, "ojs.events-1": 0})
        assert scrape(coordinator)["ojs_coordinator_partition_owned"] == {"ojs.events": 1, "ojs.events-1": 1}
        stream = coordinator.view._streams[1]._reader._stream
        assert stream is not None
        await stream.cancel()
        assert scrape(coordinator)["ojs_coordinator_lag_seconds"].keys() == {"ojs.events"}


async def test_a_locked_partition_lags_and_the_other_does_not(
    broker_uri: str, queue_name: str, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.job_view.COUNT_SECONDS", 0.1)
    database = make_database(postgresql)
    application = Application(broker_uri, f"{queue_name}.", queue_name)
    coordinators = application.coordinator(database), application.coordinator(database)

    async def all_lags() -> list[Values]:
        return [await asyncio.to_thread(scrape, one) for one in coordinators]

    async with application.jobs, coordinators[0], coordinators[1]:
        await until(lambda: sorted(owned_by(one) for one in coordinators) == [["ojs.events"], ["ojs.events-1"]])
        plain = database.replace("+psycopg", "")
        async with await psycopg.AsyncConnection.connect(plain) as lock:
            await lock.execute("select next_offset from waybill_position where stream = 'events-1' for update")
            for number in range(20):
                await application.jobs.push("parts.plain", [number])
            async with asyncio.timeout(60):
                while not all(one["ojs_coordinator_lag_seconds"]["ojs.events-1"] > 0 for one in await all_lags()):
                    await asyncio.sleep(0.01)
                # Cron jobs go on: the first partition has moments in which nothing waits. Who waits for the lock does
                # not know of them.
                while all(one["ojs_coordinator_lag_seconds"]["ojs.events"] for one in await all_lags()):
                    await asyncio.sleep(0.01)
            found = await all_lags()
        async with asyncio.timeout(60):
            while any(sum(one["ojs_coordinator_lag_seconds"].values()) for one in await all_lags()):
                await asyncio.sleep(0.01)
    owners = [one["ojs_coordinator_partition_owned"] for one in found]
    assert sorted(owners, key=str) == [{"ojs.events": 0, "ojs.events-1": 1}, {"ojs.events": 1, "ojs.events-1": 0}]
