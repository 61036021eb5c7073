"""Jobs move to another queue: failed ones to a `dead_letter_queue`, and those of a deleted queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.backend.conftest import FAST, Client
from waybill.backend import redirections
from waybill.ojs import Jobs, Worker

QUEUES = "/ojs/v1/queues"
DEAD = "/ojs/v1/dead-letter"
ONCE = {"max_attempts": 1}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redirections, "PAUSE_SECONDS", 0.05)


async def moved(client: Client, job_id: str, queue: str) -> Any:
    """Wait until a job is available in a queue."""
    while (job := await client.job(job_id))["queue"] != queue or job["state"] != "available":
        await asyncio.sleep(0.02)
    return job


async def fail(client: Client, job_id: str, queue: str = "email") -> None:
    await client.fetch(queue)
    error = {"code": "card_declined", "type": "CardDeclined", "message": "no"}
    assert (await client.nack(job_id, error=error))["state"] == "discarded"


async def test_a_failed_job_moves_to_the_dead_letter_queue_of_its_queue(client: Client) -> None:
    before = await client.push(retry=ONCE)
    await fail(client, before)
    config = {"dead_letter_queue": "email-dlq"}
    assert (await client.ask("PUT", f"{QUEUES}/email/config", config))["config"]["dead_letter_queue"] == "email-dlq"
    job_id = await client.push(retry=ONCE, meta={"trace": "x"}, enqueue_ttl=3600)
    await fail(client, job_id)
    job = await moved(client, job_id, "email-dlq")
    assert (job["error"]["type"], [one["type"] for one in job["errors"]]) == ("CardDeclined", ["CardDeclined"])
    [fetched] = await client.fetch("email-dlq")
    assert (fetched["id"], fetched["attempt"], fetched["meta"]["trace"]) == (job_id, 1, "x")
    assert fetched["error"]["message"] == "no"
    assert [one["id"] for one in (await client.ask("GET", DEAD))["jobs"]] == [before]
    # Where the queue of the moved job names none, a dead letter stays.
    await client.nack(job_id)
    while len((await client.ask("GET", DEAD))["jobs"]) < 2:
        await asyncio.sleep(0.02)


async def test_failures_of_workers_over_amqp_move_as_well(client: Client, uri: str) -> None:
    await client.ask("PUT", f"{QUEUES}/_default/config", {"dead_letter_queue": "graveyard"})
    job_id = await client.push(retry=ONCE)
    async with Jobs(uri) as jobs:

        @jobs.handler("email.send")
        async def send(_address: str) -> None:
            raise ValueError("no")

        async with Worker(jobs, queues=["email"]):
            assert (await moved(client, job_id, "graveyard"))["error"]["type"] == "ValueError"
    expired = await client.push(enqueue_ttl=1)
    while (await client.job(expired))["state"] != "discarded":
        await asyncio.sleep(0.02)
    assert await client.fetch() == []
    while not (await client.ask("GET", f"{DEAD}?queue=email"))["jobs"]:
        await asyncio.sleep(0.02)
    # Another failure moves, this one does not.
    other = await client.push(retry=ONCE)
    await fail(client, other)
    await moved(client, other, "graveyard")
    assert [one["id"] for one in (await client.ask("GET", f"{DEAD}?queue=email"))["jobs"]] == [expired]


async def test_dead_letter_queues_lead_to_another_queue(client: Client) -> None:
    await client.ask("PUT", f"{QUEUES}/a/config", {"dead_letter_queue": "b"})
    for queue, target in (("a", "a"), ("b", "a"), ("a", "Not Good"), ("a", 3)):
        await client.ask("PUT", f"{QUEUES}/{queue}/config", {"dead_letter_queue": target}, 400)
    removed = await client.ask("PUT", f"{QUEUES}/a/config", {"dead_letter_queue": None})
    assert "dead_letter_queue" not in removed["config"]


async def test_the_jobs_of_a_deleted_queue_move(client: Client) -> None:
    active = await client.push("old", retry=FAST)
    await client.fetch("old")
    waiting = await client.push("old", priority=5)
    later = await client.push("old", delay_until="+PT1S")
    body = {"strategy": "move", "target_queue": "new"}
    found = await client.ask("DELETE", f"{QUEUES}/old", body, 202)
    assert {name: found[name] for name in ("queue", "strategy", "target_queue", "jobs_affected", "state")} == {
        "queue": "old",
        "strategy": "move",
        "target_queue": "new",
        "jobs_affected": 3,
        "state": "draining",
    }
    assert (await client.ask("GET", f"{QUEUES}/old"))["state"] == "draining"
    refused = {"type": "a.b", "args": [], "options": {"queue": "old"}}
    assert (await client.ask("POST", "/ojs/v1/jobs", refused, 409))["error"]["details"] == {"queue": "old"}
    assert (await moved(client, waiting, "new"))["priority"] == 5
    await client.nack(active)
    await moved(client, later, "new")
    assert (await moved(client, active, "new"))["attempt"] == 1
    while [one["name"] for one in (await client.ask("GET", QUEUES))["queues"]] != ["new"]:
        await asyncio.sleep(0.02)
    jobs = {one["id"]: one["attempt"] for one in await client.fetch("new", count=5)}
    assert jobs == {waiting: 1, later: 1, active: 2}
    assert await client.fetch("old") == []
    await client.push("old")


async def test_a_queue_that_is_made_again_keeps_its_jobs(client: Client) -> None:
    later = await client.push("old", delay_until="+PT1H")
    await client.ask("DELETE", f"{QUEUES}/old", {"strategy": "move", "target_queue": "new"}, 202)
    for target in ("old", 3, "Not Good", None):
        await client.ask("DELETE", f"{QUEUES}/old", {"strategy": "move", "target_queue": target}, 400)
    await client.ask("DELETE", f"{QUEUES}/old", {"strategy": "burn"}, 400)
    await client.ask("POST", QUEUES, {"name": "old"}, 201)
    assert (await client.ask("GET", f"{QUEUES}/old"))["state"] == "active"
    await client.push("old")
    assert (await client.job(later))["queue"] == "old"


async def test_a_dead_letter_is_retried_in_another_queue(client: Client) -> None:
    job_id = await client.push(retry=ONCE, meta={"user": 7})
    await fail(client, job_id)
    while not (await client.ask("GET", DEAD))["jobs"]:
        await asyncio.sleep(0.02)
    override = {"queue": "email-retry", "meta": {"source": "operator"}, "retry": {"max_attempts": 2}}
    found = await client.ask("POST", f"{DEAD}/{job_id}/retry", {"override": override})
    assert (found["state"], found["queue"], found["max_attempts"]) == ("available", "email-retry", 2)
    assert found["meta"] == {"user": 7, "source": "operator"}
    [job] = await client.fetch("email-retry")
    assert (job["id"], job["attempt"], job["max_attempts"]) == (job_id, 1, 2)
