"""Jobs for much later: where they wait, when they come, and how few queues all of them need."""

from datetime import timedelta

import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from tests.ojs.wire_tap import WireTap
from waybill.ojs import Jobs, Retry, Worker
from waybill.ojs.spec.retry import RETRY_BUCKETS_MS
from waybill.ojs.topology.delay_ladder import LEVELS
from waybill.testing import TestBroker

HOUR = timedelta(hours=1)
FORTY_DAYS = timedelta(days=40)


@requirement("OJS-084", "OJS-085", "OJS-086", "OJS-120")
@pytest.mark.parametrize(("delay", "level"), [(HOUR, 11), (FORTY_DAYS, 21)])
async def test_names_and_arguments_without_a_plugin(
    broker_uri: str, eye: Eye, queue_name: str, delay: timedelta, level: int
) -> None:
    """2**11 s are 34 minutes, 2**21 s are 24 days: the greatest part of the delay is waited for first."""
    async with WireTap(broker_uri) as tap, Jobs(tap.uri) as jobs:
        job = await jobs.push("far.do", queue=queue_name, delay=delay)
    (published,) = tap.published(job.id)
    name = f"ojs.delay.{level:02}"
    assert published.method.exchange == name
    assert published.properties.expiration is None
    assert not tap.by_client("Exchange.Declare", lambda one: one.method.type not in {"direct", "topic", "fanout"})
    below = f"ojs.delay.{level - 1:02}"
    arguments = {"x-dead-letter-exchange": below, "x-message-ttl": 1000 * 2**level}
    assert not await eye.refuses(name, arguments=arguments)
    assert await eye.refuses(name, arguments=arguments | {"x-message-ttl": 1000})
    assert await eye.count(name) >= 1
    release = {
        "x-dead-letter-exchange": "ojs.exchange.direct",
        "x-dead-letter-routing-key": queue_name,
        "x-message-ttl": 0,
    }
    assert not await eye.refuses(f"ojs.queue.delay.{queue_name}", arguments=release)
    assert await eye.count(f"ojs.queue.{queue_name}") == 0


@requirement("OJS-083")
@pytest.mark.parametrize("delay", [HOUR, FORTY_DAYS])
async def test_they_come_when_the_clock_of_the_broker_says_so(delay: timedelta) -> None:
    seconds = int(delay.total_seconds())
    with TestBroker() as broker:
        async with Jobs(broker.uri()) as jobs:
            await jobs.push("far.do", queue="far", delay=delay)
        passed = 0
        for level in reversed(range(LEVELS)):
            if not seconds >> level & 1:
                continue
            assert broker.message_count("ojs.queue.far") == 0
            assert broker.message_count(f"ojs.delay.{level:02}") == 1
            # Not a second too early on any level.
            broker.advance(2**level - 1)
            assert broker.message_count(f"ojs.delay.{level:02}") == 1
            broker.advance(1)
            passed += 2**level
        broker.advance(1)
        assert passed == seconds
        assert broker.message_count("ojs.queue.far") == 1


async def test_thousands_of_delays_need_a_handful_of_queues(broker_uri: str, queue_name: str) -> None:
    async with WireTap(broker_uri) as tap, Jobs(tap.uri) as jobs:

        @jobs.handler("far.fail", queue=queue_name)
        async def fail(number: int) -> None:
            raise RuntimeError(number)

        delays = [timedelta(seconds=30 + 977 * number) for number in range(2000)]
        for start in range(0, len(delays), 1000):
            await jobs.push_many(
                fail.options(delay=delay).job(number) for number, delay in enumerate(delays[start : start + 1000])
            )
        retries = [Retry(initial_interval=timedelta(milliseconds=100 + 317 * number)) for number in range(200)]
        await jobs.push_many(fail.options(retry=retry).job(number) for number, retry in enumerate(retries))
        async with Worker(jobs, concurrency=50, prefetch=200) as worker:
            await until(lambda: worker.counts["retried"] >= len(retries))
        waiting = [one for one in tap.by_client("Basic.Publish") if one.method.exchange.startswith("ojs.delay.")]
        assert len({one.method.routing_key for one in waiting}) == 2000
        names = {one.method.queue for one in tap.by_client("Queue.Declare")}
        assert len([name for name in names if ".delay." in name]) <= LEVELS + 1
        assert 1 < len([name for name in names if ".retry." in name]) <= len(RETRY_BUCKETS_MS)
