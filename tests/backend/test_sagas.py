"""Sagas: workflows whose completed steps are undone when one fails (ojs-workflows section 14)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backend.conftest import Client
from waybill.backend.backend import Backend
from waybill.broker import Broker
from waybill.ojs import Jobs

WORKFLOWS = "/ojs/v1/workflows"
ORDER: dict[str, Any] = {
    "type": "saga",
    "name": "order-fulfillment",
    "failure_policy": "compensate",
    "steps": [
        {
            "name": "reserve-inventory",
            "job_type": "inventory.reserve",
            "args": ["SKU-001", 2],
            "compensate_type": "inventory.release",
            "compensate_args": ["SKU-001", 2],
        },
        {
            "name": "charge-payment",
            "job_type": "payment.charge",
            "args": ["card_tok_abc", 49.99],
            "compensate_type": "payment.refund",
            "compensate_args": ["card_tok_abc", 49.99],
        },
        {"name": "ship-order", "job_type": "shipping.create", "args": ["order-123", "express"]},
    ],
}
FORWARD = ["inventory.reserve", "payment.charge", "shipping.create"]
Serve = Callable[[], AbstractAsyncContextManager[Client]]


@pytest.fixture(params=["memory", "sqlite"])
async def serve(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Serve]:
    """Start a server, each time a new one on the same broker and database."""
    database = ":memory:" if request.param == "memory" else f"{tmp_path}/jobs.sqlite"
    async with Broker(port=0) as broker:

        @asynccontextmanager
        async def server() -> AsyncIterator[Client]:
            async with Backend(Jobs(broker.uri(), results=False), database=database) as backend:
                yield Client(backend)

        yield server


async def begin(client: Client, **changes: Any) -> str:
    made: Any = await client.ask("POST", WORKFLOWS, {**ORDER, **changes}, 201)
    assert (made["type"], made["state"], len(made["steps"])) == ("saga", "running", 3)
    return str(made["id"])


async def next_job(client: Client) -> Any:
    """Fetch the next job. A server that has just begun leads after a moment."""
    [job] = await client.fetch("default", wait_ms=30_000)
    assert await client.fetch("default") == []
    return job


async def run(client: Client, *ends: str) -> list[Any]:
    """Run the next jobs, one after the other; returns them."""
    jobs = []
    for end in ends:
        jobs.append(job := await next_job(client))
        await (client.ack(job["id"], result={"of": job["type"]}) if end == "ack" else client.nack(job["id"]))
    return jobs


async def state_of(client: Client, saga: str) -> tuple[str, list[str]]:
    form = await client.ask("GET", f"{WORKFLOWS}/{saga}")
    return form["state"], [step["state"] for step in form["steps"]]


async def test_a_saga_whose_steps_succeed_is_completed(serve: Serve) -> None:
    async with serve() as client:
        saga = await begin(client)
        jobs = await run(client, "ack", "ack", "ack")
        assert [(one["type"], one["args"]) for one in jobs] == [
            (one["job_type"], one["args"]) for one in ORDER["steps"]
        ]
        assert [one.get("parent_results") for one in jobs[1:]] == [
            [{"of": kind} for kind in FORWARD[:count]] for count in (1, 2)
        ]
        assert await state_of(client, saga) == ("completed", ["completed"] * 3)
        assert await client.fetch("default") == []


async def test_the_completed_steps_are_undone_in_reverse_order_whatever_server_runs(serve: Serve) -> None:
    """Each job is fetched and ended by another server: all that was known before is durable."""
    async with serve() as client:
        saga = await begin(client)
    states, jobs = [], []
    for end in ("ack", "ack", "nack", "ack", "ack"):
        async with serve() as client:
            jobs += await run(client, end)
            states.append((await state_of(client, saga))[0])
    assert [one["type"] for one in jobs] == [*FORWARD, "payment.refund", "inventory.release"]
    assert states == ["running", "running", "compensating", "compensating", "compensated"]
    assert jobs[3]["args"] == ["card_tok_abc", 49.99]
    assert jobs[3]["parent_results"][:2] == [{"of": kind} for kind in FORWARD[:2]]
    async with serve() as client:
        form = await client.ask("GET", f"{WORKFLOWS}/{saga}")
        assert [step["state"] for step in form["steps"]] == ["completed", "completed", "failed"]
        assert (form["failure_policy"], form["failed_step_index"]) == ("compensate", 2)
        assert [step.get("compensation", {}).get("state") for step in form["steps"]] == ["completed", "completed", None]
        assert form["steps"][1]["compensation"]["job_id"] == jobs[3]["id"]
        assert form["compensated_at"] >= form["started_at"]
        assert await client.fetch("default") == []
        for path in ("retry", "cancel"):
            await client.ask("POST", f"{WORKFLOWS}/{saga}/{path}", None, 409)


async def test_a_first_step_that_fails_leaves_nothing_to_undo(serve: Serve) -> None:
    async with serve() as client:
        saga = await begin(client)
        await run(client, "nack")
        assert await state_of(client, saga) == ("compensated", ["failed", "cancelled", "cancelled"])


async def test_a_saga_that_cannot_be_undone_fails_and_is_undone_by_a_retry(serve: Serve) -> None:
    async with serve() as client:
        saga = await begin(client, options={"retry": {"max_attempts": 1}})
        jobs = await run(client, "ack", "ack", "nack", "nack")
        assert jobs[-1]["type"] == "payment.refund"
        assert (await state_of(client, saga))[0] == "failed"
        assert await client.fetch("default") == []
        assert (await client.ask("POST", f"{WORKFLOWS}/{saga}/retry"))["state"] == "compensating"
        await client.ask("DELETE", f"{WORKFLOWS}/{saga}", None, 409)
        jobs = await run(client, "ack", "ack")
        assert [one["type"] for one in jobs] == ["payment.refund", "inventory.release"]
        assert (await state_of(client, saga))[0] == "compensated"


async def test_with_the_policy_retry_a_step_has_its_attempts(serve: Serve) -> None:
    async with serve() as client:
        retry = {"max_attempts": 2, "initial_interval": "PT0.01S", "jitter": False}
        saga = await begin(client, failure_policy="retry", options={"retry": retry})
        jobs = await run(client, "ack", "nack", "nack", "ack")
        assert [one["type"] for one in jobs] == [*FORWARD[:2], "payment.charge", "inventory.release"]
        assert await state_of(client, saga) == ("compensated", ["completed", "failed", "cancelled"])


async def test_with_the_policy_skip_the_next_step_follows(serve: Serve) -> None:
    async with serve() as client:
        saga = await begin(client, failure_policy="skip", options={"retry": {"max_attempts": 1}})
        assert [one["type"] for one in await run(client, "ack", "nack", "ack")] == FORWARD
        assert await state_of(client, saga) == ("completed", ["completed", "failed", "completed"])


async def test_a_step_that_is_cancelled_is_one_that_failed(serve: Serve) -> None:
    async with serve() as client:
        saga = await begin(client)
        await run(client, "ack")
        await client.ask("DELETE", f"/ojs/v1/jobs/{(await next_job(client))['id']}")
        assert [one["type"] for one in await run(client, "ack")] == ["inventory.release"]
        assert (await state_of(client, saga))[0] == "compensated"


async def test_a_saga_that_is_cancelled_starts_nothing_more(serve: Serve) -> None:
    async with serve() as client:
        saga = await begin(client)
        await run(client, "ack")
        assert (await client.ask("DELETE", f"{WORKFLOWS}/{saga}"))["state"] == "cancelled"
        assert await client.fetch("default") == []
        assert await state_of(client, saga) == ("cancelled", ["completed", "cancelled", "cancelled"])


STEP = {"name": "a", "job_type": "a.b", "args": []}


@pytest.mark.parametrize(
    "body",
    [
        {"steps": []},
        {"steps": [STEP, STEP]},
        {"steps": [{"job_type": "a.b", "args": []}]},
        {"steps": [{"name": "a", "args": []}]},
        {"steps": [{**STEP, "compensate_args": []}]},
        {"steps": [{**STEP, "compensate_type": "NO"}]},
        {"steps": [{**STEP, "args": 3}]},
        {"steps": [STEP], "failure_policy": "undo"},
        {"steps": [STEP], "failure_policy": ["skip"]},
        {"type": "chain", "steps": [{"type": "saga", "steps": [STEP]}]},
    ],
)
async def test_an_odd_saga_is_refused(client: Client, body: dict[str, object]) -> None:
    found = await client.ask("POST", WORKFLOWS, {"type": "saga", "name": "x", **body}, 400)
    assert "steps" in found["error"]["message"] or "failure_policy" in found["error"]["message"]
