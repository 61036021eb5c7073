"""What the binding's web page advises about connections, and the delayed exchange that it allows."""

import json
import time

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from tests.ojs.wire_tap import WireTap
from waybill.ojs import Jobs, Worker
from waybill.ojs.identifiers import new_id


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


@requirement("OJS-016", "OJS-087", "OJSW-022")
async def test_a_delayed_exchange_does_the_work_of_the_delay_queues(waybill_uri: str, queue_name: str) -> None:
    """Of our broker, which has one; RabbitMQ needs a plugin that is no longer maintained."""
    eye = Eye(waybill_uri)
    started: list[float] = []
    async with Jobs(waybill_uri) as jobs:

        @jobs.handler("advice.later", queue=queue_name)
        async def later() -> None:
            started.append(time.monotonic())

        async with Worker(jobs) as worker:
            delayed = "ojs.exchange.delayed"
            eye.channel.exchange_declare(
                delayed, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
            )
            eye.channel.queue_bind(f"ojs.queue.{queue_name}", delayed, queue_name)
            job_id = new_id()
            body = {"specversion": "1.0", "id": job_id, "type": "advice.later", "queue": queue_name, "args": []}
            published = time.monotonic()
            await eye.publish(
                delayed,
                queue_name,
                json.dumps(body).encode(),
                message_id=job_id,
                headers={"x-delay": 300, "x-ojs-attempt": 1},
            )
            await until(lambda: worker.counts["completed"] == 1)
    assert started[0] - published >= 0.3
    eye.close()
