"""A worker that goes away while it waits for jobs loses none: what it did not hear of is as new for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from tests.backend.conftest import Client
from waybill.backend.leases import Lease
from waybill.client import Channel, Delivery

FETCH = "/ojs/v1/workers/fetch"


async def test_jobs_whose_answer_nobody_took_are_given_to_the_next(client: Client) -> None:
    ids = [await client.push() for _ in range(2)]
    response = await client.send("POST", FETCH, {"queues": ["email"], "worker_id": "w1", "count": 2})
    assert [job["id"] for job in msgspec.json.decode(response.body)["jobs"]] == ids
    await client.ack(ids[0])
    assert response.unheard is not None
    response.unheard()
    [fetched] = await client.fetch(worker="w2", count=2, wait_ms=10_000)
    assert (fetched["id"], fetched["attempt"]) == (ids[1], 1)
    await client.ack(ids[1])


async def test_a_fetch_that_is_cut_off_before_its_answer_gives_back_what_it_has(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = asyncio.Event()

    async def begun(_leases: Sequence[Lease]) -> None:
        taken.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(client.backend, "begun", begun)
        fetching = asyncio.create_task(client.fetch(wait_ms=10_000))
        job_id = await client.push()
        await taken.wait()
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
    [fetched] = await client.fetch(worker="w2", wait_ms=10_000)
    assert (fetched["id"], fetched["attempt"]) == (job_id, 1)


async def test_what_the_broker_gives_for_a_fetch_that_was_cut_off_is_for_the_next(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()
    real = Channel.get_many

    async def slow(channel: Channel, queue: str, count: int) -> list[Delivery]:
        got = await real(channel, queue, count)
        asked.set()
        await go_on.wait()
        return got

    job_id = await client.push()
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "get_many", slow)
        fetching = asyncio.create_task(client.fetch())
        await asked.wait()
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        go_on.set()
    [fetched] = await client.fetch(worker="w2", wait_ms=10_000)
    assert (fetched["id"], fetched["attempt"]) == (job_id, 1)


async def test_an_attempt_that_is_over_ends_nothing(client: Client) -> None:
    job_id = await client.push()
    await client.fetch()
    assert (await client.ack(job_id, 409, attempt=2))["error"]["details"]["current_attempt"] == 1
    answer = await client.nack(job_id, requeue=True, delay_ms=3_600_000, attempt=1)
    assert (answer["state"], answer["requeued"]) == ("scheduled", True)
    assert (await client.job(job_id))["state"] == "scheduled"
    assert await client.fetch() == []
