"""A broker that does not confirm in time, as a quorum queue without a leader: nothing is given up for that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from tests.ojs.eye import Eye, until
from tests.ojs.proxy import Proxy
from waybill.ojs import BatchFailed, JobError, Jobs, NewJob, PushFailed, Retry, Worker, current_job
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.push.bulk import JobTable
from waybill.ojs.spec.identifiers import new_id

AGAIN = Retry(max_attempts=2, initial_interval=timedelta(seconds=1), jitter=False)


def time_out(broker: BrokerConnection) -> None:
    """Let the time for all confirms that a program waits for be over."""
    for channel in (broker.publishing, *broker.events._channels):
        current = channel._current
        assert current is not None
        assert current.publisher.confirms is not None
        channel._look_at_confirms(current, current.publisher.confirms.next_number)


@asynccontextmanager
async def without_confirms(proxy: Proxy, eye: Eye, queue: str, broker: BrokerConnection) -> AsyncIterator[None]:
    """Take away the broker's answers, until one more message is in a queue, and its publisher waits no longer."""
    count = await eye.count(queue)
    proxy.swallowing_answers = True
    yield
    while await eye.count(queue) == count:
        await asyncio.sleep(0.01)
    time_out(broker)
    proxy.swallowing_answers = False


async def test_a_retry_without_a_confirm_is_published_again_and_not_discarded(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    attempts: list[tuple[str, int]] = []
    failing = asyncio.Event()
    async with Proxy(broker_uri) as proxy, Jobs(broker_uri) as client:
        jobs = Jobs(proxy.uri)

        @jobs.handler("unconfirmed.retry", queue=queue_name, retry=AGAIN)
        async def fail_once(name: str) -> None:
            attempt = current_job().attempt
            attempts.append((name, attempt))
            if name == "second" and attempt == 1:
                await failing.wait()
            if attempt == 1:
                raise JobError("once")

        async with Worker(jobs) as worker:
            # The first job has the retry queue declared: only confirms are to be missing.
            await client.push("unconfirmed.retry", ["first"], queue=queue_name, retry=AGAIN)
            await until(lambda: worker.counts["completed"] == 1)
            copies = await eye.tap("ojs.exchange.retry", f"{queue_name}.1000")
            await client.push("unconfirmed.retry", ["second"], queue=queue_name, retry=AGAIN)
            await until(lambda: ("second", 1) in attempts)
            assert worker._broker is not None
            async with without_confirms(proxy, eye, copies, worker._broker):
                failing.set()
            await until(lambda: worker.counts["completed"] >= 2 and worker.counts["retried"] == 2)
            assert worker.counts["discarded"] == 0
        assert await eye.count(copies) == 2
        assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 0
    assert {*attempts} == {(name, attempt) for name in ("first", "second") for attempt in (1, 2)}


@pytest.mark.parametrize("how", ["one", "batch", "bulk"])
async def test_a_push_without_a_confirm_is_published_again(
    broker_uri: str, eye: Eye, queue_name: str, how: str
) -> None:
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri) as jobs:
        await jobs.push("unconfirmed.push", queue=queue_name)
        broker = (await jobs.publisher()).broker
        async with without_confirms(proxy, eye, f"ojs.queue.{queue_name}", broker):
            pushing = asyncio.get_running_loop().create_task(push(jobs, queue_name, how))
        assert await pushing == 1
    assert await eye.count(f"ojs.queue.{queue_name}") == 3, "at least once: it was there, but nobody knew"


@pytest.mark.parametrize("how", ["one", "batch", "bulk"])
async def test_a_push_that_is_never_confirmed_fails_in_time(broker_uri: str, queue_name: str, how: str) -> None:
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri) as jobs:
        await jobs.push("unconfirmed.push", queue=queue_name)
        publisher = await jobs.publisher()
        publisher.timeout_seconds, broker = 0.5, publisher.broker
        proxy.swallowing_answers = True
        pushing = asyncio.get_running_loop().create_task(push(jobs, queue_name, how))
        while not pushing.done():
            await asyncio.sleep(0.01)
            time_out(broker)
        with pytest.raises((PushFailed, BatchFailed)) as caught:
            await pushing
        error = caught.value
        assert (error.failures[0] if isinstance(error, BatchFailed) else error).code == "BACKEND_UNAVAILABLE"
        proxy.swallowing_answers = False
        proxy.cut()


async def push(jobs: Jobs, queue: str, how: str) -> int:
    """Push a job in one of the ways there are; how many were pushed."""
    if how == "one":
        return len([await jobs.push("unconfirmed.push", queue=queue)])
    if how == "batch":
        return len(await jobs.push_many([NewJob("unconfirmed.push", [], {"queue": queue})]))
    pushing = await jobs.bulk()
    job_id = new_id()
    await pushing.push(JobTable([jobs.kind("unconfirmed.push", {"queue": queue})], [job_id], [b"[]"], [job_id]))
    return await pushing.finish()
