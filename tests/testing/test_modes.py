"""Jobs without a broker: kept, or run at once."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from waybill.ojs import (
    Call,
    DiscardedJob,
    DiscardJob,
    Enqueue,
    Envelope,
    InvalidJob,
    JobContext,
    JobMiddleware,
    Jobs,
    PushFailed,
    ResultTimeout,
    Retry,
    current_job,
    new_workflow_id,
    resource,
)
from waybill.testing import RecordedJobs, fake, inline

pytest_plugins = ["waybill.testing.pytest_plugin"]


@dataclass
class Order:
    customer: str
    thing: str


class Marks(JobMiddleware):
    async def enqueue(self, job: Envelope, call: Enqueue) -> Envelope | None:
        job.tags.append("marked")
        return await call(job)

    async def execute(self, job: JobContext, call: Call) -> object:
        seen.append(f"before {job.type}")
        return await call(job)


async def letterhead() -> str:
    return "Dear "


jobs = Jobs("amqp://127.0.0.1:1/nobody-listens", middleware=[Marks()])
seen: list[str] = []


@jobs.handler("mail.send", queue="mail", retry=Retry(max_attempts=3))
async def send_mail(to: str, *, head: str = resource(letterhead)) -> str:
    seen.append(f"{head}{to}")
    return to.upper()


@jobs.handler("order.take", queue="orders")
def take_order(order: Order) -> Order:
    seen.append(f"{current_job().attempt} {threading.current_thread().name}")
    send_mail.push_sync(order.customer)
    return order


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def test_what_is_pushed_is_kept_and_nothing_runs() -> None:
    with fake(jobs) as pushed:
        job = take_order.push_sync(Order("ada", "book"))
        jobs.sync.push_many([send_mail.job("bob"), send_mail.job("cleo")])
        with jobs.sync.pipeline() as pipeline:
            pipeline.push(send_mail.options(delay=timedelta(hours=1)).job("dan"))
    assert seen == []
    (found,) = pushed.assert_enqueued("order.take", args=[{"customer": "ada", "thing": "book"}], queue="orders")
    assert (found.id, found.envelope.tags) == (job.id, ["marked"])
    assert [one.args for one in pushed.assert_enqueued("mail.send", count=3)] == [["bob"], ["cleo"], ["dan"]]
    pushed.assert_enqueued("mail.send", state="scheduled", count=1)
    pushed.refute_enqueued("mail.send", args=["eve"])
    pushed.refute_performed("mail.send")
    with pytest.raises(AssertionError, match=r"expected at least one pushed job mail.send with \['eve'\], found 0:"):
        pushed.assert_enqueued("mail.send", args=["eve"])
    with pytest.raises(AssertionError, match="0 pushed job"):
        pushed.refute_enqueued("mail.send")
    pushed.clear()
    pushed.refute_enqueued("mail.send")


def test_a_drain_runs_what_waits_and_what_that_pushes() -> None:
    with fake(jobs) as pushed:
        take_order.push_sync(Order("ada", "book"))
        send_mail.options(delay=timedelta(hours=1)).push_sync("late")
        assert pushed.drain() == 2
        pushed.assert_completed("order.take", count=1)
        pushed.assert_completed("mail.send", args=["ada"])
        pushed.refute_performed("mail.send", args=["late"])
        assert pushed.drain(with_scheduled=True) == 1
    assert seen == [
        "before order.take",
        "1 MainThread",
        "before mail.send",
        "Dear ada",
        "before mail.send",
        "Dear late",
    ]


def test_an_attempt_that_fails_in_a_drain_is_followed_by_the_next() -> None:
    with fake(jobs) as pushed:
        pushed.fail_next("mail.send", ConnectionError("no answer"))
        job = send_mail.push_sync("ada")
        pushed.drain()
        (found,) = pushed.assert_failed("mail.send")
        assert (found.attempt, found.result) == (2, "ADA")
        pushed.assert_job_state(job.id, "completed")
        pushed.fail_all("mail.send", ConnectionError("no answer"))
        send_mail.push_sync("bob")
        pushed.drain(max_jobs=1)
        (found,) = pushed.assert_failed("mail.send", args=["bob"])
        assert (found.attempt, found.state.value) == (3, "discarded")
        with pytest.raises(AssertionError, match="discarded"):
            pushed.assert_job_state(found.id, "completed")


def test_inline_a_push_returns_when_its_handler_has() -> None:
    with inline(jobs) as done:
        take_order.push_sync(Order("ada", "book"))
        assert seen == ["before order.take", "1 MainThread", "before mail.send", "Dear ada"]
        (mail,) = done.assert_completed("mail.send")
        assert (mail.result, mail.attempt) == ("ADA", 1)
        assert done.assert_completed("order.take")[0].result == {"customer": "ada", "thing": "book"}
        jobs.sync.push("other.program", queue="orders")
        done.assert_enqueued("other.program")
        done.refute_performed("other.program")


async def test_inline_in_an_event_loop() -> None:
    with inline(jobs) as done:
        async with jobs:
            await take_order.push(Order("ada", "book"))
            await send_mail.push("bob")
            info = await jobs.info(done.assert_completed("mail.send", args=["bob"])[0].id, "mail")
            assert info is not None
            assert (info.state, info.result) == ("completed", "BOB")
            assert [one.queue for one in await jobs.newest("mail", limit=1)] == ["mail"]
        with pytest.raises(RuntimeError, match="TestBroker"):
            await jobs.pause("mail")
    assert [one for one in seen if "MainThread" in one] == [], "a plain handler would have blocked the loop"
    with fake(jobs) as pushed:
        await send_mail.push("cleo")
        assert await pushed.drain_async() == 1


def test_inline_an_error_comes_out_of_the_push_unless_there_are_retries() -> None:
    with inline(jobs) as done:
        done.fail_next("mail.send", ConnectionError("no answer"))
        with pytest.raises(ConnectionError, match="no answer"):
            send_mail.push_sync("ada")
        done.assert_failed("mail.send", count=1)
    with inline(jobs, retries=True) as done:
        done.fail_next("mail.send", ConnectionError("no answer"))
        send_mail.push_sync("ada")
        assert done.assert_completed("mail.send")[0].attempt == 2
        done.fail_next("mail.send", DiscardJob("never mind"))
        send_mail.push_sync("bob")
        assert done.assert_failed("mail.send", args=["bob"])[0].attempt == 1


def test_a_handle_knows_how_its_job_has_ended() -> None:
    with inline(jobs, retries=True) as done:
        assert send_mail.push_sync("ada").result() == "ADA"
        order = take_order.push_sync(Order("ada", "book"))
        assert (order.result(), order.wait(), order.state()) == (Order("ada", "book"), "completed", "completed")
        done.fail_all("mail.send", ConnectionError("no answer"))
        with pytest.raises(DiscardedJob, match="no answer"):
            send_mail.push_sync("bob").result()
    with fake(jobs):
        waiting = send_mail.push_sync("cleo")
        assert waiting.state() == "available"
        with pytest.raises(ResultTimeout, match="drain"):
            waiting.result(timeout=1)


async def test_an_awaited_handle_knows_it_too() -> None:
    with inline(jobs):
        assert await (await send_mail.push("ada")).result() == "ADA"


def test_what_a_push_refuses_is_refused_here_too() -> None:
    with fake(jobs) as pushed:
        with pytest.raises(InvalidJob):
            jobs.sync.push("no type!")
        with pytest.raises((InvalidJob, TypeError)):
            take_order.push_sync(5)  # type: ignore[arg-type]
        pushed.refute_enqueued("order.take")


def test_the_broker_is_back_after_the_block() -> None:
    own = Jobs("amqp://127.0.0.1:1/nobody-listens", push_timeout=0.1)
    with fake(own), fake(own) as inner:
        own.sync.push("a.b")
        inner.assert_enqueued("a.b")
    with pytest.raises(PushFailed, match=r"127\.0\.0\.1:1"):
        own.sync.push("a.b")
    own.sync.close()


@pytest.mark.parametrize("mode", [fake, inline])
def test_what_needs_a_coordinator_says_so(mode: Any) -> None:
    with mode(jobs):
        workflow = jobs.sync.workflow(new_workflow_id())
        asked: list[Callable[[], object]] = [jobs.sync.crons.list, workflow.state, lambda: jobs.sync.pause("mail")]
        for ask in asked:
            with pytest.raises(RuntimeError, match=r"use waybill\.testing\.TestBroker"):
                ask()


def test_a_job_that_waits_can_be_cancelled() -> None:
    with fake(jobs) as pushed:
        job = send_mail.push_sync("ada")
        jobs.sync.cancel(job.id, "mail")
        assert pushed.drain() == 0
        pushed.assert_job_state(job.id, "cancelled")


def test_the_fixtures(
    waybill_fake: Callable[[Jobs], RecordedJobs], waybill_inline: Callable[[Jobs], RecordedJobs]
) -> None:
    pushed = waybill_fake(jobs)
    send_mail.push_sync("ada")
    pushed.assert_enqueued("mail.send")
    done = waybill_inline(jobs)
    asyncio.run(send_mail.push("ada"))
    done.assert_completed("mail.send")
