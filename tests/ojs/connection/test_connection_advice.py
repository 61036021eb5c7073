"""What the binding's web page advises about connections, and the delayed exchange that it allows."""

import asyncio
import time
from datetime import timedelta

import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from tests.ojs.wire_tap import WireTap
from waybill.ojs import Jobs, Retry, Topology, TopologyConflict, Worker, current_job


@requirement("OJSW-023", "OJSW-026")
async def test_a_worker_is_one_connection_of_many_channels_with_heartbeats(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri) as producer, WireTap(broker_uri) as tap:
        jobs = Jobs(tap.uri)

        @jobs.handler("advice.do", queue=queue_name)
        async def do() -> None: ...

        async with Worker(jobs) as worker:
            await producer.push("advice.do", queue=queue_name)
            await until(lambda: worker.counts["completed"] == 1)
    assert {one.connection for one in tap.said} == {1}
    opened = [one.channel for one in tap.by_client("Channel.Open")]
    assert len(opened) == len(set(opened)) >= 4
    assert {one.channel for one in tap.by_client("Basic.Publish")} < set(opened)
    (tuned,) = tap.by_client("Connection.TuneOk")
    assert tuned.method.heartbeat == 60


@requirement("OJSW-023")
async def test_a_client_pushes_everything_over_one_connection(broker_uri: str, queue_name: str) -> None:
    async with WireTap(broker_uri) as tap:
        async with Jobs(tap.uri) as jobs:
            for number in range(3):
                await jobs.push("advice.do", [number], queue=queue_name)
        assert {one.connection for one in tap.said} == {1}
        assert len(tap.by_client("Basic.Publish", lambda one: one.method.routing_key == queue_name)) == 3


@requirement("OJS-095")
async def test_no_channel_is_opened_for_a_push_or_a_job(broker_uri: str, queue_name: str) -> None:
    async with WireTap(broker_uri) as tap, Jobs(tap.uri) as jobs:

        @jobs.handler("advice.do", queue=queue_name)
        async def do() -> None: ...

        async with Worker(jobs) as worker:
            await (await do.push()).result(timeout=30)
            before = len(tap.by_client("Channel.Open"))
            await asyncio.gather(*(do.push() for _ in range(200)))
            await until(lambda: worker.counts["completed"] == 201)
            assert len(tap.by_client("Channel.Open")) == before


@requirement("OJS-016", "OJS-087", "OJSW-022")
async def test_a_delayed_exchange_does_the_work_of_the_ladder(waybill_uri: str, queue_name: str) -> None:
    """On our broker, which has one; RabbitMQ needs a plugin that is no longer maintained."""
    started: list[tuple[float, int]] = []
    topology = Topology(schedule_by="exchange")
    async with WireTap(waybill_uri) as tap, Jobs(tap.uri, topology=topology) as jobs:

        @jobs.handler("advice.later", queue=queue_name, retry=Retry(max_attempts=2, jitter=False))
        async def later() -> None:
            started.append((time.monotonic(), current_job().attempt))
            if current_job().attempt == 1:
                raise ValueError

        async with Worker(jobs) as worker:
            pushed_at = time.monotonic()
            job = await later.options(delay=timedelta(milliseconds=1300)).push()
            await until(lambda: worker.counts["completed"] == 1)
        eye = Eye(waybill_uri)
        eye.channel.exchange_declare("ojs.exchange.delayed", passive=True)
        eye.close()
    first, again = tap.published(job.id)
    assert (first.method.exchange, first.method.routing_key) == ("ojs.exchange.delayed", queue_name)
    assert 1000 < first.headers["x-delay"] <= 1300
    assert (again.method.exchange, "x-delay" in again.headers) == ("ojs.exchange.retry", False)
    (at, attempt), (_, second) = started
    assert at - pushed_at >= 1.3
    assert (attempt, second) == (1, 2)
    assert not tap.by_client("Exchange.Declare", lambda one: one.method.exchange.startswith("ojs.delay."))


async def test_a_broker_without_delayed_exchanges_is_said_to_have_none(
    request: pytest.FixtureRequest, queue_name: str
) -> None:
    broker = request.getfixturevalue("rabbitmq")
    async with Jobs(broker.uri("/ojs"), topology=Topology(schedule_by="exchange"), push_timeout=20) as jobs:
        with pytest.raises(TopologyConflict, match="ladder"):
            await jobs.push("advice.later", queue=queue_name, delay=timedelta(seconds=1))
        assert (await jobs.push("advice.now", queue=queue_name)).envelope.state == "available"
