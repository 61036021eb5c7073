"""Workflows that go on when the dead letter of a step is retried over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backend.conftest import Client, client_of
from tests.backend.test_workflows import begin, get, job, work
from waybill.ojs import Jobs
from waybill.ojs.dead_letters import DeadLetters

CHAIN = {"type": "chain", "steps": [job("one"), job("two", retry={"max_attempts": 1}), job("three")]}


async def fail(client: Client) -> tuple[str, str]:
    """Let the second step of a workflow fail; returns the ids of the workflow and of the dead letter."""
    made = await begin(client, CHAIN)
    await work(client, one=1)
    (second,) = await client.fetch("flow")
    await client.nack(second["id"])
    assert (await get(client, made["id"]))["state"] == "failed"
    return made["id"], second["id"]


async def finish(client: Client, workflow_id: str) -> None:
    found = await get(client, workflow_id)
    assert (found["state"], found["errors"], found["failed_job_ids"]) == ("running", [], [])
    assert "failed_at" not in found
    assert [one["state"] for one in found["steps"]] == ["completed", "pending", "waiting"]
    (second,) = await work(client, two=2)
    assert (second["type"], second["parent_results"]) == ("two", [1])
    (third,) = await work(client, three=3)
    assert (third["type"], third["parent_results"]) == ("three", [1, 2])
    found = await get(client, workflow_id)
    assert (found["state"], found["result"], found["steps_completed"]) == ("completed", 3, 3)


@pytest.mark.parametrize("path", ["dead-letter/{}/retry", "admin/dead-letter/{}/retry"])
async def test_the_workflow_of_a_dead_letter_goes_on(client: Client, path: str) -> None:
    workflow_id, job_id = await fail(client)
    await client.ask("POST", f"/ojs/v1/{path.format(job_id)}", {})
    await finish(client, workflow_id)


@pytest.mark.parametrize("path", ["dead-letter/retry", "jobs/bulk/retry"])
async def test_workflows_go_on_after_a_bulk_retry(client: Client, path: str) -> None:
    workflow_id, job_id = await fail(client)
    body: dict[str, Any] = {"ids": [job_id]} if path.startswith("dead") else {"job_ids": [job_id]}
    await client.ask("POST", f"/ojs/v1/{path}", body)
    await finish(client, workflow_id)


async def test_a_job_that_fails_again_is_a_dead_letter_again(client: Client) -> None:
    workflow_id, job_id = await fail(client)
    for _ in range(2):
        await client.ask("POST", f"/ojs/v1/dead-letter/{job_id}/retry", {})
        await client.fetch("flow")
        await client.nack(job_id)
        assert (await get(client, workflow_id))["state"] == "failed"
    await client.ask("POST", f"/ojs/v1/dead-letter/{job_id}/retry", {})
    await finish(client, workflow_id)


async def test_another_server_goes_on(uri: str) -> None:
    async with client_of(uri) as client:
        workflow_id, job_id = await fail(client)
    async with Jobs(uri, results=False) as jobs, DeadLetters(jobs, "flow") as dead:
        assert await dead.retry([job_id]) == 1
    async with client_of(uri) as client:
        await finish(client, workflow_id)
