"""Unique jobs as steps of workflows (ojs-extension-interactions section 3, ojs-unique-jobs section 5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.backend.conftest import Client
from tests.backend.test_workflows import begin, get

UNIQUE = {"keys": ["type", "args"]}
LATER = f"{datetime.now(UTC).year + 1}-12-01T00:00:00.000Z"


def step(kind: str, on_conflict: str | None = None, **fields: object) -> dict[str, object]:
    unique = {} if on_conflict is None else {"unique": {**UNIQUE, "on_conflict": on_conflict}}
    return {"type": kind, "args": ["x"], "options": {"queue": "flow", **unique, **fields}}


async def push(client: Client, kind: str = "report.make", **fields: object) -> str:
    body = step(kind, "reject", **fields)
    found: str = (await client.ask("POST", "/ojs/v1/jobs", body, 201))["job"]["id"]
    return found


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await is_so():
            await asyncio.sleep(0.02)


async def ended(client: Client, workflow_id: str) -> Any:
    async def is_over() -> bool:
        return bool((await get(client, workflow_id))["state"] != "running")

    await until(is_over)
    return await get(client, workflow_id)


async def types(client: Client) -> list[str]:
    return [one["type"] for one in await client.fetch("flow", count=9)]


@pytest.mark.parametrize("on_conflict", ["reject", "replace", "replace_except_schedule", "ignore"])
async def test_a_step_without_a_duplicate_runs(client: Client, on_conflict: str) -> None:
    made = await begin(client, {"type": "chain", "steps": [step("report.make", on_conflict), step("report.send")]})
    (first,) = await client.fetch("flow")
    assert (first["type"], first["unique"]["on_conflict"]) == ("report.make", on_conflict)
    refused = await client.ask("POST", "/ojs/v1/jobs", step("report.make", "reject"), 409)
    assert refused["error"]["details"]["existing_job_id"] == first["id"]
    await client.ack(first["id"], result=1)
    assert await types(client) == ["report.send"]
    await push(client)
    assert made["state"] == "running"


async def test_a_rejected_step_fails_its_chain(client: Client) -> None:
    other = await push(client)
    made = await begin(client, {"type": "chain", "steps": [step("report.make", "reject"), step("report.send")]})
    found = await ended(client, made["id"])
    assert (found["state"], found["failed_step_index"]) == ("failed", 0)
    assert [one["state"] for one in found["steps"]] == ["failed", "cancelled"]
    assert found["errors"][0]["code"] == "DUPLICATE"
    assert other in found["errors"][0]["message"]
    (mine,) = await client.fetch("flow", count=9)
    assert mine["id"] == other
    await client.ack(other)
    await client.ask("POST", f"/ojs/v1/workflows/{made['id']}/retry")
    (mine,) = await client.fetch("flow", count=9)
    await client.ack(mine["id"])
    assert await types(client) == ["report.send"]


async def test_a_replacing_step_cancels_the_other_job(client: Client) -> None:
    other = await push(client, delay_until=LATER)
    await begin(client, {"type": "chain", "steps": [step("report.make", "replace")]})

    async def is_cancelled() -> bool:
        return bool((await client.job(other))["state"] == "cancelled")

    await until(is_cancelled)
    assert await types(client) == ["report.make"]


async def test_a_step_that_replaces_all_but_the_schedule_waits_for_its_time(client: Client) -> None:
    await push(client, delay_until=LATER)
    made = await begin(client, {"type": "chain", "steps": [step("report.make", "replace_except_schedule")]})
    found = await client.job(made["steps"][0]["job_id"])
    assert (found["state"], found["scheduled_at"]) == ("scheduled", LATER)


async def test_a_running_job_is_not_replaced_by_a_step(client: Client) -> None:
    other = await push(client)
    await client.fetch("flow")
    made = await begin(client, {"type": "group", "jobs": [step("report.make", "replace"), step("report.send")]})
    assert await types(client) == ["report.send"]
    assert (await client.job(other))["state"] == "active"
    assert (await get(client, made["id"]))["steps"][0]["state"] == "failed"


@pytest.mark.parametrize("fails", [False, True])
async def test_an_ignored_step_takes_the_outcome_of_the_other_job(client: Client, *, fails: bool) -> None:
    other = await push(client, retry={"max_attempts": 1})
    made = await begin(client, {"type": "chain", "steps": [step("report.make", "ignore"), step("report.send")]})

    async def is_shown() -> bool:
        return bool((await get(client, made["id"]))["steps"][0]["job_id"] == other)

    await until(is_shown)
    (first,) = await client.fetch("flow", count=9)
    assert first["id"] == other
    if fails:
        await client.nack(other)
        found = await ended(client, made["id"])
        assert [one["state"] for one in found["steps"]] == ["failed", "cancelled"]
        assert (found["failed_job_ids"], found["errors"][0]["message"]) == ([other], "no")
        return
    await client.ack(other, result={"path": "r.pdf"})
    (second,) = await client.fetch("flow", count=9, wait_ms=9000)
    assert (second["type"], second["parent_results"]) == ("report.send", [{"path": "r.pdf"}])


async def test_equal_jobs_of_a_group_are_one(client: Client) -> None:
    jobs = [step("report.make", "ignore"), step("report.make", "ignore")]
    made = await begin(client, {"type": "batch", "jobs": jobs, "callbacks": {"on_success": step("report.send")}})
    (only,) = await client.fetch("flow", count=9)
    await client.ack(only["id"], result=7)
    (callback,) = await client.fetch("flow", count=9, wait_ms=9000)
    assert (callback["type"], callback["parent_results"]) == ("report.send", [7, 7])
    assert {one["job_id"] for one in (await get(client, made["id"]))["jobs"]} == {only["id"]}


async def test_a_rejected_job_of_a_batch_calls_on_failure(client: Client) -> None:
    await push(client)
    callbacks = {"on_failure": step("report.alert"), "on_success": step("report.send")}
    await begin(client, {"type": "batch", "jobs": [step("report.make", "reject")], "callbacks": callbacks})
    found = await client.fetch("flow", count=9, wait_ms=9000)
    found += await client.fetch("flow", count=9, wait_ms=1000)
    assert {one["type"] for one in found} == {"report.make", "report.alert"}


async def test_a_cancelled_workflow_leaves_the_job_that_it_waits_for(client: Client) -> None:
    other = await push(client)
    made = await begin(client, {"type": "chain", "steps": [step("report.make", "ignore"), step("report.send")]})
    await client.ask("DELETE", f"/ojs/v1/workflows/{made['id']}")
    (found,) = await client.fetch("flow", count=9)
    assert found["id"] == other
    await client.ack(other)
    assert (await get(client, made["id"]))["state"] == "cancelled"
