"""One budget over queues: weights, lending, and no job that waits behind another one's back."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from tests.ojs.proxy import Proxy
from tests.ojs.wire_tap import WireTap
from waybill.client import Consumer, Inspector, ReconnectPolicy, connect
from waybill.ojs import Jobs, Retry, Topology, Worker, current_job
from waybill.ojs.observe.metrics import WorkerMetrics


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri, create_queues=True) as jobs:
        yield jobs


@pytest.mark.plain_source
async def test_a_limit_may_change_while_a_queue_is_left(
    jobs: Jobs, queue_names: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Worker(jobs, queues=[queue := queue_names()], concurrency=2) as worker:
        consumers = worker._consumers
        assert consumers is not None
        may_go_on, cancel = asyncio.Event(), Consumer.cancel

        async def cancel_slowly(consumer: Consumer) -> None:
            await may_go_on.wait()
            await cancel(consumer)

        monkeypatch.setattr(Consumer, "cancel", cancel_slowly)
        changing = asyncio.ensure_future(consumers._set_limits({queue: 1}))
        leaving = asyncio.ensure_future(consumers.consume([]))
        await asyncio.sleep(0.1)
        may_go_on.set()
        await asyncio.gather(changing, leaving)
        assert consumers.queues == []
        await consumers.consume([queue])
        assert consumers.queues == [queue]


async def test_weights_hold_under_load_and_idle_places_are_lent(jobs: Jobs, queue_names: Callable[[], str]) -> None:
    heavy, light = queue_names(), queue_names()
    turnstile = asyncio.Semaphore(0)

    @jobs.handler("intake.slow")
    async def slow() -> None:
        await turnstile.acquire()

    async def push(queue: str, count: int) -> None:
        await jobs.push_many([slow.options(queue=queue).job() for _ in range(count)])

    async def end_one_of_many() -> None:
        turnstile.release()
        await push(heavy, 1)
        await push(light, 1)
        await asyncio.sleep(0.05)

    async with Worker(jobs, queues={heavy: 3, light: 1}, concurrency=8) as worker:
        await push(heavy, 30)
        await push(light, 30)
        while worker.running_by_queue() != Counter({heavy: 6, light: 2}):
            # What light has had at first is taken back as its jobs end; each that ends makes way for another.
            await end_one_of_many()
        while worker.running_by_queue()[heavy]:
            turnstile.release()
            await asyncio.sleep(0.02)
        await push(light, 10)
        await until(lambda: worker.running_by_queue() == Counter({light: 7}))
        assert worker.held_count == 7, "a place is kept to notice that the other queue has jobs again"
        await push(heavy, 10)
        await until(lambda: worker.running_by_queue()[heavy] == 1)
        while worker.running_by_queue()[heavy] < 6:
            assert worker.held_count <= 8
            await end_one_of_many()
        turnstile._value = 1000
        turnstile.release()
        await until(lambda: worker.running_count == 0)


async def test_quorum_queues_are_divided_by_weight(broker_uri: str, queue_names: Callable[[], str]) -> None:
    heavy, light = queue_names(), queue_names()
    release = asyncio.Event()
    async with Jobs(broker_uri, topology=Topology(queue_type="quorum", prefix="quorum."), create_queues=True) as jobs:

        @jobs.handler("intake.slow")
        async def slow() -> None:
            await release.wait()

        for queue in (heavy, light):
            await jobs.push_many([slow.options(queue=queue).job() for _ in range(6)])
        async with Worker(jobs, queues={heavy: 3, light: 1}, concurrency=4) as worker:
            await until(lambda: worker.running_by_queue() == Counter({heavy: 3, light: 1}))
            release.set()
            await until(lambda: worker.counts["completed"] == 12)


async def test_more_queues_than_places_share_them(jobs: Jobs, eye: Eye, queue_names: Callable[[], str]) -> None:
    queues = [queue_names() for _ in range(4)]
    release = asyncio.Event()

    @jobs.handler("intake.slow")
    async def slow() -> None:
        await release.wait()

    for queue in queues:
        await jobs.push_many([slow.options(queue=queue).job() for _ in range(2)])
    async with Worker(jobs, queues=queues, concurrency=2) as worker:
        await until(lambda: worker.running_count == 2)
        assert sum([await eye.count(f"ojs.queue.{queue}") for queue in queues]) == 6
        release.set()
        await until(lambda: worker.counts["completed"] == 8)


async def test_short_jobs_do_not_wait_behind_a_long_one_while_another_worker_is_free(
    jobs: Jobs, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.worker.consumers.HOLD_SECONDS", 0.2)
    entered, release = asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    @jobs.handler("intake.long", queue=queue_name)
    async def long() -> None:
        entered.set()
        await release.wait()

    @jobs.handler("intake.short", queue=queue_name)
    async def short() -> None:
        attempts.append(current_job().attempt)

    async with Worker(jobs, concurrency=1, prefetch=10) as busy:
        await long.push()
        await entered.wait()
        await jobs.push_many([short.job() for _ in range(5)])
        async with Worker(jobs, concurrency=1) as free:
            await until(lambda: free.counts["completed"] == 5)
            assert busy.held_count == 1
        release.set()
    assert attempts == [1] * 5


async def test_a_worker_whose_threads_are_stuck_leaves_the_jobs_to_others(
    jobs: Jobs, eye: Eye, queue_name: str
) -> None:
    release = threading.Event()

    @jobs.handler("intake.stuck", queue=queue_name, timeout=0.2, retry=Retry(max_attempts=1))
    def stuck() -> None:
        release.wait(60)

    @jobs.handler("intake.quick", queue=queue_name)
    async def quick() -> None: ...

    async with Worker(jobs, concurrency=1) as worker:
        await stuck.push()
        await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
        await until(lambda: not worker.is_consuming)
        await quick.push()
        async with Worker(jobs, concurrency=1) as other:
            await until(lambda: other.counts["completed"] == 1)
        release.set()
        await until(lambda: worker.is_consuming)
        await quick.push()
        await until(lambda: worker.counts["completed"] == 1)


@requirement("OJS-069", "OJS-123")
async def test_the_more_urgent_job_comes_first(jobs: Jobs, queue_name: str) -> None:
    order: list[int] = []

    @jobs.handler("intake.urgent", queue=queue_name)
    async def urgent(priority: int) -> None:
        order.append(priority)

    priorities = [0, -100, 10, 100, -5, 5]
    await jobs.push_many([urgent.options(priority=priority).job(priority) for priority in priorities])
    async with Worker(jobs, concurrency=1):
        await until(lambda: len(order) == len(priorities))
    assert order == sorted(priorities, reverse=True)


async def test_the_broker_is_asked_to_wait_as_long_as_the_longest_handler_may_take(
    broker_uri: str, queue_name: str
) -> None:
    async with Proxy(broker_uri) as proxy:
        proxy.requests = bytearray()
        jobs = Jobs(proxy.uri)
        jobs.handler("intake.hours", queue=queue_name, timeout=7200)(print)
        async with Worker(jobs):
            pass
    _, _, value = bytes(proxy.requests).partition(b"\x12x-consumer-timeout")
    assert value[:5] == b"I" + (7500 * 1000).to_bytes(4)


@requirement("OJS-099", "OJS-121")
async def test_a_worker_is_not_consuming_while_its_queue_is_away(
    jobs: Jobs, eye: Eye, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.handler("intake.gone", queue=queue_name)
    async def gone() -> None: ...

    async with Worker(jobs) as worker:
        assert worker.is_consuming
        await eye.call(lambda: eye.channel.queue_delete(f"ojs.queue.{queue_name}"))
        await until(lambda: not worker.is_consuming)
        assert any(
            message.startswith("the broker cancelled the consumer ")
            and message.endswith(f" of queue ojs.queue.{queue_name}")
            for message in caplog.messages
        )
        await until(lambda: worker.is_consuming)
        await gone.push()
        await until(lambda: worker.counts["completed"] == 1)
        registry = CollectorRegistry()
        registry.register(WorkerMetrics(worker))
        assert b"ojs_amqp_consumer_cancellations_total 1.0" in generate_latest(registry)


async def test_a_worker_that_was_woken_while_its_connection_was_away_consumes_again(
    broker_uri: str, jobs: Jobs, queue_names: Callable[[], str]
) -> None:
    queues = [queue_names(), queue_names()]
    done: list[str] = []
    async with Proxy(broker_uri) as proxy:
        away = Jobs(proxy.uri, reconnect=ReconnectPolicy(first_delay_s=0.05), create_queues=True)
        away.handler("intake.woken")(done.append)
        async with Worker(away, queues=queues) as worker:
            worker.quiet()
            await until(lambda: not worker.consumed_queues)
            proxy.refusing = True
            proxy.cut()
            await until(lambda: worker.connection is not None and not worker.connection.is_open)
            worker.resume()
            assert not worker.is_consuming
            proxy.refusing = False
            await until(lambda: worker.is_consuming)
            assert worker.consumed_queues == queues
            for queue in queues:
                await jobs.push("intake.woken", [queue], queue=queue)
            await until(lambda: sorted(done) == sorted(queues))


async def test_a_worker_does_not_say_that_it_consumes_before_it_consumes_all_its_queues(
    jobs: Jobs, queue_names: Callable[[], str]
) -> None:
    queues = [queue_names(), queue_names()]
    async with Worker(jobs, queues=queues) as worker:
        worker.quiet()
        await until(lambda: not worker.consumed_queues)
        worker.resume()
        while worker.consumed_queues != queues:
            assert not worker.is_consuming
            await asyncio.sleep(0)
        assert worker.is_consuming


async def test_acknowledgements_of_quick_jobs_share_frames(broker_uri: str, jobs: Jobs, queue_name: str) -> None:
    async def quick() -> None: ...

    async with WireTap(broker_uri) as tap:
        working = Jobs(tap.uri)
        pushed = jobs.handler("intake.quick", queue=queue_name)(quick)
        working.handler("intake.quick", queue=queue_name)(quick)
        await jobs.push_many(pushed.job() for _ in range(300))
        async with Worker(working, concurrency=100) as worker:
            await until(lambda: worker.counters.acked[queue_name] == 300)
        channels = {
            one.channel for one in tap.by_broker("Basic.Deliver", lambda one: one.method.routing_key == queue_name)
        }
        acks = tap.by_client("Basic.Ack", lambda one: one.channel in channels)
    assert 0 < len(acks) < 100
    assert any(one.method.multiple for one in acks)
    async with connect(broker_uri) as connection:
        found = await Inspector(connection).queue(f"ojs.queue.{queue_name}")
    assert found is not None
    assert found.message_count == 0
