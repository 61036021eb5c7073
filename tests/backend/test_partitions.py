"""Fetching over HTTP from a queue with partitions: it is one queue for clients."""

import asyncio

from tests.backend.conftest import client_of
from waybill.ojs import Topology

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
