"""Paused queues, on both brokers: workers leave them, also those that start later, and pushes go on."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.ojs.eye import Eye, until
from tests.ojs.proxy import Proxy
from waybill.client import ReconnectPolicy
from waybill.ojs import Jobs, Worker
from waybill.ojs.spec.events import decode_events


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


async def test_a_paused_queue_is_left_alone_until_it_is_resumed(
    jobs: Jobs, eye: Eye, queue_names: Callable[[], str]
) -> None:
    paused, other = queue_names(), queue_names()
    done: list[str] = []
    jobs.handler("pause.one", queue=paused)(done.append)
    jobs.handler("pause.other", queue=other)(done.append)
    async with Worker(jobs) as worker:
        events = await eye.tap("ojs.exchange.events", "queue.#")
        assert await jobs.pause(paused, by="the test")
        assert not await jobs.pause(paused)
        await until(lambda: worker.paused_queues == {paused} and worker.consumed_queues == [other])
        await jobs.push("pause.one", ["later"])
        await jobs.push("pause.other", ["now"])
        await until(lambda: done == ["now"])
        assert await eye.count(f"ojs.queue.{paused}") == 1
        assert await jobs.resume(paused)
        assert not await jobs.resume(paused)
        await until(lambda: done == ["now", "later"])
    told = [event for event in decode_events((await eye.wait_for(events)).body) if event.subject == paused]
    assert told[0].type == "queue.paused"
    assert told[0].data == {"queue": paused, "paused_by": "the test"}


async def test_a_pause_outlives_the_worker(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    done: list[str] = []
    jobs.handler("pause.one", queue=queue_name)(done.append)
    await jobs.pause(queue_name)
    await jobs.push("pause.one", ["x"])
    async with Worker(jobs) as worker:
        assert worker.paused_queues == {queue_name}
        assert not worker.is_consuming
    assert await eye.count(f"ojs.queue.{queue_name}") == 1
    async with Worker(jobs):
        await jobs.resume(queue_name)
        await until(lambda: done == ["x"])
    assert not await eye.exists(f"ojs.pause.{queue_name}")


async def test_a_pause_is_heard_of_after_a_lost_connection(broker_uri: str, jobs: Jobs, queue_name: str) -> None:
    async with Proxy(broker_uri) as proxy:
        away = Jobs(proxy.uri, reconnect=ReconnectPolicy(first_delay_s=0.05))
        done: list[str] = []
        away.handler("pause.one", queue=queue_name)(done.append)
        async with Worker(away) as worker:
            proxy.refusing = True
            proxy.cut()
            await until(lambda: worker.connection is not None and not worker.connection.is_open)
            await jobs.pause(queue_name)
            proxy.refusing = False
            await until(lambda: worker.paused_queues == {queue_name} and not worker.consumed_queues)


async def test_jobs_that_wait_in_a_paused_worker_go_back_without_an_attempt(
    jobs: Jobs, eye: Eye, queue_name: str
) -> None:
    running, release = asyncio.Event(), asyncio.Event()

    @jobs.handler("pause.slow", queue=queue_name)
    async def slow() -> None:
        running.set()
        await release.wait()

    async with Worker(jobs, concurrency=1, prefetch=5) as worker:
        await jobs.push_many([slow.job() for _ in range(5)])
        await running.wait()
        await until(lambda: worker.held_count == 5)
        await jobs.pause(queue_name)
        await until(lambda: worker.held_count == 1)
        release.set()
        await until(lambda: worker.counts["completed"] == 1)
    waiting = [await eye.wait_for(f"ojs.queue.{queue_name}") for _ in range(4)]
    assert {message.headers["x-ojs-attempt"] for message in waiting} == {1}
    assert worker.counts["completed"] == 1
    await jobs.resume(queue_name)


async def test_a_worker_that_nobody_can_tell_asks_with_its_heartbeat(
    jobs: Jobs, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a broker without streams: the relay is not there to be heard."""
    monkeypatch.setattr("waybill.ojs.worker.worker.HEARTBEAT_SECONDS", 0.1)
    jobs.handler("pause.one", queue=queue_name)(lambda: None)
    async with Worker(jobs) as worker:
        assert worker._runner is not None
        worker._runner.cancellations._caught_up.clear()
        worker._runner.cancellations.on_pause = None
        await jobs.pause(queue_name)
        await until(lambda: worker.paused_queues == {queue_name} and not worker.is_consuming)
        await jobs.resume(queue_name)
        await until(lambda: worker.is_consuming)
