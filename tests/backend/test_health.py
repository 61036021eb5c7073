"""The health of a server names what is at fault, and asks for no write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from tests.backend.conftest import Client
from tests.ojs.eye import until
from waybill.backend.backend import Backend
from waybill.broker import Broker
from waybill.client import Connection
from waybill.client.side_channel import SideChannel
from waybill.ojs import Jobs
from waybill.ojs.coordinator.sql_job_store import SqlJobStore
from waybill.ojs.coordinator.store_thread import StoreThread
from waybill.ojs.topology.permissions import require_permissions


@pytest.fixture
async def lasting(uri: str, tmp_path: Path) -> AsyncIterator[Client]:
    """A backend with a database file."""
    async with Backend(Jobs(uri, results=False), database=f"{tmp_path}/jobs.sqlite") as backend:
        yield Client(backend)


async def health(client: Client, status: int = 200) -> Any:
    found = await client.ask("GET", "/ojs/v1/health", status=status)
    assert found["status"] == ("ok" if status == 200 else "degraded")
    return found


async def limit_pages(client: Client, count: int) -> None:
    store = client.backend.view._store
    assert isinstance(store, SqlJobStore)

    def execute() -> None:
        with store._engine.connect() as connection:
            connection.execute(sql.text(f"pragma max_page_count = {count}"))

    await client.backend.view.in_thread(execute)


async def test_a_server_that_works_says_what_it_works_with(client: Client, lasting: Client) -> None:
    found = await health(client)
    assert (found["backend"]["type"], found["backend"]["status"]) == ("amqp", "connected")
    assert found["database"] == {"type": "memory", "status": "connected", "waiting_messages": 0}
    assert (await health(lasting))["database"]["type"] == "sqlite"


async def test_the_latency_is_in_whole_milliseconds(client: Client) -> None:
    assert type((await client.ask("GET", "/ojs/v1/health"))["backend"]["latency_ms"]) is int


async def test_a_health_check_leaves_nothing_in_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await health(client)
    assert not [one.message for one in caplog.records if one.name == "waybill.broker"]


@pytest.mark.plain_source
async def test_many_who_ask_at_once_cost_one_look(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def require(*given: Any) -> None:
        nonlocal looks
        looks += 1
        await require_permissions(*given)

    monkeypatch.setattr("waybill.backend.health.require_permissions", require)
    asked = [asyncio.ensure_future(health(client)) for _ in range(100)]
    await asyncio.sleep(0)
    # One that goes away leaves the others their answer.
    asked[0].cancel()
    await asyncio.gather(*asked[1:])
    assert looks == 1
    await health(client)
    assert looks == 2


async def test_a_database_that_cannot_be_written_to(lasting: Client) -> None:
    view = lasting.backend.view
    await limit_pages(lasting, 1)
    pushing = asyncio.create_task(lasting.push(metadata={"large": "x" * 50_000}))
    await until(lambda: view._streams[0].is_stuck)
    # Reads go on, and do not hide it.
    assert await lasting.backend.counts() == {}
    found = (await health(lasting, 503))["database"]
    assert (found["status"], found["waiting_messages"] > 0) == ("unwritable", True)
    assert "written" in found["error"]
    await limit_pages(lasting, 100_000)
    await pushing
    assert (await health(lasting))["database"] == {"type": "sqlite", "status": "connected", "waiting_messages": 0}


@pytest.mark.parametrize("problem", ["unreachable", "unresponsive"])
async def test_a_database_that_cannot_be_read(client: Client, monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    monkeypatch.setattr(StoreThread, "problem", problem)
    assert (await health(client, 503))["database"]["status"] == problem


@pytest.mark.parametrize("patterns", [("^$", ".*", ".*"), (".*", "^$", ".*"), (".*", ".*", "^$")])
async def test_a_broker_that_refuses_what_jobs_need(patterns: tuple[str, str, str]) -> None:
    async with Broker(port=0) as broker:
        administration = broker.administration
        administration.put_user("bob", "secret")
        administration.set_permission("bob", "/", ".*", ".*", ".*")
        async with Backend(Jobs(broker.uri("/", "bob", "secret"), results=False)) as backend:
            administration.set_permission("bob", "/", *patterns)
            found = (await health(Client(backend), 503))["backend"]
            assert (found["status"], "permissions" in found["error"]) == ("refused", True)
            administration.set_permission("bob", "/", ".*", ".*", ".*")
            assert (await health(Client(backend)))["backend"]["status"] == "connected"


@pytest.mark.plain_source
async def test_the_broker_is_asked_for_all_permissions_at_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the broker is busy, each wait for an answer takes as long as a round of its work."""
    is_asked = asyncio.Event()
    unbind, declare = SideChannel.unbind_queue, SideChannel.declare_exchange

    async def unbind_later(*given: Any) -> None:
        await is_asked.wait()
        await unbind(*given)

    async def declare_now(*given: Any, durable: bool) -> None:
        is_asked.set()
        await declare(*given, durable=durable)

    monkeypatch.setattr(SideChannel, "unbind_queue", unbind_later)
    monkeypatch.setattr(SideChannel, "declare_exchange", declare_now)
    await health(client)


async def test_a_broker_without_room(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "blocked", "low on disk")
    found = (await health(client, 503))["backend"]
    assert (found["status"], found["error"]) == ("blocked", "the broker accepts no messages: low on disk")


async def test_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.health.SECONDS", 0.01)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(port=0))
        async with Backend(Jobs(broker.uri(), results=False)) as backend:
            await stack.aclose()
            found = (await health(Client(backend), 503))["backend"]
    assert (found["status"], found["error"]) == ("disconnected", "the broker cannot be reached")
