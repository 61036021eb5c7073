"""What users of job queues suffer from elsewhere, one test a pain, on both brokers where brokers are in it."""

import asyncio
import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median

import pytest

from tests.ojs.eye import Eye, until
from tests.ojs.proxy import Proxy
from tests.program_environment import program_environment
from tests.rabbitmq import INSTALL_HINT, RabbitMQ, installed
from waybill.client import ReconnectPolicy
from waybill.ojs import Coordinator, Declaration, Jobs, PushFailed, Retry, Topology, Worker
from waybill.ojs.topology.doctor import Examination

QUICK = ReconnectPolicy(first_delay_s=0.05, max_delay_s=0.2)


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


def runs_in(directory: Path) -> int:
    """How often the handlers of `pains_program` have begun."""
    return len(list(directory.iterdir()))


@asynccontextmanager
async def worker_process(uri: str, queue: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = program_environment(PAINS_URI=uri, PAINS_QUEUE=queue)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "waybill", "worker", "tests.ojs.pains_program:jobs", "--queues", queue, env=environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_worker_that_is_alive_consumes_after_a_reconnect(broker_uri: str, queue_name: str) -> None:
    """Also when the connection is lost again while it is being restored, and again."""
    async with Proxy(broker_uri) as proxy:
        jobs = Jobs(proxy.uri, reconnect=QUICK)
        done: list[int] = []
        jobs.handler("pain.some", queue=queue_name)(done.append)
        async with jobs, Worker(jobs) as worker:
            for number in range(5):
                proxy.cut()
                await until(lambda: not worker.is_consuming)
                await asyncio.sleep(0.01 * number)
                proxy.cut()
                await until(lambda: worker.is_consuming)
                await jobs.push("pain.some", [number])
                await until(lambda number=number: number in done)  # type: ignore[misc]


async def test_long_and_delayed_jobs_run_once(jobs: Jobs, queue_name: str) -> None:
    """No clock decides that a job is lost: as long as its worker lives, nobody else gets it."""
    runs: Counter[str] = Counter()

    @jobs.handler("pain.long", queue=queue_name, timeout=60)
    async def run(name: str) -> None:
        runs[name] += 1
        await asyncio.sleep(1.5 if name == "long" else 0)

    async with Worker(jobs, concurrency=1), Worker(jobs, concurrency=1) as idle:
        await run.push("long")
        await run.options(delay=timedelta(seconds=1)).push("delayed")
        await until(lambda: runs["delayed"] == 1)
        await asyncio.sleep(0.6)
    assert runs == {"long": 1, "delayed": 1}
    assert idle.redelivered_count == 0


@pytest.fixture(scope="module")
def impatient() -> Iterator[RabbitMQ]:
    """A RabbitMQ that takes a delivery away after 1.5 seconds, and looks every half second (by default: 30 minutes)."""
    if not installed():
        pytest.skip(INSTALL_HINT)
    broker = RabbitMQ()
    settings = "[{rabbit, [{consumer_timeout, 1500}, {channel_tick_interval, 500}]}]."
    (broker.directory / "advanced.config").write_text(settings)
    with broker:
        yield broker


async def test_the_consumer_timeout_costs_no_long_or_scheduled_job(impatient: RabbitMQ) -> None:
    """The channel is closed under a long job, which goes on: its new delivery is taken for what it is."""
    runs: Counter[str] = Counter()
    async with Jobs(impatient.uri("/ojs")) as jobs:

        @jobs.handler("pain.long", queue="impatient", timeout=60)
        async def run(name: str) -> None:
            runs[name] += 1
            await asyncio.sleep(4 if name == "long" else 0)

        async with Worker(jobs, concurrency=5, coordinator=True) as worker:
            job = await run.push("long")
            await run.options(delay=timedelta(seconds=3)).push("scheduled")
            await until(lambda: worker.counts["completed"] == 2, 60)
            assert worker.redelivered_count > 0, "the timeout struck"
            while (info := await jobs.info(job.id, "impatient")) is None or info.state == "active":
                await asyncio.sleep(0.02)
            assert (info.state, info.attempt) == ("completed", 1)
            assert worker.connection is not None
            examination = Examination(
                worker.connection, Topology(), ["impatient"], longest_timeout=60, consumer_timeout=1.5
            )
            assert "consumer-timeout" in {one.check for one in await examination.diagnoses()}
    assert runs == {"long": 1, "scheduled": 1}


async def test_delayed_jobs_take_no_room_in_a_worker(jobs: Jobs, queue_name: str) -> None:
    done: list[str] = []
    handler = jobs.handler("pain.some", queue=queue_name, retry=Retry(max_attempts=2))(done.append)
    async with Worker(jobs, concurrency=1, prefetch=1) as worker:
        later = handler.options(delay=timedelta(hours=1))
        await jobs.push_many([later.job("later") for _ in range(100)])
        assert worker.held_count == 0
        await handler.push("now")
        await until(lambda: done == ["now"])


async def test_a_crashed_worker_loses_no_job(broker_uri: str, jobs: Jobs, queue_name: str, tmp_path: Path) -> None:
    async with worker_process(broker_uri, queue_name) as first:
        await jobs.push("pain.first-hangs", [str(tmp_path)], queue=queue_name, retry=Retry(max_attempts=3))
        await until(lambda: runs_in(tmp_path) == 1)
        first.kill()
        await first.wait()
    async with worker_process(broker_uri, queue_name):
        await until(lambda: runs_in(tmp_path) == 2)


async def test_a_poison_job_ends_in_the_dead_letter_queue(
    broker_uri: str, jobs: Jobs, eye: Eye, queue_name: str, tmp_path: Path
) -> None:
    """Each worker that it kills is an attempt; its policy gives it two."""
    await jobs.push("pain.poison", [str(tmp_path)], queue=queue_name, retry=Retry(max_attempts=2))
    dead = f"ojs.queue.dlx.{queue_name}"
    while await eye.count(dead) == 0:
        async with worker_process(broker_uri, queue_name) as worker:
            ended = asyncio.ensure_future(worker.wait())
            while not ended.done() and await eye.count(dead) == 0:
                await asyncio.sleep(0.02)
    assert runs_in(tmp_path) == 2
    assert await eye.count(f"ojs.queue.{queue_name}") == 0


async def test_a_long_job_holds_back_no_short_ones(jobs: Jobs, queue_name: str) -> None:
    """A worker takes no more than it can run: what waits behind a long job is for whoever is free."""
    release, began, done = asyncio.Event(), asyncio.Event(), list[int]()

    @jobs.handler("pain.long", queue=queue_name)
    async def long() -> None:
        began.set()
        await release.wait()

    short = jobs.handler("pain.short", queue=queue_name)(done.append)
    async with Worker(jobs, concurrency=1) as busy:
        await long.push()
        await began.wait()
        async with Worker(jobs, concurrency=1):
            await jobs.push_many([short.job(number) for number in range(20)])
            await until(lambda: len(done) == 20)
        assert busy.held_count == 1
        release.set()


async def test_no_publish_is_lost_in_silence(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri, topology=Topology(declaration=Declaration.NEVER)) as jobs:
        with pytest.raises(PushFailed) as lost:
            await jobs.push("pain.some", queue=queue_name)
        assert lost.value.code == "NOT_FOUND"
    async with Jobs(broker_uri, topology=Topology(max_length=2)) as jobs:
        results = await asyncio.gather(
            *(jobs.push("pain.some", queue=queue_name) for _ in range(5)), return_exceptions=True
        )
    refused = [result for result in results if isinstance(result, PushFailed)]
    assert {failure.code for failure in refused} == {"QUEUE_FULL"}
    assert len(results) - len(refused) == await eye.count(f"ojs.queue.{queue_name}")


async def test_the_dead_letter_queue_is_fed(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    @jobs.handler("pain.fails", queue=queue_name, retry=Retry(max_attempts=1))
    async def fail() -> None:
        raise ValueError("no")

    async with Worker(jobs):
        job = await fail.push()
        dead = await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
    assert dead.properties.message_id == job.id
    assert dead.headers["x-death"][0]["reason"] == "rejected"


async def test_a_cancellation_outlives_every_process(broker_uri: str, jobs: Jobs, queue_name: str) -> None:
    done: list[str] = []
    handler = jobs.handler("pain.some", queue=queue_name)(done.append)
    cancelled = await handler.push("cancelled")
    async with Coordinator(jobs, queues=[queue_name]):
        await jobs.cancel(cancelled.id, queue_name)
        while (info := await jobs.info(cancelled.id, queue_name)) is None or info.state != "cancelled":
            await asyncio.sleep(0.01)
    await handler.push("wanted")
    async with Worker(jobs):
        await until(lambda: done == ["wanted"])


async def test_two_of_everything_run_a_scheduled_job_once(jobs: Jobs, queue_name: str) -> None:
    """The broker is the only clock: there is no scheduler of which there could be two."""
    runs: Counter[int] = Counter()

    @jobs.handler("pain.scheduled", queue=queue_name)
    async def run(number: int) -> None:
        runs[number] += 1

    async with Worker(jobs, coordinator=True), Worker(jobs, coordinator=True):
        soon = run.options(delay=timedelta(seconds=1))
        await jobs.push_many([soon.job(number) for number in range(20)])
        await until(lambda: len(runs) == 20)
        await asyncio.sleep(0.2)
    assert set(runs.values()) == {1}


async def test_handlers_are_async(jobs: Jobs, queue_name: str) -> None:
    """A hundred that wait at once, in one process and one thread."""
    everyone = asyncio.Barrier(100)

    @jobs.handler("pain.waits", queue=queue_name)
    async def wait() -> None:
        await everyone.wait()

    async with Worker(jobs, concurrency=100) as worker:
        await jobs.push_many([wait.job() for _ in range(100)])
        await until(lambda: worker.counts["completed"] == 100)


async def never_called(jobs: Jobs) -> None:
    """Read by the type checker, which reports an ignored error that is none (mypy, `warn_unused_ignores`)."""

    @jobs.handler("pain.typed")
    async def typed(to: str, *, copies: int = 1) -> None: ...

    await typed.push("ada", copies=2)
    await typed.push(5)  # type: ignore[arg-type]
    await typed.push("ada", copies="two")  # type: ignore[arg-type]
    await typed.push()  # type: ignore[call-arg]


def test_pushes_are_typed(repository: Path) -> None:
    """`make lint` runs mypy over this file: it fails if any push of `never_called` were taken."""
    settings = (repository / "pyproject.toml").read_text(encoding="utf-8").split("[tool.mypy]")[1]
    assert "strict = true" in settings
    assert '"tests"' in settings
    assert asyncio.iscoroutinefunction(never_called)


async def test_what_runs_what_failed_and_why_can_be_seen(jobs: Jobs, queue_name: str) -> None:
    release, began = asyncio.Event(), asyncio.Event()

    @jobs.handler("pain.seen", queue=queue_name, retry=Retry(max_attempts=1))
    async def run(what: str) -> None:
        began.set()
        await release.wait()
        raise ValueError(f"no {what}")

    async with Worker(jobs, coordinator=True) as worker:
        job = await run.push("luck")
        await began.wait()
        while (info := await jobs.info(job.id, queue_name)) is None or info.state != "active":
            await asyncio.sleep(0.01)
        assert (info.worker_id, info.attempt) == (worker.id, 1)
        release.set()
        while (info := await jobs.info(job.id, queue_name)) is None or info.state != "discarded":
            await asyncio.sleep(0.01)
        assert info.error is not None
        assert (info.error["type"], info.error["message"]) == ("ValueError", "no luck")
        assert [one.id for one in await jobs.newest(queue_name, state="discarded")] == [job.id]


@pytest.mark.plain_source
async def test_memory_does_not_grow_with_the_jobs(jobs: Jobs, queue_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker remembers has a limit, here a small one, so that some thousand jobs show what days would."""
    monkeypatch.setattr("waybill.ojs.worker.settlement.REMEMBERED_ATTEMPTS", 100)
    handler = jobs.handler("pain.some", queue=queue_name)(_nothing)
    sizes: list[int] = []
    async with Worker(jobs, concurrency=50) as worker:
        tracemalloc.start()
        try:
            for done in range(1, 9):
                await jobs.push_many([handler.job() for _ in range(600)])
                await until(lambda done=done: worker.counts["completed"] == 600 * done)  # type: ignore[misc]
                sizes.append(min([await _traced_memory() for _ in range(10)]))
        finally:
            tracemalloc.stop()
    # The ids of the 2400 jobs in between alone are more. What is in flight comes and goes; at first there is little.
    assert median(sizes[5:]) - median(sizes[1:4]) < 150_000, sizes


async def _traced_memory() -> int:
    """What is in use, in bytes, a moment later: events and acknowledgements have gone by then, or go now."""
    await asyncio.sleep(0.02)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def _nothing() -> None:
    return


def test_every_pain_has_its_test() -> None:
    tests: dict[str, Callable[..., object]] = {
        name: value for name, value in globals().items() if name.startswith("test_") and callable(value)
    }
    assert len(tests) == 15 + 1
