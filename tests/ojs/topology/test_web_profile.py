"""The variants of the binding's web page: its names, and failures and cancellations by nack."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.client.breaking import until
from tests.conformance.requirement import requirement
from tests.ojs.control.test_control import state_of
from tests.ojs.eye import Eye, Message
from waybill.ojs import WEB, Coordinator, InvalidJob, Jobs, Retry, Topology, Worker, current_job

NACK = Topology(names=WEB, prefix="nack.", settle_by="nack")


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri, topology=NACK) as jobs:
        yield jobs


async def rejected_copies(jobs: Jobs, eye: Eye, queue: str) -> str:
    """Tap what the broker dead-letters from a job queue: that is what nacks without requeue look like from outside."""
    broker = await jobs.broker_connection()
    await broker.declarer.ensure_queue(queue)
    return await eye.tap("nack.ojs.retry", queue)


def death(message: Message) -> tuple[str, str]:
    found: list[dict[str, Any]] = message.headers["x-death"]
    return found[0]["queue"], found[0]["reason"]


@requirement("OJSW-001", "OJSW-006", "OJSW-009", "OJSW-010", "OJSW-018", "OJSW-019", "OJSW-020")
async def test_a_failed_job_is_nacked_and_exactly_one_copy_comes_back(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    nacked = await rejected_copies(jobs, eye, queue_name)
    delayed = await eye.tap("nack.ojs.retry", f"{queue_name}.1000")
    attempts: list[int] = []

    @jobs.handler("web.flaky", queue=queue_name, retry=Retry(initial_interval=timedelta(seconds=0.001)))
    async def flaky() -> None:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            raise ConnectionError

    async with Worker(jobs) as worker:
        job = await flaky.push()
        copy, original = await eye.wait_for(delayed), await eye.wait_for(nacked)
        await until(lambda: worker.counts["completed"] == 1)
    assert (copy.headers["x-ojs-attempt"], "x-death" in copy.headers) == (2, False)
    assert (original.json()["id"], original.headers["x-ojs-attempt"]) == (job.id, 1)
    assert death(original) == (f"nack.ojs.queue.{queue_name}", "rejected")
    assert attempts == [1, 2]
    # The second attempt was acknowledged: nothing else was dead-lettered, and nothing is left anywhere.
    assert await eye.get(nacked) is None
    for queue in (f"ojs.queue.{queue_name}", f"ojs.dead.{queue_name}", f"ojs.queue.retry.{queue_name}.1000"):
        assert await eye.count(f"nack.{queue}") == 0


@requirement("OJSW-011")
async def test_the_last_failure_is_nacked_and_kept_once(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    nacked = await rejected_copies(jobs, eye, queue_name)

    @jobs.handler("web.doomed", queue=queue_name, retry=Retry(max_attempts=1))
    async def doomed() -> None:
        raise ValueError

    async with Worker(jobs) as worker:
        job = await doomed.push()
        assert death(await eye.wait_for(nacked)) == (f"nack.ojs.queue.{queue_name}", "rejected")
        assert worker.counts["discarded"] == 1
    assert (await eye.wait_for(f"nack.ojs.dead.{queue_name}")).json()["id"] == job.id
    assert await eye.get(f"nack.ojs.dead.{queue_name}") is None


@requirement("OJSW-012")
@pytest.mark.parametrize("when", ["waiting", "running"])
async def test_a_cancelled_job_is_nacked_into_the_dead_letter_queue(
    jobs: Jobs, eye: Eye, queue_names: Callable[[], str], when: str
) -> None:
    queue = queue_names()
    nacked = await rejected_copies(jobs, eye, queue)
    started = asyncio.Event()

    @jobs.handler("web.cancelled", queue=queue)
    async def hang() -> None:
        started.set()
        await asyncio.sleep(100)

    async with Coordinator(jobs, queues=[queue]):
        job = await hang.push()
        if when == "waiting":
            await state_of(jobs, job.id, queue, "available")
            await jobs.cancel(job.id, queue)
            await state_of(jobs, job.id, queue, "cancelled")
        async with Worker(jobs) as worker:
            if when == "running":
                await started.wait()
                await jobs.cancel(job.id, queue)
            await until(lambda: worker.counts["cancelled"] == 1)
            assert death(await eye.wait_for(nacked)) == (f"nack.ojs.queue.{queue}", "rejected")
    assert started.is_set() == (when == "running")
    assert (await eye.wait_for(f"nack.ojs.dead.{queue}")).json()["id"] == job.id


@requirement("OJSW-003", "OJSW-019")
async def test_the_job_queue_is_classic_and_dead_letters_to_the_retry_exchange(
    jobs: Jobs, eye: Eye, queue_name: str
) -> None:
    await jobs.push("web.declared", queue=queue_name)
    arguments = {
        "x-dead-letter-exchange": "nack.ojs.retry",
        "x-dead-letter-routing-key": queue_name,
        "x-max-priority": 10,
        "x-queue-type": "classic",
    }
    assert not await eye.refuses(f"nack.ojs.queue.{queue_name}", arguments=arguments)
    arguments["x-dead-letter-exchange"] = "nack.ojs.dlx"
    assert await eye.refuses(f"nack.ojs.queue.{queue_name}", arguments=arguments)


@requirement("OJSW-014")
async def test_a_job_may_wait_in_its_queue_for_its_enqueue_ttl(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri, topology=Topology(names=WEB, prefix="ttl.")) as jobs:
        tap = f"ttl.ojs.dead.{queue_name}"
        job = await jobs.push("web.ttl", queue=queue_name, enqueue_ttl=timedelta(milliseconds=200))
        dead = await eye.wait_for(tap)
        with pytest.raises(InvalidJob, match="enqueue_ttl"):
            await jobs.push("web.ttl", enqueue_ttl=timedelta(seconds=1), delay=timedelta(hours=1))
    assert dead.json()["id"] == job.id
    assert death(dead) == (f"ttl.ojs.queue.{queue_name}", "expired")
    assert dead.headers["x-death"][0]["original-expiration"] == "200"


def test_what_would_lose_jobs_is_refused() -> None:
    for settings in ({"message_ttl_ms": 1000}, {"max_length": 5, "reject_when_full": False}):
        with pytest.raises(ValueError, match="lost"):
            Topology(settle_by="nack", **settings)  # type: ignore[arg-type]
