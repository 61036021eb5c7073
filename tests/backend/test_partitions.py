"""Fetching over HTTP from a queue with partitions: it is one queue for clients."""

import asyncio

from tests.backend.conftest import client_of
from waybill.ojs import Topology
from waybill.ojs.spec.event_partitions import partition_of_job

DIVIDED = Topology(partitions={"email": 4})


async def test_all_partitions_are_fetched(uri: str) -> None:
    async with client_of(uri, DIVIDED) as client:
        pushed = {await client.push() for _ in range(30)}
        assert (await client.ask("GET", "/ojs/v1/queues/email/stats"))["stats"]["available"] == 30
        few = await client.fetch(count=7)
        rest = await client.fetch(count=100)
        assert (len(few), len(rest)) == (7, 23)
        assert {job["id"] for job in few + rest} == pushed
        for job in few:
            await client.ack(job["id"])
        for job in rest:
            await client.nack(job["id"])
        assert await client.fetch() == []


async def test_whoever_waits_is_served_from_any_partition(uri: str) -> None:
    async with client_of(uri, DIVIDED) as client:
        for _ in range(8):
            waiting = asyncio.create_task(client.fetch(wait_ms=20_000))
            job_id = await client.push()
            assert [job["id"] for job in await waiting] == [job_id]
            await client.ack(job_id)


async def test_what_is_answered_is_known_whichever_event_partition_tells_of_it(uri: str) -> None:
    async with client_of(uri, Topology(event_partitions=3)) as client:
        pushed = [await client.push() for _ in range(30)]
        assert {partition_of_job(job_id, 3) for job_id in pushed} == {0, 1, 2}
        assert [(await client.job(job_id))["state"] for job_id in pushed] == ["available"] * 30
        fetched = await client.fetch(count=30)
        assert {job["id"] for job in fetched} == set(pushed)
        assert {(await client.job(job_id))["state"] for job_id in pushed} == {"active"}
        for job in fetched:
            await client.ack(job["id"], result={"ok": True})
        assert {(await client.job(job_id))["state"] for job_id in pushed} == {"completed"}
        assert (await client.ask("GET", "/ojs/v1/queues/email/stats"))["stats"]["completed"] == 30
    async with client_of(uri, Topology(event_partitions=3)) as client:
        assert {(await client.job(job_id))["state"] for job_id in pushed} == {"completed"}, "read from the streams"
