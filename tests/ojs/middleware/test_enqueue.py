"""The chain around the enqueuing of jobs, and how chains are put together (ojs-middleware sections 3, 5 and 7)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.ojs.eye import Eye
from waybill.ojs import Call, Enqueue, Envelope, InvalidJob, JobContext, JobMiddleware, Jobs, PushFailed
from waybill.ojs.middleware import Chain
from waybill.ojs.topology.topology import Topology


class Named(JobMiddleware):
    def __init__(self, name: str, trace: list[str]) -> None:
        self.name = name
        self.trace = trace

    async def enqueue(self, job: Envelope, call: Enqueue) -> Envelope | None:
        self.trace.append(f"{self.name} in")
        job.tags.append(self.name)
        try:
            return await call(job)
        finally:
            self.trace.append(f"{self.name} out")


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


async def test_the_first_is_the_outermost_and_changes_reach_the_broker(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    trace: list[str] = []
    jobs.use(Named("a", trace), Named("b", trace))
    pushed = await jobs.push("chain.tags", queue=queue_name)
    assert trace == ["a in", "b in", "b out", "a out"]
    assert (await eye.wait_for(f"ojs.queue.{queue_name}")).json()["tags"] == ["a", "b"]
    assert (pushed.envelope.tags, pushed.envelope.state) == (["a", "b"], "available")


async def test_the_jobs_of_one_push_go_through_the_chain_and_out_together(
    jobs: Jobs, eye: Eye, queue_name: str
) -> None:
    waiting: list[str] = []

    async def note(job: Envelope, call: Enqueue) -> Envelope | None:
        waiting.append(job.id)
        pushed = await call(job)
        assert len(waiting) == 50, "published before all had come through"
        return pushed

    jobs.enqueue_middleware.add(note)
    pushed = await jobs.push_many([{**JOB, "id": job_id(n), "queue": queue_name} for n in range(50)])
    assert [job.id for job in pushed] == [job_id(n) for n in range(50)]
    assert await eye.count(f"ojs.queue.{queue_name}") == 50


async def test_a_dropped_job_is_not_enqueued_and_the_caller_can_tell(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    async def every_other(job: Envelope, call: Enqueue) -> Envelope | None:
        return await call(job) if job.args == [1] else None

    jobs.enqueue_middleware.add(every_other)
    made = [{**JOB, "id": job_id(n), "queue": queue_name, "args": [n]} for n in range(3)]
    assert [job.state for job in await jobs.push_many(made)] == [None, "available", None]
    assert await eye.count(f"ojs.queue.{queue_name}") == 1


async def test_an_error_of_a_middleware_reaches_the_caller_and_nothing_is_sent(
    jobs: Jobs, eye: Eye, queue_name: str
) -> None:
    inner: list[str] = []

    async def refuse(job: Envelope, call: Enqueue) -> Envelope | None:
        if job.args == [2]:
            raise PermissionError("not you")
        return await call(job)

    async def after(job: Envelope, call: Enqueue) -> Envelope | None:
        inner.append(job.id)
        return await call(job)

    jobs.enqueue_middleware.add(refuse)
    jobs.enqueue_middleware.add(after)
    made = [{**JOB, "id": job_id(n), "queue": queue_name, "args": [n]} for n in range(3)]
    with pytest.raises(PermissionError, match="not you"):
        await jobs.push_many(made)
    assert inner == [job_id(0), job_id(1)]
    assert not await eye.exists(f"ojs.queue.{queue_name}")


async def test_a_middleware_may_not_change_the_id_nor_break_the_rules(jobs: Jobs, queue_name: str) -> None:
    changes: list[tuple[str, str]] = []

    async def spoil(job: Envelope, call: Enqueue) -> Envelope | None:
        setattr(job, *changes[-1])
        return await call(job)

    jobs.enqueue_middleware.add(spoil)
    for change in (("id", job_id(7)), ("queue", "Bad Queue")):
        changes.append(change)
        with pytest.raises(InvalidJob) as caught:
            await jobs.push("chain.spoil", queue=queue_name)
        assert caught.value.field == change[0]


async def test_a_refusal_of_the_broker_passes_through_the_chain(broker_uri: str, queue_name: str) -> None:
    seen: list[str] = []

    async def watch(job: Envelope, call: Enqueue) -> Envelope | None:
        try:
            return await call(job)
        except PushFailed as error:
            seen.append(error.code)
            raise

    async with Jobs(broker_uri, topology=Topology(max_length=1, prefix="full.")) as jobs:
        await jobs.push("chain.full", queue=queue_name)
        jobs.enqueue_middleware.add(watch)
        with pytest.raises(PushFailed, match="QUEUE_FULL"):
            await jobs.push("chain.full", queue=queue_name)
    assert seen == ["QUEUE_FULL"]


async def test_a_chain_is_frozen_while_jobs_go_through_it(jobs: Jobs, queue_name: str) -> None:
    async def change(job: Envelope, call: Enqueue) -> Envelope | None:
        with pytest.raises(RuntimeError, match="cannot be changed"):
            jobs.enqueue_middleware.remove(change)
        return await call(job)

    jobs.enqueue_middleware.add(change)
    await jobs.push("chain.frozen", queue=queue_name)
    jobs.enqueue_middleware.remove(change)
    assert len(jobs.enqueue_middleware) == 0


def test_a_chain_is_put_together_by_five_operations() -> None:
    class One(JobMiddleware):
        async def execute(self, job: JobContext, call: Call) -> object:
            return await call(job)

    one, chain = One(), Chain(["b"])
    chain.add("d")
    chain.prepend("a")
    chain.insert_before("d", "c")
    chain.insert_after("d", "e")
    assert list(chain) == ["a", "b", "c", "d", "e"]
    chain.remove("c")
    assert list(chain) == ["a", "b", "d", "e"]
    with pytest.raises(LookupError):
        chain.remove("c")
    sides = Chain([one.execute])
    sides.insert_before(One, one.execute)
    sides.remove(one)
    assert len(sides) == 1


async def test_a_cancelled_push_leaves_no_task_behind(jobs: Jobs, queue_name: str) -> None:
    entered = asyncio.Event()

    async def hang(job: Envelope, call: Enqueue) -> Envelope | None:
        entered.set()
        await asyncio.Event().wait()
        return None

    jobs.enqueue_middleware.add(hang)
    before = asyncio.all_tasks()
    push = asyncio.ensure_future(jobs.push("chain.hang", queue=queue_name))
    await entered.wait()
    push.cancel()
    with pytest.raises(asyncio.CancelledError):
        await push
    assert asyncio.all_tasks() == before


JOB: dict[str, object] = {"specversion": "1.0", "type": "chain.many", "args": []}


def job_id(number: int) -> str:
    return f"018f0000-0000-7000-8000-{number:012d}"
