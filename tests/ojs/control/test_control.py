"""CANCEL, BEAT and INFO on the control queue, on both brokers."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from waybill.client import connect
from waybill.ojs import ControlFailed, Coordinator, JobInfo, Jobs, Worker, current_job
from waybill.ojs.spec.events import decode_events


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


async def state_of(jobs: Jobs, job_id: str, queue: str, wanted: str) -> JobInfo:
    for _ in range(200):
        job = await jobs.info(job_id, queue)
        if job is not None and job.state == wanted:
            return job
        await asyncio.sleep(0.02)
    raise AssertionError(f"{job} is not {wanted}")


@requirement("OJS-037", "OJS-038", "OJS-119")
async def test_cancel_is_a_message_in_the_control_queue(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    await jobs.cancel("018f0000-0000-7000-8000-000000000000", queue_name)
    message = await eye.wait_for(f"ojs.queue.control.{queue_name}")
    assert (message.exchange, message.routing_key) == ("ojs.exchange.direct", f"ojs.queue.control.{queue_name}")
    assert message.properties.type == "ojs.control.cancel"
    assert message.json() == {"job_id": "018f0000-0000-7000-8000-000000000000"}


@requirement("OJS-042")
async def test_info_asks_over_an_exclusive_queue(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        reply_to = await _ask_and_answer(jobs, eye, queue_name)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="RESOURCE_LOCKED"):
            await eye.call(lambda: eye.channel.queue_declare(reply_to, passive=True))
        eye.reopen()
    while await eye.exists(reply_to):
        await asyncio.sleep(0.01)


async def _ask_and_answer(jobs: Jobs, eye: Eye, queue_name: str) -> str:
    """Play the coordinator for one question; the name of the queue that the answer went to."""
    asking = asyncio.get_running_loop().create_task(jobs.info("018f0000-0000-7000-8000-000000000000", queue_name))
    await until(lambda: jobs._control is not None)
    while not await eye.exists(f"ojs.queue.control.{queue_name}"):
        await asyncio.sleep(0.01)
    message = await eye.wait_for(f"ojs.queue.control.{queue_name}")
    assert message.properties.type == "ojs.control.info"
    assert message.properties.correlation_id
    answer = json.dumps({"jobs": [{"id": "x", "state": "active"}]}).encode()
    correlation_id = message.properties.correlation_id
    await eye.publish("", message.properties.reply_to, answer, correlation_id="somebody else's")
    await eye.publish("", message.properties.reply_to, answer, correlation_id=correlation_id)
    job = await asking
    assert job is not None
    assert job.state == "active"
    reply_to: str = message.properties.reply_to
    return reply_to


async def test_without_a_coordinator_info_fails_in_time(jobs: Jobs, queue_name: str) -> None:
    with pytest.raises(ControlFailed, match="no coordinator"):
        await jobs.info("x", queue_name, timeout=0.1)


async def test_a_waiting_job_that_is_cancelled_never_starts(jobs: Jobs, queue_name: str) -> None:
    runs: list[str] = []

    @jobs.handler("control.run", queue=queue_name)
    async def run() -> None:
        runs.append(current_job().id)

    doomed = await run.push()
    later = await run.options(delay=timedelta(hours=1)).push()
    async with Coordinator(jobs, queues=[queue_name]):
        for job in (doomed, later):
            await jobs.cancel(job.id, queue_name)
            assert (await state_of(jobs, job.id, queue_name, "cancelled")).ended_at is not None
    # No coordinator runs any more, and the worker is new: the tombstone is all there is.
    other = await run.push()
    async with Worker(jobs) as worker:
        await until(lambda: worker.counts["completed"] == 1 and worker.counts["cancelled"] == 1)
    assert runs == [other.id]


@requirement("OJS-039")
async def test_a_running_coroutine_is_cancelled(broker_uri: str, jobs: Jobs, eye: Eye, queue_name: str) -> None:
    started, ended = asyncio.Event(), asyncio.Event()
    kinds: list[tuple[str, str]] = []

    def fold(delivery: Any) -> None:
        kinds.extend((event.id, event.type) for event in decode_events(delivery.body) if event.subject == job_id)
        delivery.ack()

    @jobs.handler("control.hang", queue=queue_name)
    async def hang() -> None:
        started.set()
        try:
            await asyncio.sleep(100)
        finally:
            ended.set()

    async with Worker(jobs, coordinator=True) as worker, connect(broker_uri) as connection:
        job_id = (await hang.push()).id
        await started.wait()
        assert (await state_of(jobs, job_id, queue_name, "active")).worker_id == worker.id
        channel = await connection.channel(prefetch_count=100)
        await channel.consume("ojs.events", fold, arguments={"x-stream-offset": "first"})
        await jobs.cancel(job_id, queue_name)
        await ended.wait()
        await state_of(jobs, job_id, queue_name, "cancelled")
        await until(lambda: bool(kinds) and kinds[-1][1] == "job.cancelled")
        assert worker.counts["cancelled"] == 1
    assert sorted({kind for _, kind in kinds} - {"job.heartbeat"}) == ["job.cancelled", "job.enqueued", "job.started"]
    assert await eye.count(f"ojs.queue.{queue_name}") == 0


async def test_a_handler_in_a_thread_finds_the_cancellation_in_its_context(jobs: Jobs, queue_name: str) -> None:
    running: list[bool] = []

    @jobs.handler("control.spin", queue=queue_name)
    def spin() -> None:
        job = current_job()
        running.append(job.is_cancelled)
        while True:
            job.raise_if_cancelled()

    async with Worker(jobs, coordinator=True) as worker:
        job = await spin.push()
        await until(lambda: running == [False])
        await jobs.cancel(job.id, queue_name)
        await until(lambda: worker.counts["cancelled"] == 1)
        await state_of(jobs, job.id, queue_name, "cancelled")


async def test_what_has_ended_cannot_be_cancelled(jobs: Jobs, queue_name: str) -> None:
    @jobs.handler("control.done", queue=queue_name)
    async def done() -> dict[str, int]:
        return {"answer": 42}

    async with Worker(jobs, coordinator=True):
        job = await done.push()
        found = await state_of(jobs, job.id, queue_name, "completed")
        assert (found.result, found.attempt, found.type) == ({"answer": 42}, 1, "control.done")
        await jobs.cancel(job.id, queue_name)
        after = await jobs.info(job.id, queue_name)
        # The event that it was pushed may come after the one that it was done.
        assert after is not None
        assert (after.state, after.result, after.attempt, after.ended_at) == (
            "completed",
            {"answer": 42},
            1,
            found.ended_at,
        )
        assert [one.id for one in await jobs.newest(queue_name, state="completed")] == [job.id]
        assert await jobs.info("018f0000-0000-7000-8000-000000000000", queue_name) is None


async def test_one_coordinator_reads_and_the_next_takes_over_with_the_same_state(
    jobs: Jobs, queue_name: str, tmp_path: Path
) -> None:
    job = await jobs.push("control.wait", queue=queue_name)
    first = Coordinator(jobs, queues=[queue_name], database=str(tmp_path / "jobs.sqlite"))
    await first.start()
    async with Coordinator(jobs, queues=[queue_name]):
        found = await state_of(jobs, job.id, queue_name, "available")
        await first.close()
        assert await jobs.info(job.id, queue_name) == found
    async with Coordinator(jobs, queues=[queue_name], database=str(tmp_path / "jobs.sqlite")):
        assert await jobs.info(job.id, queue_name) == found


@requirement("OJS-040")
async def test_beats_extend_the_visibility(
    jobs: Jobs, eye: Eye, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.worker.attempt_heartbeats.HEARTBEAT_SECONDS", 0.1)
    release = asyncio.Event()
    attempts: list[int] = []

    @jobs.handler("control.long", queue=queue_name, visibility_timeout=2)
    async def long() -> None:
        attempts.append(current_job().attempt)
        await release.wait()

    async with Coordinator(jobs, queues=[queue_name]), Worker(jobs) as worker:
        tap = await eye.tap("ojs.exchange.direct", f"ojs.queue.control.{queue_name}")
        job = await long.push()
        beat = await eye.wait_for(tap)
        assert beat.properties.type == "ojs.control.heartbeat"
        assert beat.json() == {"job_id": job.id, "worker_id": worker.id}
        while (found := await jobs.info(job.id, queue_name)) is None or found.visible_until is None:
            await asyncio.sleep(0.02)
        first = datetime.fromisoformat(found.visible_until)
        while datetime.now(UTC) < first + timedelta(seconds=0.5):
            await asyncio.sleep(0.1)
        found = await jobs.info(job.id, queue_name)
        assert found is not None
        assert found.visible_until is not None
        assert datetime.fromisoformat(found.visible_until) > datetime.now(UTC)
        assert attempts == [1]
        release.set()
