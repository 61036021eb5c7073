"""FETCH, ACK and the ways a job can go wrong, on both brokers."""

import asyncio
import gc
import logging
import threading
import time
from collections.abc import Callable

import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from waybill.ojs import (
    DeadLetterJob,
    DiscardJob,
    FailJob,
    JobContext,
    JobError,
    Jobs,
    Retry,
    Worker,
    current_job,
)
from waybill.ojs.middleware import Call, Middleware
from waybill.ojs.worker.execution import Execution
from waybill.ojs.worker.settlement import OnDiscard

QUICK = Retry(max_attempts=1)


async def test_async_and_sync_handlers_complete_and_are_acknowledged(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    seen: list[object] = []
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.async", queue=queue_name)
        async def in_the_loop(name: str, count: int = 1) -> dict[str, object]:
            await asyncio.sleep(0)
            seen.append((name, count, threading.current_thread() is threading.main_thread()))
            return {"name": name}

        @jobs.handler("work.sync", queue=queue_name)
        def in_a_thread(name: str) -> None:
            seen.append((name, current_job().type, threading.current_thread() is threading.main_thread()))

        async with Worker(jobs) as worker:
            await in_the_loop.push("a", count=3)
            await in_a_thread.push("b")
            await until(lambda: worker.counts["completed"] == 2)
        assert sorted(map(str, seen)) == ["('a', 3, True)", "('b', 'work.sync', False)"]
        assert await eye.count(f"ojs.queue.{queue_name}") == 0
    assert await in_the_loop("c") == {"name": "c"}


@requirement("OJS-030")
async def test_no_more_than_the_concurrency_is_held_over_all_queues(
    broker_uri: str, eye: Eye, queue_names: Callable[[], str]
) -> None:
    queues = [queue_names(), queue_names()]
    running, most = 0, 0
    release = asyncio.Event()
    async with Jobs(broker_uri, create_queues=True) as jobs:

        @jobs.handler("work.slow")
        async def slow() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await release.wait()
            running -= 1

        for queue in queues:
            await jobs.push_many([slow.options(queue=queue).job() for _ in range(5)])
        async with Worker(jobs, queues=queues, concurrency=3) as worker:
            await until(lambda: running == 3)
            waiting = sum([await eye.count(f"ojs.queue.{queue}") for queue in queues])
            assert waiting == 7, "three jobs are held by the worker, the others stay with the broker"
            release.set()
            await until(lambda: worker.counts["completed"] == 10)
    assert most == 3


@requirement("OJS-036", "OJSW-011")
async def test_the_last_failure_goes_to_the_dead_letter_queue(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.fail", queue=queue_name, retry=QUICK)
        async def fail() -> None:
            raise RuntimeError("no")

        async with Worker(jobs):
            pushed = await fail.push()
            dead = await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
        assert dead.properties.message_id == pushed.id
        assert dead.routing_key == queue_name
        assert dead.headers["x-death"][0]["reason"] == "rejected"
        assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 0
        assert await eye.count(f"ojs.queue.{queue_name}") == 0


@pytest.mark.parametrize(
    ("error", "on_discard", "is_kept"),
    [
        (DiscardJob("x"), "dead_letter", True),
        (DiscardJob("x"), "acknowledge", False),
        (FailJob("x"), "acknowledge", False),
        (DeadLetterJob("x"), "acknowledge", True),
        (JobError("x", type="auth.expired"), "acknowledge", False),
    ],
)
async def test_a_handler_decides_what_happens_to_its_job(
    broker_uri: str, eye: Eye, queue_name: str, error: JobError, on_discard: OnDiscard, is_kept: bool
) -> None:
    calls = 0
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.fail", queue=queue_name, retry=Retry(max_attempts=9, non_retryable_errors=["auth.*"]))
        async def fail() -> None:
            nonlocal calls
            calls += 1
            raise error

        async with Worker(jobs, on_discard=on_discard) as worker:
            await fail.push()
            await until(lambda: worker.counts["discarded"] == 1)
        assert calls == 1
        assert await eye.count(f"ojs.queue.{queue_name}") == 0
        assert await eye.count(f"ojs.queue.dlx.{queue_name}") == (1 if is_kept else 0)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"not json", "work.known"),
        (b"[]", "work.known"),
        (b'{"id": "1", "type": "work.known", "queue": "q", "args": 5}', "work.known"),
        (b'{"id": "1", "type": "work.unknown", "queue": "q", "args": []}', "work.unknown"),
        (b'{"id": "1", "type": "work.known", "queue": "q", "args": [1, 2, 3]}', "work.known"),
        (b'{"id": "1", "type": "work.known", "queue": "q", "args": [], "expires_at": "nonsense"}', "work.known"),
    ],
)
async def test_what_is_no_job_is_put_aside_and_the_next_job_runs(
    broker_uri: str, eye: Eye, queue_name: str, body: bytes, kind: str
) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.known", queue=queue_name)
        async def known() -> None: ...

        async with Worker(jobs, concurrency=1) as worker:
            await eye.publish("ojs.exchange.direct", queue_name, body, type=kind, message_id="1", delivery_mode=2)
            await known.push()
            await until(lambda: worker.counts["completed"] == 1)
            dead = await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
    assert dead.body == body


@pytest.mark.parametrize("body", [b"", b"no table"])
async def test_a_message_without_any_properties_is_put_aside(
    broker_uri: str, eye: Eye, queue_name: str, body: bytes
) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.known", queue=queue_name)
        async def known() -> None: ...

        async with Worker(jobs):
            await eye.publish("ojs.exchange.direct", queue_name, body)
            assert (await eye.wait_for(f"ojs.queue.dlx.{queue_name}")).body == body


async def test_an_expired_job_is_not_started(broker_uri: str, eye: Eye, queue_name: str) -> None:
    calls = 0
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.late", queue=queue_name)
        async def late() -> None:
            nonlocal calls
            calls += 1

        expired = await late.options(expires_at="2020-01-01T00:00:00Z").push()
        await late.options(expires_at="+PT1H").push()
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["completed"] == 1)
            assert (await eye.wait_for(f"ojs.queue.dlx.{queue_name}")).properties.message_id == expired.id
    assert calls == 1


async def test_a_handler_that_takes_too_long_is_cancelled_and_fails(broker_uri: str, eye: Eye, queue_name: str) -> None:
    cancelled = asyncio.Event()
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.slow", queue=queue_name, timeout=0.2, retry=QUICK)
        async def slow() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        async with Worker(jobs) as worker:
            await slow.push()
            await until(lambda: worker.counts["discarded"] == 1)
            await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
    assert cancelled.is_set()


async def test_the_late_result_of_a_thread_is_refused(broker_uri: str, eye: Eye, queue_name: str) -> None:
    release = threading.Event()
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.stuck", queue=queue_name, timeout=0.2, retry=QUICK)
        def stuck() -> str:
            release.wait(30)
            return "too late"

        async with Worker(jobs, concurrency=1) as worker:
            await stuck.push()
            await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
            release.set()
            await until(lambda: not worker.running_count)
            assert worker.counts.items() >= {"completed": 0, "failed": 1, "retried": 0, "discarded": 1}.items()


async def test_a_cancelled_error_of_the_handler_itself_is_a_failure(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.cancel", queue=queue_name, retry=QUICK)
        async def cancel() -> None:
            raise asyncio.CancelledError

        async with Worker(jobs):
            await cancel.push()
            await eye.wait_for(f"ojs.queue.dlx.{queue_name}")


async def test_a_result_that_is_not_json_does_not_undo_the_job(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.odd", queue=queue_name)
        async def odd() -> object:
            return object()

        async with Worker(jobs) as worker:
            await odd.push()
            await until(lambda: worker.counts["completed"] == 1)
        assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 0


async def test_middleware_wraps_async_and_sync_handlers_in_order(broker_uri: str, queue_name: str) -> None:
    trail: list[str] = []

    def layer(name: str) -> Middleware:
        async def middleware(job: JobContext, call: Call) -> object:
            trail.append(f"{name} before {job.type}")
            result = await call(job)
            trail.append(f"{name} after {result}")
            return result

        return middleware

    async with Jobs(broker_uri) as jobs:

        @jobs.handler("wrap.async", queue=queue_name)
        async def in_the_loop(number: int) -> int:
            return number

        @jobs.handler("wrap.sync", queue=queue_name)
        def in_a_thread(number: int) -> int:
            return number

        async with Worker(jobs, concurrency=1, middleware=[layer("outer"), layer("inner")]) as worker:
            await in_the_loop.push(1)
            await until(lambda: worker.counts["completed"] == 1)
            await in_a_thread.push(2)
            await until(lambda: worker.counts["completed"] == 2)
    assert trail == [
        "outer before wrap.async", "inner before wrap.async", "inner after 1", "outer after 1",
        "outer before wrap.sync", "inner before wrap.sync", "inner after 2", "outer after 2",
    ]  # fmt: skip


async def test_a_program_that_knows_only_the_binding_can_push_and_consume(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    seen: list[str] = []
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("email.send", queue=queue_name)
        async def send(to: str, template: str) -> None:
            seen.append(f"{to} {template}")

        def declare() -> None:
            channel = eye.channel
            channel.exchange_declare("ojs.exchange.direct", "direct", durable=True)
            channel.exchange_declare("ojs.exchange.dlx", "direct", durable=True)
            arguments = {
                "x-dead-letter-exchange": "ojs.exchange.dlx",
                "x-dead-letter-routing-key": queue_name,
                "x-max-priority": 10,
            }
            channel.queue_declare(f"ojs.queue.{queue_name}", durable=True, arguments=arguments)
            channel.queue_bind(f"ojs.queue.{queue_name}", "ojs.exchange.direct", queue_name)

        await eye.call(declare)
        body = b'{"id": "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6", "type": "email.send", "queue": "x", "args": ["a", "b"]}'
        await eye.publish("ojs.exchange.direct", queue_name, body, type="email.send", headers={"x-ojs-attempt": 1})
        async with Worker(jobs):
            await until(lambda: seen == ["a b"])
        await send.push("c", "d")
        assert (await eye.wait_for(f"ojs.queue.{queue_name}")).json()["args"] == ["c", "d"]


async def test_a_worker_starts_its_first_job_quickly(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.first", queue=queue_name)
        async def first() -> None: ...

        await first.push()
        started = time.perf_counter()
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["completed"] == 1)
        assert time.perf_counter() - started < 5


async def test_a_failed_job_is_released(broker_uri: str, queue_name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The collector comes rarely: 300 failed jobs of 1 MB took 550 MB of a worker."""
    # Captured records have the errors.
    caplog.set_level(logging.CRITICAL)
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("work.fails", queue=queue_name, retry=QUICK)
        async def at_once(_: str) -> None:
            raise ValueError

        @jobs.handler("work.fails_later", queue=queue_name, retry=QUICK)
        async def later(_: str) -> None:
            await asyncio.sleep(0)
            raise ValueError

        async with Worker(jobs) as worker:
            gc.collect()
            gc.disable()
            try:
                for _ in range(3):
                    await at_once.push("x")
                    await later.push("x")
                await until(lambda: worker.counts["failed"] == 6)
                # Other tests of this process may have left some.
                await until(
                    lambda: queue_name not in [one.queue for one in gc.get_objects() if isinstance(one, Execution)]
                )
            finally:
                gc.enable()
