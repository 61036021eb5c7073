"""Limits over all workers, held by permits in queues, on both brokers."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.client.breaking import until
from tests.ojs.control.test_control import state_of
from tests.ojs.eye import Eye
from tests.program_environment import program_environment
from waybill.ojs import Coordinator, InvalidJob, Jobs, PostponeJob, Worker, current_job
from waybill.ojs.middleware import ConcurrencyLimit, JobRateLimits, RateLimit, WaitPolicy
from waybill.ojs.middleware.permit_pool import PermitPool


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


async def test_no_more_than_the_limit_run_at_a_time_over_two_workers(
    broker_uri: str, jobs: Jobs, eye: Eye, queue_name: str
) -> None:
    running: set[str] = set()
    most = 0

    async def run() -> None:
        nonlocal most
        job = current_job()
        running.add(job.id)
        most = max(most, len(running))
        await asyncio.sleep(0.01)
        running.discard(job.id)

    async with Jobs(broker_uri) as others:
        for one in (jobs, others):
            one.handler("limited.run", queue=queue_name)(run)
            one.use(ConcurrencyLimit(one, 3, key=queue_name))
        async with Worker(jobs, concurrency=8) as first, Worker(others, concurrency=8) as second:
            await jobs.push_many([{**JOB, "id": job_id(n), "queue": queue_name} for n in range(40)])
            await until(lambda: first.counts["completed"] + second.counts["completed"] == 40)
            assert first.counts["failed"] == second.counts["failed"] == 0
    assert most == 3
    assert await eye.count(f"ojs.permit.{queue_name}") == 3


async def test_a_worker_that_is_killed_gives_its_permit_back(
    broker_uri: str, jobs: Jobs, repository: Path, queue_name: str
) -> None:
    program = f"""
import asyncio
from waybill.ojs import Jobs
from waybill.ojs.middleware.permit_pool import PermitPool

async def main():
    async with Jobs({broker_uri!r}) as jobs:
        permit = await PermitPool(jobs, {queue_name!r}, 1).acquire(20)
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
    environment = program_environment()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    permits = PermitPool(jobs, queue_name, 1)
    with pytest.raises(TimeoutError):
        await permits.acquire(0.1)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    (await permits.acquire(20)).release()


async def test_permits_are_made_once_and_anew_for_another_count(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as one, Jobs(broker_uri) as two, Jobs(broker_uri) as three:
        made = [PermitPool(jobs, queue_name, 4) for jobs in (one, two, three)]
        held = await asyncio.gather(*(permits.acquire(20) for permits in made))
        assert await eye.count(f"ojs.permit.{queue_name}") == 1
        fewer = PermitPool(one, queue_name, 2)
        new = [await fewer.acquire(20), await fewer.acquire(20)]
        with pytest.raises(TimeoutError):
            await fewer.acquire(0.1)
        for permit in (*held, *new):
            permit.release()
        # The old ones are thrown away when somebody gets them.
        again = [await fewer.acquire(20), await fewer.acquire(20)]
        with pytest.raises(TimeoutError):
            await fewer.acquire(0.1)
        for permit in again:
            permit.release()
        with pytest.raises(TimeoutError):
            [await made[1].acquire(0.1) for _ in range(3)]


async def test_permits_come_back_after_their_period_and_none_is_lost(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    permits = PermitPool(jobs, queue_name, 3, period_seconds=0.2)
    for _ in range(3):
        await asyncio.gather(*(permits.acquire(20) for _ in range(3)))
        with pytest.raises(TimeoutError):
            await permits.acquire(0.01)
    while await eye.count(f"ojs.rate.200.{queue_name}") < 3:
        await asyncio.sleep(0.01)
    assert await eye.count(f"ojs.rate.200.{queue_name}.used") == 0


async def test_a_job_without_a_permit_comes_again_without_an_attempt(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    attempts: list[int] = []

    @jobs.handler("limited.rate", queue=queue_name)
    async def run() -> None:
        attempts.append(current_job().attempt)

    wait_policy = WaitPolicy(wait_seconds=0.3, postpone_seconds=0.5)
    jobs.use(RateLimit(jobs, 1, timedelta(seconds=30), key=queue_name, wait_policy=wait_policy))
    async with Coordinator(jobs, queues=[queue_name]), Worker(jobs) as worker:
        pushed = [await run.push(), await run.push()]
        await until(lambda: worker.counts["completed"] == 1)
        states: set[str] = set()
        while states != {"completed", "scheduled"}:
            found = [await jobs.info(job.id, queue_name) for job in pushed]
            states = {job.state for job in found if job is not None}
        assert worker.counts["failed"] == 0
        # Somebody raises the limit.
        put_back = PermitPool(jobs, queue_name, 2, period_seconds=30)
        (await put_back.acquire(20)).release()
        await until(lambda: worker.counts["completed"] == 2)
    assert attempts == [1, 1]


async def test_a_handler_may_put_its_job_off(jobs: Jobs, queue_name: str) -> None:
    attempts: list[int] = []

    @jobs.handler("limited.later", queue=queue_name)
    async def run() -> None:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            raise PostponeJob(0.5)

    async with Coordinator(jobs, queues=[queue_name]), Worker(jobs) as worker:
        job = await run.push()
        await state_of(jobs, job.id, queue_name, "scheduled")
        await until(lambda: worker.counts["completed"] == 1)
        assert (await state_of(jobs, job.id, queue_name, "completed")).attempt == 1
    assert attempts == [1, 1]


async def test_the_limits_that_a_job_asks_for(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    done: list[str] = []

    @jobs.handler("limited.own", queue=queue_name)
    async def run(name: str) -> None:
        done.append(name)

    jobs.use(JobRateLimits(jobs, wait_policy=WaitPolicy(wait_seconds=20)))
    limit: dict[str, object] = {"key": queue_name, "concurrency": 2, "rate": {"limit": 1, "period": "PT30S"}}
    async with Worker(jobs) as worker:
        await run.options(rate_limit=limit).push("first")
        await until(lambda: done == ["first"])
        await run.options(rate_limit={**limit, "on_limit": "drop"}).push("second")
        await until(lambda: worker.counts["discarded"] == 1)
        await run.push("free")
        await until(lambda: done == ["first", "free"])
    assert json.loads((await eye.wait_for(f"ojs.queue.dlx.{queue_name}")).body)["args"] == ["second"]
    assert await eye.count(f"ojs.permit.{queue_name}") == 2


@pytest.mark.parametrize(
    ("limit", "field"),
    [
        ({}, "rate_limit"),
        ({"key": "no spaces"}, "rate_limit.key"),
        ({"key": "k", "concurrency": 0}, "rate_limit.concurrency"),
        ({"key": "k", "rate": {"limit": 0, "period": "PT1S"}}, "rate_limit.rate.limit"),
        ({"key": "k", "throttle": {"limit": 1, "period": "a minute"}}, "rate_limit.throttle.period"),
        ({"key": "k", "on_limit": "panic"}, "rate_limit.on_limit"),
    ],
)
async def test_bad_limits_name_their_field(limit: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        await Jobs("amqp://127.0.0.1:1").push("limited.bad", rate_limit=limit)
    assert caught.value.field == field


JOB: dict[str, object] = {"specversion": "1.0", "type": "limited.run", "args": []}


def job_id(number: int) -> str:
    return f"018f0000-0000-7000-9000-{number:012d}"
