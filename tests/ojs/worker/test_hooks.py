"""Hooks hear what becomes of jobs and workers, and hurt none of them."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from tests.ojs.eye import Eye, until
from waybill.ojs import FailJob, Jobs, Moment, Retry, Worker

TWICE = Retry(max_attempts=2, jitter=False)


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


async def test_each_kind_hears_what_it_is_for(jobs: Jobs, queue_name: str, eye: Eye) -> None:
    told: list[tuple[object, ...]] = []
    done = asyncio.Event()

    @jobs.handler("hooks.work", queue=queue_name, retry=TWICE)
    async def work(how: str) -> str:
        if how == "retry" and ("on_retry", "retry") not in [one[:2] for one in told]:
            raise ValueError("once")
        if how == "fail":
            raise FailJob("never")
        return how

    @jobs.hooks.on_start
    def start(moment: Moment) -> None:
        assert moment.job is not None
        told.append(("on_start", *moment.envelope.args, moment.attempt))

    @jobs.hooks.on_success
    async def success(moment: Moment) -> None:
        await asyncio.sleep(0)
        assert moment.duration_seconds >= 0
        told.append(("on_success", *moment.envelope.args, moment.attempt, moment.result))

    @jobs.hooks.on_failure
    def failure(moment: Moment) -> None:
        assert moment.error is not None
        told.append(("on_failure", *moment.envelope.args, moment.attempt, repr(moment.exception), moment.error.message))

    @jobs.hooks.on_retry
    def retry(moment: Moment) -> None:
        told.append(("on_retry", *moment.envelope.args, moment.attempt, moment.retry_in_seconds))

    @jobs.hooks.on_discard
    def discard(moment: Moment) -> None:
        assert moment.error is not None
        told.append(("on_discard", *moment.envelope.args, moment.attempt, moment.error.type))

    @jobs.hooks.on_worker_start
    async def worker_start(worker: Worker) -> None:
        await asyncio.sleep(0)
        told.append(("on_worker_start", worker.is_consuming))

    @jobs.hooks.on_worker_stop
    def worker_stop(worker: Worker) -> None:
        told.append(("on_worker_stop", worker.running_count))
        done.set()

    async with Worker(jobs, concurrency=1) as worker:
        for how in ("good", "fail", "retry"):
            await work.push(how)
        await until(lambda: worker.counts["completed"] == 2)
        await eye.call(lambda: eye.channel.basic_publish("ojs.exchange.direct", queue_name, b"no job"))
        await until(lambda: worker.counts["discarded"] == 2)
    assert done.is_set()
    assert told[0] == ("on_worker_start", False)
    assert told[-1] == ("on_worker_stop", 0)
    assert sorted(map(repr, told[1:-1])) == sorted(
        map(
            repr,
            [
                ("on_start", "good", 1),
                ("on_success", "good", 1, "good"),
                ("on_start", "fail", 1),
                ("on_failure", "fail", 1, "FailJob('never')", "never"),
                ("on_discard", "fail", 1, "FailJob"),
                ("on_start", "retry", 1),
                ("on_failure", "retry", 1, "ValueError('once')", "once"),
                ("on_retry", "retry", 1, 1.0),
                ("on_start", "retry", 2),
                ("on_success", "retry", 2, "retry"),
                ("on_discard", 0, "InvalidJob"),
            ],
        )
    )


async def test_a_hook_that_raises_is_logged_and_hurts_nothing(
    jobs: Jobs, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "waybill.ojs.hooks")
    hooks = jobs.hooks

    def broken(_: object) -> None:
        raise SystemExit("a hook ends the program")

    async def broken_later(_: object) -> None:
        await asyncio.sleep(0)
        raise LookupError("a hook fails")

    for kind in (hooks.on_start, hooks.on_success, hooks.on_failure, hooks.on_retry, hooks.on_discard):
        kind(broken)
        kind(broken_later)
    hooks.on_worker_start(broken_later)
    hooks.on_worker_stop(broken_later)

    @jobs.handler("hooks.broken", queue=queue_name, retry=Retry(max_attempts=1))
    async def work(fails: bool) -> None:
        if fails:
            raise ValueError("no")

    async with Worker(jobs, concurrency=1) as worker:
        await work.push(True)
        await work.push(False)
        await until(lambda: worker.counts["completed"] == worker.counts["discarded"] == 1)
    for name in ("on_start", "on_success", "on_failure", "on_discard", "on_worker_start", "on_worker_stop"):
        assert f"a hook of {name} failed" in caplog.text
