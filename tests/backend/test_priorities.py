"""The priority of a waiting job can be changed (ojs-priority section 8)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend import scheduled_priorities
from waybill.ojs import Jobs, Worker, current_job

JOBS = "/ojs/v1/jobs"


async def change(client: Client, job_id: str, priority: object, status: int = 200) -> Any:
    return await client.ask("PATCH", f"{JOBS}/{job_id}", {"priority": priority}, status)


async def order(client: Client) -> list[str]:
    return [(await client.fetch())[0]["id"] for _ in range(3)]


@pytest.mark.parametrize("is_fetched_from", [False, True])
async def test_a_job_goes_before_others(client: Client, is_fetched_from: bool) -> None:
    if is_fetched_from:
        # The server has taken the jobs in advance, to sort them.
        await client.push(priority=3)
        await client.push(priority=2)
    ids = [await client.push(priority=1) for _ in range(3)]
    if is_fetched_from:
        await client.fetch()
        await client.fetch()
    found = await change(client, ids[2], 5)
    assert (found["id"], found["priority"], found["previous_priority"]) == (ids[2], 5, 1)
    assert (found["state"], (await client.job(ids[2]))["priority"]) == ("available", 5)
    assert await order(client) == [ids[2], ids[0], ids[1]]
    for job_id in ids:
        await client.ack(job_id)
    assert await client.fetch() == []
    assert (await client.ask("GET", "/ojs/v1/admin/stats"))["jobs"]["available"] == 0


async def test_the_other_jobs_keep_their_attempts_and_their_order(client: Client, uri: str) -> None:
    """A worker over AMQP counts an attempt of a job that is redelivered."""
    ids = [await client.push(retry={"max_attempts": 1}) for _ in range(4)]
    await change(client, ids[2], 5)
    ran: list[tuple[str, int]] = []
    done = asyncio.Event()
    async with Jobs(uri) as jobs:

        @jobs.handler("email.send")
        async def send(_address: str) -> None:
            ran.append((current_job().id, current_job().attempt))
            if len(ran) == len(ids):
                done.set()

        async with Worker(jobs, queues=["email"], concurrency=1):
            await done.wait()
    assert ran == [(ids[index], 1) for index in (2, 0, 1, 3)]


async def test_a_changed_job_stays_the_job_that_it_was(client: Client) -> None:
    job_id = await client.push(retry={"max_attempts": 7}, meta={"trace": "x"})
    before = await client.job(job_id)
    await change(client, job_id, "high")
    assert await client.job(job_id) == before | {"priority": 3}
    [job] = await client.fetch()
    assert (job["attempt"], job["max_attempts"], job["meta"]["trace"], job["priority"]) == (1, 7, "x", 3)
    history = await client.ask("GET", f"{JOBS}/{job_id}/history")
    assert [one["event_type"] for one in history["events"]].count("job.created") == 1


async def test_a_message_that_a_killed_server_left_does_not_run(client: Client) -> None:
    """It has published the job with the other priority, and not settled the message with the former one."""
    job_id = await client.push("email")
    broker = client.backend.broker
    topology = broker.declarer.topology
    async with await broker.connection.channel() as channel:
        message = await channel.get(topology.job_queue("email"))
        assert message is not None
        await channel.publish(
            message.body, exchange=topology.direct, routing_key="email", properties=message.properties
        )
        await change(client, job_id, 7)
    [job] = await client.fetch()
    assert (job["id"], job["priority"]) == (job_id, 7)
    await client.ack(job_id)
    assert await client.fetch() == []
    assert (await client.job(job_id))["state"] == "completed"


async def test_a_job_that_was_scheduled_stays_available(client: Client) -> None:
    job_id = await client.push(scheduled_at="+PT1S")
    while (await client.job(job_id))["state"] != "available":
        await asyncio.sleep(0.05)
    while "updated" not in str((await client.send("PATCH", JOBS, {"job_ids": [job_id], "priority": 4})).body):
        await asyncio.sleep(0.05)
    assert (await client.job(job_id))["state"] == "available"


async def _scheduled(client: Client, monkeypatch: pytest.MonkeyPatch) -> str:
    """Schedule a job and change its priority, twice."""
    monkeypatch.setattr(scheduled_priorities, "LEAST_SECONDS", 0.1)
    job_id = await client.push(scheduled_at="+PT2S", meta={"trace": "x"})
    before = await client.job(job_id)
    await change(client, job_id, 3)
    found = await change(client, job_id, 7)
    assert (found["priority"], found["previous_priority"], found["state"]) == (7, 3, "scheduled")
    after = await client.job(job_id)
    assert after == before | {"priority": 7, "enqueued_at": after["enqueued_at"]}
    while (await client.job(job_id))["state"] != "available":
        await asyncio.sleep(0.05)
    return job_id


async def test_a_scheduled_job_can_be_changed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await _scheduled(client, monkeypatch)
    found: list[Any] = []
    while not found:
        found = await client.fetch(wait_ms=9000)
    assert [(one["id"], one["priority"], one["meta"]) for one in found] == [(job_id, 7, {"trace": "x"})]
    await client.ack(job_id)
    # The messages with the former priorities were dropped when they arrived.
    while (await client.ask("GET", "/ojs/v1/queues/email"))["depth"]:
        assert await client.fetch() == []
    assert (await client.job(job_id))["state"] == "completed"


async def test_a_worker_over_amqp_drops_the_former_messages(
    client: Client, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await _scheduled(client, monkeypatch)
    last = await client.push(priority=-1)
    ran: list[str] = []
    done = asyncio.Event()
    async with Jobs(uri) as jobs:

        @jobs.handler("email.send")
        async def send(_address: str) -> None:
            ran.append(current_job().id)
            if {job_id, last} <= set(ran):
                done.set()

        async with Worker(jobs, queues=["email"], concurrency=1):
            await done.wait()
            while (await client.ask("GET", "/ojs/v1/queues/email"))["depth"]:
                await asyncio.sleep(0.05)
    assert ran.count(job_id) == 1


@pytest.mark.parametrize("step", ["before REPLACE", "after REPLACE", "before the message", "after the message"])
async def test_what_a_killed_server_has_begun_is_completed_by_another(
    uri: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it has done, the job runs once, with the other priority."""
    monkeypatch.setattr(scheduled_priorities, "PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(scheduled_priorities, "LEAST_SECONDS", 0.1)
    is_there = asyncio.Event()

    async def at(this: str) -> None:
        if this == step:
            is_there.set()
            await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        async with client_of(uri) as killed:
            job_id = await killed.push(scheduled_at="+PT2S")
            broker = killed.backend.broker
            tell_workers, publish = broker.tell_workers, broker.publishing.publish

            async def slow_tell(*given: Any) -> None:
                await at("before REPLACE")
                await tell_workers(*given)
                await at("after REPLACE")

            async def slow_publish(body: bytes, **given: Any) -> None:
                # Only the message of the job goes to an exchange with a name.
                await at("before the message" if given.get("exchange") else "")
                await publish(body, **given)
                await at("after the message" if given.get("exchange") else "")

            monkeypatch.setattr(broker, "tell_workers", slow_tell)
            monkeypatch.setattr(broker.publishing, "publish", slow_publish)
            changing = asyncio.create_task(killed.send("PATCH", f"{JOBS}/{job_id}", {"priority": 5}))
            await is_there.wait()
            other = await stack.enter_async_context(client_of(uri))
        changing.cancel()
        while (await other.job(job_id))["priority"] != 5:
            await asyncio.sleep(0.05)
        found: list[Any] = []
        while not found:
            found = await other.fetch(wait_ms=9000)
        assert [(one["id"], one["priority"], one["attempt"]) for one in found] == [(job_id, 5, 1)]
        await other.ack(job_id)
        assert await other.fetch(wait_ms=500) == []
        assert (await other.ask("GET", "/ojs/v1/queues/email"))["depth"] == 0
        assert (await other.job(job_id))["state"] == "completed"


async def test_only_waiting_jobs_have_a_priority_to_change(client: Client) -> None:
    active, later = await client.push(), await client.push("later", scheduled_at="+PT1H")
    soon = await client.push("later", scheduled_at="+PT3S")
    unique = await client.push("later", scheduled_at="+PT1H", unique={"keys": ["args"]})
    await client.fetch()
    for job_id in (active, soon, unique):
        error = (await change(client, job_id, 1, 409))["error"]
        assert error["details"]["job_id"] == job_id
    await client.ack(active)
    await change(client, active, 1, 409)
    await change(client, "nobody", 1, 404)
    for priority in (101, "urgent", None, 1.5):
        await change(client, later, priority, 400)
    await client.ask("PATCH", f"{JOBS}/{later}", {}, 400)
    await client.ask("PATCH", f"{JOBS}/{later}", {"priority": 1, "args": []}, 422)


async def test_many_are_changed_by_ids_or_by_a_filter(client: Client) -> None:
    ids = [await client.push() for _ in range(3)]
    other, active = await client.push("other"), await client.push("busy")
    await client.fetch("busy")
    body = {"job_ids": [ids[2], active, "nobody"], "priority": 9}
    found = await client.ask("PATCH", JOBS, body, 207)
    assert [one["status"] for one in found["items"]] == ["updated", "skipped", "failed"]
    found = await client.ask("PATCH", JOBS, {"filter": {"queue": "email", "priority": 0}, "priority": -1})
    assert (found["updated"], found["total_matched"]) == (2, 2)
    assert [(await client.job(one))["priority"] for one in (*ids, other)] == [-1, -1, 9, 0]
    assert await order(client) == [ids[2], ids[0], ids[1]]
    await client.ask("PATCH", JOBS, {"job_ids": [active], "priority": 1}, 422)
    await client.ask("PATCH", JOBS, {"priority": 1}, 400)


async def test_a_message_that_nobody_can_decode_is_passed_by(client: Client) -> None:
    broker = client.backend.broker
    body = b'{"id":"deep","args":' + b"[" * 2000 + b"]" * 2000 + b"}"
    async with await broker.connection.channel() as channel:
        job_id = await client.push()
        name = broker.declarer.topology.job_queues("email")[0]
        await channel.publish(body, routing_key=name, mandatory=True)
        second = await client.push()
        found = await change(client, second, 5)
    assert (found["id"], found["priority"], found["previous_priority"]) == (second, 5, 0)
    assert [job["id"] for job in await client.fetch(count=3)] == [second, job_id]
