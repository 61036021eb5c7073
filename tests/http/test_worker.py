"""The worker over HTTP: handlers run as over AMQP, leases are kept, and what the server says is followed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from tests.http.conftest import URL, Wire
from waybill.client import ReconnectPolicy
from waybill.http.errors import NoAnswer
from waybill.http.fetching import Fetching
from waybill.http.worker import HttpWorker
from waybill.ojs import (
    DeadLetteredJob,
    DeadLetterJob,
    DiscardedJob,
    DiscardJob,
    JobContext,
    Jobs,
    PostponeJob,
    Retry,
    Worker,
    current_job,
)

QUICK = Retry(max_attempts=2, initial_interval=timedelta(seconds=0.01), backoff_strategy="none", jitter=False)


@asynccontextmanager
async def working(jobs: Jobs, **settings: object) -> AsyncIterator[HttpWorker]:
    worker = Worker(jobs, queues=["default"], **settings)  # type: ignore[arg-type]
    assert isinstance(worker, HttpWorker)
    async with worker:
        yield worker


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def fetching_of(worker: HttpWorker) -> Fetching:
    fetching = worker._fetching
    assert fetching is not None
    return fetching


async def test_handlers_do_jobs_in_the_loop_and_in_threads(jobs: Jobs) -> None:
    @jobs.handler("double")
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @jobs.handler("thread")
    def thread() -> str:
        return threading.current_thread().name

    async with working(jobs, concurrency=2) as worker:
        handles = [await double.push(number) for number in range(20)]
        assert [await job.result(20) for job in handles] == [2 * number for number in range(20)]
        assert (await (await thread.push()).result(20)).startswith("waybill-job")
        assert worker.is_consuming
        assert (worker.starvation, worker.consumed_queues) == (None, ["default"])
    assert worker.counts == {"completed": 21, "failed": 0, "retried": 0, "discarded": 0, "cancelled": 0}
    assert not worker.is_consuming


async def test_a_handler_decides_how_its_job_ends(jobs: Jobs, wire: Wire) -> None:
    endings = {
        "discard": DiscardJob("no"),
        "bury": DeadLetterJob("no", details={"why": "so"}),
        "fail": ValueError("no"),
    }

    @jobs.handler("end", retry=QUICK)
    async def end(how: str) -> int:
        if how in endings:
            raise endings[how]
        return current_job().attempt

    async with working(jobs) as worker:
        with pytest.raises(DiscardedJob) as discarded:
            await (await end.push("discard")).result(20)
        assert (discarded.value.attempts, discarded.value.type) == (1, "DiscardJob")
        with pytest.raises(DeadLetteredJob) as buried:
            await (await end.push("bury")).result(20)
        assert (buried.value.attempts, buried.value.type, buried.value.message) == (1, "DeadLetterJob", "no")
        with pytest.raises(DiscardedJob) as failed:
            await (await end.push("fail")).result(20)
        assert (failed.value.attempts, failed.value.type) == (2, "ValueError")
        unknown = await jobs.push("nobody.knows")
        assert await unknown.wait(20) == "discarded"
    assert worker.counts == {"completed": 0, "failed": 4, "retried": 1, "discarded": 4, "cancelled": 0}


async def test_a_postponed_job_uses_no_attempt(jobs: Jobs) -> None:
    calls: list[int] = []

    @jobs.handler("later")
    async def later() -> int:
        calls.append(current_job().attempt)
        if len(calls) == 1:
            raise PostponeJob(0.02)
        return len(calls)

    async with working(jobs):
        assert await (await later.push()).result(20) == 2
    assert calls == [1, 1]


async def test_a_cancelled_job_is_told_with_the_next_heartbeat(jobs: Jobs) -> None:
    started = asyncio.Event()
    ends: list[str] = []

    @jobs.handler("wait")
    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async with working(jobs) as worker:
        job = await wait.push()
        await started.wait()
        await job.cancel()
        await fetching_of(worker).beat(worker)
        await until(lambda: worker.running_count == 0)
        assert await job.wait(20) == "cancelled"
    assert (ends, worker.counts["cancelled"], worker.counts["failed"]) == (["cancelled"], 1, 0)


async def test_a_job_whose_lease_has_ended_is_given_up_and_its_next_attempt_counts(jobs: Jobs, wire: Wire) -> None:
    attempts: list[int] = []
    go_on = asyncio.Event()

    @jobs.handler("slow", retry=QUICK)
    async def slow() -> int:
        attempts.append(current_job().attempt)
        if len(attempts) == 1:
            await asyncio.Event().wait()
        await go_on.wait()
        return current_job().attempt

    async with working(jobs) as worker:
        job = await slow.push()
        await until(lambda: attempts == [1])
        wire.client.backend.leases.give_back_all()
        await until(lambda: attempts == [1, 2])
        await until(lambda: worker.running_count == 1)
        go_on.set()
        assert await job.result(20) == 2
    assert worker.counts["completed"] == 1


async def test_ends_are_told_until_the_server_hears_them(
    jobs: Jobs, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.http.settlement.AGAIN", ReconnectPolicy(first_delay_s=0))
    monkeypatch.setattr("waybill.http.fetching.AGAIN", ReconnectPolicy(first_delay_s=0.01, factor=1))

    @jobs.handler("count")
    async def count() -> int:
        return 1

    faults = iter(["lost", "lost", "unheard"])
    wire.fault = lambda _method, path: next(faults, "") if path.endswith("/ack") else ""
    async with working(jobs) as worker:
        assert await (await count.push()).result(20) == 1
        await until(lambda: sum(path.endswith("/ack") for _, path in wire.sent) == 4)
        wire.fault = lambda _method, path: "lost" if path.endswith("/fetch") else ""
        await until(lambda: worker.is_consuming)
        # The long poll that goes on gets this one; the next finds no server.
        await (await count.push()).result(20)
        await until(lambda: not worker.is_consuming)
        assert worker.starvation == "the server does not answer"
        wire.fault = lambda _method, _path: ""
        assert await (await count.push()).result(20) == 1
        assert worker.is_consuming


async def test_directives_of_the_server_are_followed(jobs: Jobs, wire: Wire) -> None:
    @jobs.handler("count")
    async def count() -> int:
        return 1

    worker = Worker(jobs)
    assert isinstance(worker, HttpWorker)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.is_consuming)
    directives = wire.client.backend.directives
    directives[worker.id] = "quiet"
    await fetching_of(worker).beat(worker)
    await until(lambda: not worker.is_consuming)
    job = await count.push()
    del directives[worker.id]
    await fetching_of(worker).beat(worker)
    assert await job.result(20) == 1
    directives[worker.id] = "terminate"
    await fetching_of(worker).beat(worker)
    await asyncio.wait_for(running, 20)


async def test_the_server_knows_whether_a_worker_is_quiet(jobs: Jobs, wire: Wire) -> None:
    """ojs-graceful-shutdown section 5."""
    told: list[object] = []
    workers = wire.client.backend.extensions.workers
    record = workers.record

    def noted(worker_id: str, queues: list[str] | None, reported: dict[str, object] | None = None) -> None:
        if reported is not None:
            told.append(reported.get("state"))
        record(worker_id, queues, reported)

    workers.record = noted  # type: ignore[method-assign]

    @jobs.handler("count")
    async def count() -> int:
        return 1

    async with Worker(jobs) as worker:
        worker.quiet()
        await until(lambda: workers.is_quiet(worker.id))
        job = await count.push()
        worker.resume()
        assert await job.result(20) == 1
    assert told == ["running", "quiet", "running", "quiet", "terminate"]


async def test_a_worker_that_stops_finishes_what_runs_and_gives_back_the_rest(jobs: Jobs, wire: Wire) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @jobs.handler("wait")
    async def wait() -> None:
        started.set()
        await go_on.wait()

    worker = Worker(jobs, concurrency=1, prefetch=3)
    async with worker:
        handles = [await wait.push() for _ in range(3)]
        await started.wait()
        await until(lambda: worker.held_count == 3)
        asyncio.get_running_loop().call_later(0.02, go_on.set)
    assert worker.counts["completed"] == 1
    states = sorted([await job.state() for job in handles])
    assert states == ["available", "available", "completed"]
    fetched = await wire.client.fetch("default", count=10)
    assert [job["attempt"] for job in fetched] == [1, 1]


async def test_a_handler_that_outlasts_the_grace_period_has_failed(jobs: Jobs, wire: Wire) -> None:
    started = asyncio.Event()

    @jobs.handler("wait", retry=QUICK)
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    async with working(jobs, grace_period=0.0) as worker:
        job = await wait.push()
        await started.wait()
    assert worker.counts["failed"] == 1
    [fetched] = await wire.client.fetch("default", wait_ms=20_000)
    assert (fetched["id"], fetched["attempt"]) == (job.id, 2)


async def test_a_worker_without_a_server_does_not_start(wire: Wire) -> None:
    wire.fault = lambda _method, _path: "lost"
    with pytest.raises(NoAnswer):
        await Worker(Jobs(URL)).start()


async def test_middleware_hooks_and_weights_are_those_of_the_jobs(jobs: Jobs) -> None:
    told: list[str] = []
    jobs.hooks.on_start(lambda moment: told.append(f"start {moment.attempt}"))
    jobs.hooks.on_success(lambda moment: told.append(f"success {moment.result}"))

    @jobs.middleware.add
    async def around(job: JobContext, call: Callable[[JobContext], Awaitable[object]]) -> object:
        told.append("before")
        return await call(job)

    @jobs.handler("count", queue="often")
    async def count() -> int:
        return 1

    async with Worker(jobs, queues={"often": 9, "seldom": 1}):
        assert await (await count.push()).result(20) == 1
        await until(lambda: len(told) == 3)
    assert told == ["start 1", "before", "success 1"]
