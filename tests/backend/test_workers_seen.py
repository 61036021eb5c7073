"""Workers are known by the time that has passed, however the system's clock is set."""

import asyncio
import time
from datetime import UTC, datetime

import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend import workers as workers_module
from waybill.backend.workers import FORGOTTEN_SECONDS, STALE_SECONDS, AmqpWorkers, HttpWorkers
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.timestamps import format_timestamp

DAY = 86_400.0


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_worker_stays_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    workers = HttpWorkers()
    workers.record("w1", ["email"])
    workers.join("w1", "pool")
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    [found] = workers.all()
    assert found.id == "w1"
    assert workers.members("pool") == {"w1"}


@pytest.mark.parametrize("jump", [0, -DAY])
def test_one_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    workers = HttpWorkers()
    workers.record("w1", ["email"])
    wall, steady = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    monkeypatch.setattr(time, "monotonic", lambda: steady() + FORGOTTEN_SECONDS + 1)
    assert workers.all() == []


async def test_a_worker_that_says_that_it_is_quiet_gets_no_jobs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ojs-graceful-shutdown section 5.1."""

    async def beat(state: str) -> None:
        await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1", "state": state, "active_jobs": []})

    ids = [await client.push() for _ in range(3)]
    await beat("quiet")
    assert await client.fetch(worker="w1") == []
    [known] = (await client.ask("GET", "/ojs/v1/admin/workers"))["items"]
    assert known["state"] == "quiet"
    assert [one["id"] for one in await client.fetch(worker="w2")] == ids[:1]
    await beat("running")
    assert [one["id"] for one in await client.fetch(worker="w1")] == ids[1:2]
    # One that is silent since may be another process with the same name.
    await beat("quiet")
    steady = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: steady() + STALE_SECONDS)
    assert [one["id"] for one in await client.fetch(worker="w1")] == ids[2:]


@pytest.mark.parametrize("by", ["itself", "operator", "operator elsewhere"])
async def test_a_fetch_that_waits_ends_when_its_worker_is_quiet(uri: str, by: str) -> None:
    """It must take no job that comes later (ojs-admin-api section 9.3)."""
    async with client_of(uri) as client, client_of(uri) as elsewhere:
        for one in (client, elsewhere):
            await one.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1"})
        open_fetch, other = (
            asyncio.create_task(client.fetch(worker=worker, wait_ms=30_000)) for worker in ("w1", "w2")
        )
        while len(client.backend.fetcher._waiting) < 2:
            await asyncio.sleep(0)
        if by == "itself":
            await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1", "state": "quiet"})
        else:
            asked = client if by == "operator" else elsewhere
            await asked.ask("POST", "/ojs/v1/admin/workers/w1/quiet")
        assert await open_fetch == []
        job_id = await client.push()
        assert [one["id"] for one in await other] == [job_id]
        last = await client.push()
        assert await client.fetch(worker="w1") == []
        if by == "itself":
            await client.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1", "state": "running"})
        else:
            await client.ask("POST", "/ojs/v1/admin/workers/w1/resume")
        assert [one["id"] for one in await client.fetch(worker="w1")] == [last]


async def test_a_job_that_wakes_a_quiet_worker_goes_to_another(client: Client) -> None:
    quiet: set[str] = set()
    client.backend.fetcher.is_quiet = quiet.__contains__
    fetches = [asyncio.create_task(client.fetch(worker=worker, wait_ms=30_000)) for worker in ("w1", "w2")]
    while len(client.backend.fetcher._waiting) < 2:
        await asyncio.sleep(0)
    quiet.add("w1")
    job_id = await client.push()
    assert [[one["id"] for one in found] for found in await asyncio.gather(*fetches)] == [[], [job_id]]


async def test_what_workers_tell_of_themselves_has_a_size(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred and fifty heartbeats of 600 KB took 1.6 GB for an hour."""
    monkeypatch.setattr(workers_module, "MOST_BYTES", 3000)
    told = {"queues": ["q" * 255] * 900 + ["q" * 256], "metadata": {"a": ["a"] * 30}, "more": ["a"] * 9000}
    handlers = [{"type": "email.send", "versions": "1.0"}]
    for number in range(9):
        beat = {"worker_id": f"w{number}", "active_jobs": [], "handlers": handlers, **told}
        await client.ask("POST", "/ojs/v1/workers/heartbeat", beat)
        told["queues"] = ["email"]
    known = (await client.ask("GET", "/ojs/v1/admin/workers"))["items"]
    assert {one["id"] for one in known} <= {f"w{number}" for number in range(1, 9)}
    assert known[-1]["metadata"] == told["metadata"]
    workers = client.backend.extensions.workers
    assert 0 < workers._size <= 3000
    assert workers.handlers_of(known[-1]["id"]) == handlers
    for number in range(9):
        workers.drop(f"w{number}")
    assert workers._size == 0


def test_what_workers_over_amqp_tell_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "MOST_BYTES", 30_000)
    workers = AmqpWorkers()
    now = format_timestamp(datetime.now(UTC))
    for number in range(9):
        data: dict[str, object] = {"queues": ["q" * 255] * 900, "concurrency": 3}
        workers.take([ReceivedEvent(f"e{number}", "worker.heartbeat", "ojs://x", now, f"w{number}", data)] * 2)
    workers.take([ReceivedEvent("e", "worker.heartbeat", "ojs://x", now, "w" * 256)])
    assert list(workers.all()) == ["w8"]
    workers.take([ReceivedEvent("e", "worker.stopped", "ojs://x", now, "w8")])
    assert workers._size == 0
