"""The probes of workers and coordinators tell what keeps them from their work."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

from waybill.broker import Broker
from waybill.cli.health import look_at_coordinator, look_at_worker, serve_health
from waybill.client import connect
from waybill.ojs import Coordinator, Jobs, Worker
from waybill.ojs.coordinator.store_thread import StoreThread
from waybill.ojs.observe import event_retries
from waybill.ojs.spec.events import WorkerQuiet
from waybill.ojs.worker import worker as worker_module

ALL = (".*", ".*", ".*")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(event_retries, "MOST_SECONDS", 0.05)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with the user bob, who may do everything."""
    async with Broker(port=0) as broker:
        broker.administration.put_user("bob", "secret")
        broker.administration.set_permission("bob", "/", *ALL)
        yield broker


def jobs_of(broker: Broker) -> Jobs:
    return Jobs(broker.uri("/", "bob", "secret"), results=False, create_queues=True)


def probe(port: int, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


async def problem_of(coordinator: Coordinator, is_meant: Callable[[str | None], bool]) -> str | None:
    """Return the problem of a coordinator once it is the one that is meant."""
    async with asyncio.timeout(30):
        while not is_meant(found := await coordinator.problem(1.0)):
            await asyncio.sleep(0.02)
    return found


async def test_a_worker_whose_events_are_refused_is_not_ready(broker: Broker) -> None:
    """Jobs are settled after their events: it ran jobs, settled none, and was ready."""
    jobs = jobs_of(broker)
    jobs.handler("probe.run")(lambda: None)
    async with Worker(jobs) as worker:
        assert (await look_at_worker(worker))[1]
        broker.administration.set_permission("bob", "/", ".*", "^$", ".*")
        async with asyncio.timeout(30):
            while (found := await look_at_worker(worker))[1]:
                await asyncio.sleep(0.02)
        assert "refuses events" in str(found[0]["starvation"])
        assert found[0]["consuming"] is True
        broker.administration.set_permission("bob", "/", *ALL)
        async with asyncio.timeout(30):
            while not (await look_at_worker(worker))[1]:
                await asyncio.sleep(0.02)


async def test_a_coordinator_has_probes(broker: Broker) -> None:
    coordinator = Coordinator(jobs_of(broker), queues=["email"])
    with serve_health(partial(look_at_coordinator, coordinator), "127.0.0.1", 0) as port:
        status, state = await asyncio.to_thread(probe, port, "/ready")
        assert (status, state["problem"], state["connected"]) == (503, "it has not started", False)
        async with coordinator:
            await problem_of(coordinator, lambda found: found is None)
            status, state = await asyncio.to_thread(probe, port, "/ready")
            assert (status, state["problem"], state["connected"]) == (200, None, True)
            assert list(state["lag_seconds"]) == ["ojs.events"]
            assert (await asyncio.to_thread(probe, port, "/live"))[0] == 200


async def test_a_coordinator_without_a_broker_is_not_ready() -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(port=0))
        async with Coordinator(Jobs(broker.uri(), results=False), queues=["email"]) as coordinator:
            await problem_of(coordinator, lambda found: found is None)
            await stack.aclose()
            await problem_of(coordinator, lambda found: found == "the broker cannot be reached")
            assert not coordinator.is_connected


@pytest.mark.parametrize(("queue", "text"), [("ojs.events", "events"), ("ojs.queue.control.email", "requests")])
async def test_a_coordinator_that_receives_nothing_is_not_ready(broker: Broker, queue: str, text: str) -> None:
    async with Coordinator(jobs_of(broker), queues=["email"]) as coordinator:
        await problem_of(coordinator, lambda found: found is None)
        broker.administration.set_permission("bob", "/", ".*", ".*", "^$")
        async with connect(broker.uri()) as connection:
            await (await connection.channel()).delete_queue(queue)
        found = await problem_of(coordinator, lambda found: found is not None and text in found)
        assert found == f"it receives no {text} of {queue}"


async def test_a_coordinator_whose_events_are_refused_is_not_ready(broker: Broker) -> None:
    async with Coordinator(jobs_of(broker), queues=["email"]) as coordinator:
        await problem_of(coordinator, lambda found: found is None)
        broker.administration.set_permission("bob", "/", ".*", "^$", ".*")
        assert coordinator._broker is not None
        coordinator._broker.events.record("w", WorkerQuiet(worker_id="w", active_jobs=0))
        await problem_of(coordinator, lambda found: found is not None and "refuses its events" in found)


@pytest.mark.parametrize("problem", ["unreachable", "unresponsive"])
async def test_a_coordinator_without_a_database_is_not_ready(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    async with Coordinator(jobs_of(broker), queues=["email"]) as coordinator:
        await problem_of(coordinator, lambda found: found is None)
        monkeypatch.setattr(StoreThread, "problem", problem)
        assert await coordinator.problem(1.0) == f"the job state is {problem}"
