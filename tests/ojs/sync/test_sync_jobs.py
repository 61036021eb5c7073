"""Pushes and questions from code without an event loop, on both brokers."""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.ojs.eye import Eye
from tests.ojs.sync import process_program
from waybill.client import WrongEventLoop
from waybill.ojs import BatchFailed, Envelope, InvalidJob, Jobs, NewJob, Retry, Topology, Worker
from waybill.ojs.middleware import Enqueue, JobMiddleware
from waybill.testing import until


@pytest.fixture
def jobs(broker_uri: str) -> Iterator[Jobs]:
    jobs = Jobs(broker_uri)
    yield jobs
    jobs.sync.close()


def message_count(eye: Eye, queue: str) -> int:
    count: int = eye.channel.queue_declare(f"ojs.queue.{queue}", passive=True).method.message_count
    return count


def test_a_push_without_a_loop_is_confirmed(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    @jobs.handler("sync.greet", queue=queue_name, retry=Retry(max_attempts=2))
    async def greet(name: str) -> str:
        return f"hello {name}"

    job = greet.push_sync("ada")
    other = greet.options(priority=3).push_sync(name="bob")
    by_name = jobs.sync.push("sync.greet", ["cleo"])
    assert (job.type, job.queue, job.envelope.args) == ("sync.greet", queue_name, ["ada"])
    assert other.envelope.priority == 3
    assert by_name.envelope.policy.max_attempts == 2
    assert message_count(eye, queue_name) == 3


def test_any_number_of_threads_share_one_connection(jobs: Jobs, queue_name: str) -> None:
    @jobs.handler("sync.count", queue=queue_name)
    def count(number: int) -> None: ...

    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda number: count.push_sync(number).id, range(40)))
    assert len(set(ids)) == 40
    names = [one.name for one in threading.enumerate()]
    assert names.count("waybill-client") == 1


def test_a_pipeline_keeps_the_order_and_ends_confirmed(
    jobs: Jobs, eye: Eye, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.sync.pipeline.BATCH", 7)

    @jobs.handler("sync.many", queue=queue_name)
    def many(number: int) -> None: ...

    with jobs.sync.pipeline() as pipeline:
        for number in range(30):
            pipeline.push(many.job(number))
    assert pipeline.pushed_count == 30
    found = [eye.channel.basic_get(f"ojs.queue.{queue_name}", auto_ack=True)[2] for _ in range(30)]
    assert [json.loads(body)["args"] for body in found] == [[number] for number in range(30)]


def test_errors_are_those_of_the_async_client(broker_uri: str, queue_name: str) -> None:
    jobs = Jobs(broker_uri, topology=Topology(max_length=2))
    with pytest.raises(InvalidJob, match="type"):
        jobs.sync.push("no type!")
    new = [NewJob("a.b", [number], {"queue": queue_name}) for number in range(5)]
    with pytest.raises(BatchFailed) as failed:
        jobs.sync.push_many(new)
    assert {one.code for one in failed.value.failures} == {"QUEUE_FULL"}
    with pytest.raises(BatchFailed), jobs.sync.pipeline() as pipeline:
        pipeline.push(new[0])
    pipeline = jobs.sync.pipeline()
    with contextlib.suppress(ZeroDivisionError), pipeline:
        pipeline.push(new[0])
        raise ZeroDivisionError
    assert pipeline.pushed_count == 0
    jobs.sync.close()


def test_a_call_that_would_block_a_loop_says_what_to_await(jobs: Jobs, queue_name: str) -> None:
    @jobs.handler("sync.wrong", queue=queue_name)
    def wrong() -> None: ...

    async def mistaken() -> None:
        with pytest.raises(WrongEventLoop, match=r"write `await wrong\.push\(\.\.\.\)`"):
            wrong.push_sync()
        with pytest.raises(WrongEventLoop, match=r"write `await wrong\.options\(\.\.\.\)\.push\(\.\.\.\)`"):
            wrong.options(priority=1).push_sync()
        with pytest.raises(WrongEventLoop, match=r"write `await jobs\.push_many\(\.\.\.\)`"):
            jobs.sync.push_many([wrong.job()])
        with pytest.raises(WrongEventLoop, match=r"push_many"), jobs.sync.pipeline() as pipeline:
            pipeline.push(wrong.job())
        assert (await asyncio.to_thread(wrong.push_sync)).queue == queue_name

    asyncio.run(mistaken())


async def test_a_handler_in_a_thread_pushes_beside_the_loop_of_its_worker(jobs: Jobs, queue_name: str) -> None:
    done: list[str] = []

    @jobs.handler("sync.child", queue=queue_name)
    async def child(name: str) -> None:
        done.append(name)

    @jobs.handler("sync.parent", queue=queue_name)
    def parent() -> None:
        child.push_sync("by the thread")

    @jobs.handler("sync.uncle", queue=queue_name)
    async def uncle() -> None:
        await child.push("by the loop")

    async with jobs, Worker(jobs):
        await parent.push()
        await uncle.push()
        await until(lambda: sorted(done) == ["by the loop", "by the thread"])
    await asyncio.to_thread(jobs.sync.close)


async def test_a_result_is_waited_for_in_a_thread(jobs: Jobs, queue_name: str) -> None:
    @jobs.handler("sync.double", queue=queue_name)
    async def double(number: int) -> int:
        return 2 * number

    def ask() -> int:
        job = double.push_sync(21)
        assert job.wait(timeout=30) == "completed"
        return job.result(timeout=30)

    async with jobs, Worker(jobs):
        assert await asyncio.to_thread(ask) == 42
        with pytest.raises(WrongEventLoop, match=r"await job\.result"):
            (await asyncio.to_thread(double.push_sync, 1)).result()
    await asyncio.to_thread(jobs.sync.close)


async def test_a_handler_in_a_process_pushes_to_the_broker_of_its_worker(broker_uri: str) -> None:
    process_program.names.clear()
    process_program.jobs.connect_to(broker_uri)
    async with process_program.jobs, Worker(process_program.jobs, processes=1):
        with pytest.raises(RuntimeError, match="close it first"):
            process_program.jobs.connect_to("amqp://elsewhere")
        await process_program.parent.push("by the process")
        await until(lambda: process_program.names == ["by the process"], timeout=60)


def test_a_closed_client_connects_again_and_follows_its_uri(jobs: Jobs, broker_uri: str, queue_name: str) -> None:
    @jobs.handler("sync.again", queue=queue_name)
    def again() -> None: ...

    again.push_sync()
    jobs.sync.close()
    jobs.sync.close()
    again.push_sync()
    jobs.uri = broker_uri + "?heartbeat=5"
    assert again.push_sync().queue == queue_name


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_has_a_connection_of_its_own(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    @jobs.handler("sync.fork", queue=queue_name)
    def fork(number: int) -> None: ...

    fork.push_sync(0)
    children = []
    for number in (1, 2):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for _ in range(3):
                    fork.push_sync(number)
                jobs.sync.close()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    # The parent's goes on meanwhile.
    fork.push_sync(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    fork.push_sync(0)
    assert message_count(eye, queue_name) == 9


def test_questions_are_asked_from_a_thread(jobs: Jobs, queue_name: str) -> None:
    @jobs.handler("sync.asked", queue=queue_name)
    def asked() -> None: ...

    job = asked.push_sync()
    jobs.sync.cancel(job.id, queue_name)
    assert jobs.sync.job(job.id).id == job.id
    assert not jobs.sync.is_paused(queue_name)
    assert jobs.sync.pause(queue_name)
    assert jobs.sync.resume(queue_name)


class Tag(JobMiddleware):
    async def enqueue(self, job: Envelope, call: Enqueue) -> Envelope | None:
        job.tags.append("seen")
        return await call(job)


def test_middleware_sees_jobs_pushed_from_threads(broker_uri: str, queue_name: str) -> None:
    jobs = Jobs(broker_uri, middleware=[Tag()])
    assert jobs.sync.push("sync.tag", queue=queue_name).envelope.tags == ["seen"]
    jobs.sync.close()
