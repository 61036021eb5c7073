"""Results: `job.result()` and `job.wait()`, on both brokers; a coordinator's in memory and over PostgreSQL."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.ojs.eye import until
from waybill.ojs import (
    CancelledJob,
    Coordinator,
    DeadLetteredJob,
    DeadLetterJob,
    DiscardedJob,
    DiscardJob,
    ExpiredJob,
    Jobs,
    NoResult,
    ResultTimeout,
    ResultTooLarge,
    Retry,
    Worker,
)

ONCE = Retry(max_attempts=1)
QUICK = Retry(max_attempts=3, initial_interval=timedelta(milliseconds=10), jitter=False)


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


def square(number: int) -> int:
    return number * number


async def test_a_result_comes_back_from_async_thread_and_process_handlers(jobs: Jobs, queue_name: str) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)

    @jobs.handler("results.async", queue=queue_name)
    async def asynchronous(number: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"n": number}

    @jobs.handler("results.thread", queue=queue_name)
    def threaded(day: datetime) -> datetime:
        return day + timedelta(days=1)

    @jobs.handler("results.none", queue=queue_name)
    async def nothing() -> None: ...

    processed = jobs.handler("results.process", queue=queue_name, process=True)(square)
    async with Worker(jobs, processes=1):
        made = [await asynchronous.push(1), await asynchronous.push(2)]
        assert [await job.result(timeout=30) for job in made] == [{"n": 1}, {"n": 2}]
        assert await (await threaded.push(at)).result(30) == at + timedelta(days=1)
        assert await (await processed.push(7)).result(60) == 49
        empty = await nothing.push()
        assert await empty.wait(30) == await empty.state() == "completed"
        results: list[object] = [await empty.result()]  # type: ignore[func-returns-value]
        assert results == [None]
        many = await asyncio.gather(*(asynchronous.push(number) for number in range(100)))
        assert [(await job.result(30))["n"] for job in many] == list(range(100))


async def test_the_error_of_a_handler_comes_back(jobs: Jobs, queue_name: str) -> None:
    @jobs.handler("results.fail", queue=queue_name, retry=ONCE)
    async def fail(how: str) -> int:
        if how == "discard":
            raise DiscardJob("never mind", type="shop.gone")
        if how == "dead":
            raise DeadLetterJob("look at it")
        return int(how)

    async with Worker(jobs, on_discard="acknowledge"):
        with pytest.raises(DiscardedJob, match="was discarded: ValueError: invalid literal") as failed:
            await (await fail.push("x")).result(30)
        error = failed.value
        assert (error.type, error.code, error.attempts, error.state) == ("ValueError", "HANDLER_ERROR", 1, "discarded")
        assert error.traceback is not None
        assert "return int(how)" in error.traceback
        assert "return int(how)" in str(error.__cause__)
        with pytest.raises(DiscardedJob, match=r"shop\.gone: never mind"):
            await (await fail.push("discard")).result(30)
        job = await fail.push("dead")
        with pytest.raises(DeadLetteredJob, match="look at it"):
            await job.result(30)
        assert await job.wait() == "discarded"
        late = await fail.options(expires_at="2020-01-01T00:00:00Z").push("1")
        with pytest.raises(ExpiredJob, match="it expired at"):
            await late.result(30)


async def test_a_result_comes_after_retries_and_delays(jobs: Jobs, queue_name: str) -> None:
    tries: list[str] = []

    @jobs.handler("results.again", queue=queue_name, retry=QUICK)
    async def again(name: str) -> str:
        tries.append(name)
        if tries.count(name) == 1:
            raise ValueError("not yet")
        return name

    async with Worker(jobs):
        first = await again.push("first")
        later = await again.options(delay=timedelta(seconds=1)).push("later")
        with pytest.raises(ResultTimeout):
            await later.result(0.01)
        assert await first.result(30) == "first"
        assert await later.result(60) == "later"


async def test_a_cancelled_job_is_an_error(jobs: Jobs, queue_name: str, state: str) -> None:
    started = asyncio.Event()

    @jobs.handler("results.hang", queue=queue_name)
    async def hang() -> None:
        started.set()
        await asyncio.sleep(1000)

    async with Coordinator(jobs, queues=[queue_name], database=state):
        # No worker ever sees it: a coordinator tells of it.
        waiting = await hang.push()
        await waiting.cancel()
        with pytest.raises(CancelledJob, match="was cancelled"):
            await waiting.result(30)
        async with Worker(jobs):
            running = await hang.push()
            await started.wait()
            await running.cancel()
            with pytest.raises(CancelledJob):
                await running.result(30)


async def test_jobs_of_somebody_else_are_asked_for_by_id(
    jobs: Jobs, broker_uri: str, queue_name: str, state: str
) -> None:
    go = asyncio.Event()

    @jobs.handler("results.other", queue=queue_name, retry=ONCE)
    async def other(number: int) -> int:
        await go.wait()
        return 10 // number

    async with Worker(jobs), Coordinator(jobs, queues=["any"], database=state), Jobs(broker_uri) as others:
        pushed = await jobs.push_many([other.job(number) for number in (5, 0, 2)])
        handles = [others.job(one.id) for one in pushed]
        waits = [asyncio.ensure_future(handle.result(60)) for handle in handles]
        with pytest.raises(ResultTimeout, match=r"within 0\.05 s"):
            await others.job(pushed[0].id).result(0.05)
        assert await handles[0].state() in {"available", "active"}
        go.set()
        five, nothing, two = await asyncio.gather(*waits, return_exceptions=True)
        assert (five, two) == (2, 5)
        assert isinstance(nothing, DeadLetteredJob)
        assert "ZeroDivisionError" in str(nothing)
        # It has ended before anybody asks.
        assert await others.job(pushed[0].id).result(30) == 2


async def test_without_results_a_coordinator_tells(broker_uri: str, queue_name: str, state: str) -> None:
    async with Jobs(broker_uri, results=False) as jobs:

        @jobs.handler("results.off", queue=queue_name)
        async def off() -> str:
            return "off"

        @jobs.handler("results.on", queue=queue_name, results=True)
        async def switched_on() -> str:
            return "on"

        async with Worker(jobs):
            job = await off.push()
            with pytest.raises(ResultTimeout):
                await job.result(0.2)
            assert await (await switched_on.push()).result(30) == "on"
            async with Coordinator(jobs, queues=["any"], database=state):
                assert await job.result(30) == "off"


async def test_what_cannot_be_had_is_told_in_time(jobs: Jobs, queue_name: str, state: str) -> None:
    @jobs.handler("results.odd", queue=queue_name)
    async def odd(how: str) -> Any:
        return {"large": "x" * 1_100_000, "strange": object(), "deep": None}[how]

    async with Worker(jobs), Coordinator(jobs, queues=["any"], database=state):
        large = await odd.push("large")
        with pytest.raises(ResultTooLarge, match="1048576 are allowed"):
            await large.result(30)
        assert await large.wait() == "completed"
        strange = await odd.push("strange")
        with pytest.raises(NoResult, match=r"of type object, is not JSON: TypeError \(RESULT_NOT_JSON"):
            await strange.result(30)
        with pytest.raises(ResultTooLarge, match="1048576 are allowed"):
            await jobs.job(large.id).result(30)


async def test_a_result_that_nobody_wants_is_not_kept(jobs: Jobs, queue_name: str) -> None:
    @jobs.handler("results.unwanted", queue=queue_name)
    async def unwanted() -> str:
        return "x" * 1000

    async with Worker(jobs) as worker:
        for _ in range(20):
            await unwanted.push()
        kept = await unwanted.push()
        await until(lambda: worker.counts["completed"] == 21)
        assert await kept.result(30) == "x" * 1000
        gc.collect()
        inbox = await jobs.inbox()
        assert len(inbox._handles) <= 1
        assert not inbox._waits


async def test_a_queue_of_replies_that_is_gone_hurts_no_job(
    jobs: Jobs, broker_uri: str, queue_names: Callable[[], str]
) -> None:
    queue = queue_names()

    @jobs.handler("results.gone", queue=queue)
    async def gone() -> int:
        return 1

    async with Jobs(broker_uri) as brief:
        brief.handlers |= jobs.handlers
        lost = await brief.push("results.gone", queue=queue)
    async with Worker(jobs) as worker:
        await until(lambda: worker.counts["completed"] == 1)
        await until(lambda: worker.counters.acked[queue] == 1)
        assert await (await gone.push()).result(30) == 1
        async with Coordinator(jobs, queues=["any"]):
            assert await jobs.job(lost.id).result(30) == 1
