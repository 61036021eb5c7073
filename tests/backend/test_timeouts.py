"""The time limits of jobs over HTTP (ojs-timeouts): the TTL of waiting jobs, grace, heartbeats, the total time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.backend.conftest import Client
from waybill.ojs import Jobs, Worker, current_job

ONCE = {"max_attempts": 1}


async def until(client: Client, job_id: str, state: str) -> Any:
    """Wait until a job has a state."""
    while (job := await client.job(job_id))["state"] != state:
        await asyncio.sleep(0.05)
    return job


async def event_of(client: Client, kind: str) -> Any:
    """Return the data of the first event of a type, once there is one."""
    while not (found := (await client.ask("GET", f"/ojs/v1/events?types={kind}"))["events"]):
        await asyncio.sleep(0.05)
    return found[0]["data"]


def shown(record: Any) -> Any:
    """Return what an error, or an event, says of a limit; the time that it took must be beyond the limit."""
    assert record["elapsed_seconds"] >= record["limit_seconds"]
    return record.get("type"), record["timeout_kind"], record["limit_seconds"]


async def test_a_job_that_does_not_start_within_its_ttl_is_discarded(client: Client) -> None:
    late = await client.push(enqueue_ttl=1)
    scheduled = await client.push(enqueue_ttl=1, delay_until="+PT1H")
    seen = [await until(client, one, "discarded") for one in (late, scheduled)]
    assert [shown(one["error"]) for one in seen] == [("enqueue_ttl_expired", "enqueue_ttl", 1)] * 2
    assert await client.fetch() == []
    assert shown((await client.job(late))["error"]) == ("enqueue_ttl_expired", "enqueue_ttl", 1)
    assert shown(await event_of(client, "job.ttl_expired")) == (None, "enqueue_ttl", 1)


async def test_the_ttl_ends_with_the_first_attempt(client: Client) -> None:
    job_id = await client.push(enqueue_ttl=1, retry={"max_attempts": 3, "initial_interval": "PT2S", "jitter": False})
    await client.fetch()
    await client.nack(job_id)
    assert (await until(client, job_id, "available"))["attempt"] == 1
    assert [one["attempt"] for one in await client.fetch(wait_ms=9000)] == [2]


async def test_an_attempt_without_heartbeats_has_stalled(client: Client) -> None:
    job_id = await client.push(heartbeat_timeout=1, retry={"max_attempts": 2, "initial_interval": "PT9S"})
    await client.fetch()
    for _ in range(3):
        await asyncio.sleep(0.5)
        beat = {"worker_id": "w1", "active_jobs": [job_id]}
        assert (await client.ask("POST", "/ojs/v1/workers/heartbeat", beat))["jobs_extended"] == [job_id]
    job = await until(client, job_id, "retryable")
    assert shown(job["error"]) == ("stalled", "stalled", 1)
    assert shown(await event_of(client, "job.stalled")) == (None, "stalled", 1)


async def test_an_attempt_has_its_grace_period_after_the_timeout(client: Client) -> None:
    job_id = await client.push(timeout=1, grace_period=60, retry=ONCE)
    other = await client.push(timeout=1, grace_period=0, retry=ONCE)
    await client.fetch(count=2)
    job = await until(client, other, "discarded")
    assert shown(job["error"]) == ("timeout", "execution", 1)
    assert shown(await event_of(client, "job.timeout")) == (None, "execution", 1)
    assert (await client.ack(job_id))["state"] == "completed"


async def test_an_attempt_ends_with_the_total_timeout(client: Client) -> None:
    job_id = await client.push(total_timeout=1, retry={"max_attempts": 9})
    waiting = await client.push("other", total_timeout=1)
    await client.fetch()
    job = await until(client, job_id, "discarded")
    assert shown(job["error"]) == ("total_timeout", "total", 1)
    assert shown(await event_of(client, "job.total_timeout")) == (None, "total", 1)
    assert (await until(client, waiting, "discarded"))["error"]["type"] == "total_timeout"


async def test_no_attempt_follows_that_could_not_end_in_time(client: Client) -> None:
    """Section 9.1."""
    job_id = await client.push(total_timeout=60, timeout=59, retry={"max_attempts": 9, "initial_interval": "PT5S"})
    await client.fetch()
    assert (await client.nack(job_id))["state"] == "discarded"


async def test_a_worker_over_amqp_discards_jobs_beyond_their_ttl(client: Client, uri: str) -> None:
    job_id = await client.push(enqueue_ttl=1)
    await until(client, job_id, "discarded")
    ran: list[str] = []
    async with Jobs(uri) as jobs:

        @jobs.handler("email.send")
        def send(address: str) -> None:
            ran.append(address)

        async with Worker(jobs, queues=["email"]):
            assert (await event_of(client, "job.ttl_expired"))["job_id"] == job_id
    assert ran == []


async def test_a_worker_over_amqp_ends_an_attempt_with_the_total_timeout(client: Client, uri: str) -> None:
    job_id = await client.push(total_timeout=2, retry={"max_attempts": 9, "initial_interval": "PT0.1S"})
    async with Jobs(uri) as jobs:

        @jobs.handler("email.send")
        async def send(_address: str) -> None:
            await asyncio.Event().wait()

        async with Worker(jobs, queues=["email"]):
            job = await until(client, job_id, "discarded")
    assert (job["attempt"], shown(job["error"])) == (1, ("total_timeout", "total", 2))
    assert shown(await event_of(client, "job.total_timeout")) == (None, "total", 2)


async def test_a_thread_has_its_grace_period_before_it_is_abandoned(client: Client, uri: str) -> None:
    job_id = await client.push(timeout=1, grace_period=60, retry=ONCE)
    done: list[str] = []
    async with Jobs(uri) as jobs:

        @jobs.handler("email.send")
        def send(_address: str) -> None:
            job = current_job()
            while not job.is_cancelled:
                time.sleep(0.01)
            time.sleep(0.2)
            done.append("cleaned up")

        async with Worker(jobs, queues=["email"]):
            job = await until(client, job_id, "discarded")
    assert (done, job["error"]["type"]) == (["cleaned up"], "timeout")
