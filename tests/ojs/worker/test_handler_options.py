"""A handler's options are in force whoever has pushed the job, unless the job says otherwise."""

import asyncio
import functools
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pika
import pytest

from tests.ojs.eye import Eye, until
from waybill.ojs import Jobs, Retry, Worker, current_job

QUICK = timedelta(seconds=1)


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


async def push_as_a_stranger(
    eye: Eye, queue: str, job_type: str, headers: dict[str, Any] | None = None, **fields: Any
) -> None:
    body = {"specversion": "1.0", "id": f"{job_type}-{fields}", "type": job_type, "queue": queue, "args": []}
    publish = functools.partial(
        eye.channel.basic_publish,
        "ojs.exchange.direct",
        queue,
        json.dumps(body | fields).encode(),
        pika.BasicProperties(headers=headers),
    )
    await eye.call(publish)


async def test_a_stranger_s_job_has_the_policy_and_the_limits_of_the_handler(
    jobs: Jobs, queue_name: str, eye: Eye
) -> None:
    seen: list[tuple[str, object]] = []

    @jobs.handler(
        "options.seen", queue=queue_name, retry=Retry(max_attempts=7), timeout=2.5, visibility_timeout=40, priority=8
    )
    async def see() -> None:
        job = current_job().envelope
        attempts = job.max_attempts or job.policy.max_attempts
        seen.append((job.id, (attempts, job.timeout_seconds, job.visibility_seconds, job.priority)))

    async with Worker(jobs):
        await push_as_a_stranger(eye, queue_name, "options.seen")
        await push_as_a_stranger(eye, queue_name, "options.seen", {"x-ojs-max-attempts": 3}, meta={})
        await push_as_a_stranger(eye, queue_name, "options.seen", {"x-ojs-max-attempts": 5}, tags=[])
        await push_as_a_stranger(
            eye,
            queue_name,
            "options.seen",
            retry={"max_attempts": 2},
            timeout=9,
            visibility_timeout_ms=5000,
            priority=-3,
        )
        await until(lambda: len(seen) == 4)
    assert [options for _, options in seen] == [(7, 2.5, 40, 8), (7, 2.5, 40, 8), (5, 2.5, 40, 8), (2, 9, 5, -3)]


async def test_its_attempts_end_by_the_handler_s_policy(jobs: Jobs, queue_name: str, eye: Eye) -> None:
    attempts: list[str] = []

    @jobs.handler("options.once", queue=queue_name, retry=Retry(max_attempts=1, on_exhaustion="dead_letter"))
    async def once() -> None:
        attempts.append("once")
        raise ValueError("no")

    @jobs.handler("options.slow", queue=queue_name, retry=Retry(max_attempts=1), timeout=0.2)
    async def slow() -> None:
        await asyncio.Event().wait()

    async with Worker(jobs, concurrency=1, on_discard="acknowledge") as worker:
        await push_as_a_stranger(eye, queue_name, "options.once", {"x-ojs-max-attempts": 3})
        letter = await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
        await push_as_a_stranger(eye, queue_name, "options.slow")
        await until(lambda: worker.counts["discarded"] == 2)
        assert (attempts, worker.counts["failed"], worker.counts["retried"]) == (["once"], 2, 0)
    assert "retry" not in letter.json()
