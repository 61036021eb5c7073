"""Programs of pika whose authors know the binding and nothing of us: they push to our workers, and do our jobs.

They follow section 15 of the binding: a publisher, a consumer, a retry topology and a way to retry.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pika
import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from waybill.ojs import Jobs, Retry, Worker
from waybill.ojs.spec.identifiers import new_id

DIRECT, DEAD, RETRY = "ojs.exchange.direct", "ojs.exchange.dlx", "ojs.exchange.retry"
CONTENT_TYPE = "application/openjobspec+json"
DELAYS_MS = (1000, 2000, 4000, 8000, 16000, 32000, 60000)


@pytest.fixture
def connection(broker_uri: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker_uri))
    yield connection
    if connection.is_open:
        connection.close()


def declare(channel: Any, queue: str) -> None:
    for exchange in (DIRECT, DEAD):
        channel.exchange_declare(exchange, exchange_type="direct", durable=True)
    arguments = {"x-dead-letter-exchange": DEAD, "x-dead-letter-routing-key": queue, "x-max-priority": 10}
    channel.queue_declare(f"ojs.queue.{queue}", durable=True, arguments=arguments)
    channel.queue_bind(f"ojs.queue.{queue}", DIRECT, routing_key=queue)


def declare_retries(channel: Any, queue: str) -> None:
    channel.exchange_declare(RETRY, exchange_type="direct", durable=True)
    for delay in DELAYS_MS:
        name = f"ojs.queue.retry.{queue}.{delay}"
        back = {"x-dead-letter-exchange": DIRECT, "x-dead-letter-routing-key": queue, "x-message-ttl": delay}
        channel.queue_declare(name, durable=True, arguments=back)
        channel.queue_bind(name, RETRY, routing_key=f"{queue}.{delay}")


def publish(channel: Any, queue: str, job_type: str, args: list[Any]) -> str:
    """A job as the binding's minimal publisher writes it: it leaves out what the binding does not ask for."""
    job_id, now = new_id(), datetime.now(UTC)
    job = {"id": job_id, "type": job_type, "queue": queue, "args": args, "created_at": now.isoformat()}
    properties = pika.BasicProperties(
        message_id=job_id,
        type=job_type,
        content_type=CONTENT_TYPE,
        content_encoding="utf-8",
        delivery_mode=2,
        app_id="ojs",
        timestamp=int(now.timestamp()),
        headers={"x-ojs-queue": queue, "x-ojs-attempt": 1, "x-ojs-max-attempts": 2},
    )
    channel.basic_publish(DIRECT, queue, json.dumps(job), properties, mandatory=True)
    return job_id


def publish_retry(channel: Any, properties: Any, body: bytes, attempt: int, delay: int) -> None:
    headers = {**properties.headers, "x-ojs-attempt": attempt}
    again = pika.BasicProperties(
        message_id=properties.message_id,
        type=properties.type,
        content_type=CONTENT_TYPE,
        content_encoding="utf-8",
        delivery_mode=2,
        app_id="ojs",
        timestamp=properties.timestamp,
        headers=headers,
    )
    channel.basic_publish(RETRY, f"{headers['x-ojs-queue']}.{delay}", body, again, mandatory=True)


def take(channel: Any, queue: str, count: int) -> list[tuple[Any, Any, bytes]]:
    """Consume so many messages, as the binding's consumer does, and leave them unacknowledged."""
    channel.basic_qos(prefetch_count=5)
    taken = []
    for method, properties, body in channel.consume(f"ojs.queue.{queue}", inactivity_timeout=20):
        assert method is not None, f"nothing comes to {queue}"
        taken.append((method, properties, body))
        if len(taken) == count:
            break
    return taken


@requirement("OJS-125")
async def test_a_publisher_pushes_to_our_worker(broker_uri: str, connection: Any, eye: Eye, queue_name: str) -> None:
    done: list[tuple[str, int]] = []

    def program() -> list[str]:
        channel = connection.channel()
        channel.confirm_delivery()
        declare(channel, queue_name)
        return [publish(channel, queue_name, job_type, ["a@example.com", 7]) for job_type in ("pika.do", "pika.fail")]

    first, second = await asyncio.to_thread(program)
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("pika.do", queue=queue_name)
        async def do(address: str, number: int) -> None:
            done.append((address, number))

        @jobs.handler("pika.fail", queue=queue_name)
        async def fail(address: str, number: int) -> None:
            raise RuntimeError(address)

        async with Worker(jobs) as worker:
            # Its x-ojs-max-attempts holds, as it has no policy of its own.
            await until(lambda: worker.counts["completed"] == 1 and worker.counts["discarded"] == 1)
            assert worker.counts["retried"] == 1
    assert done == [("a@example.com", 7)]
    dead = await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
    assert dead.properties.message_id == second != first
    assert dead.headers["x-ojs-attempt"] == 2


@requirement("OJS-126", "OJS-127", "OJS-128")
async def test_a_consumer_does_our_jobs_and_retries_them(
    broker_uri: str, connection: Any, eye: Eye, queue_name: str
) -> None:
    async with Jobs(broker_uri) as jobs:
        ids = [(await jobs.push("pika.job", [what], queue=queue_name)).id for what in ("pass", "again", "never")]

    def program() -> tuple[list[str], float, Any]:
        channel = connection.channel()
        channel.confirm_delivery()
        declare(channel, queue_name)
        for _ in range(2):
            declare_retries(channel, queue_name)
        retried_at = 0.0
        order = []
        for method, properties, body in take(channel, queue_name, 3):
            what = json.loads(body)["args"][0]
            order.append(properties.message_id)
            assert properties.headers["x-ojs-attempt"] == 1
            if what == "never":
                channel.basic_nack(method.delivery_tag, requeue=False)
                continue
            if what == "again":
                publish_retry(channel, properties, body, 2, 1000)
                retried_at = time.monotonic()
            channel.basic_ack(method.delivery_tag)
        ((method, properties, _),) = take(channel, queue_name, 1)
        waited = time.monotonic() - retried_at
        channel.basic_ack(method.delivery_tag)
        return order, waited, properties

    order, waited, again = await asyncio.to_thread(program)
    assert order == ids
    assert waited >= 0.9
    assert again.message_id == ids[1]
    assert again.headers["x-ojs-attempt"] == 2
    assert again.expiration is None
    dead = await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
    assert dead.properties.message_id == ids[2]


@requirement("OJS-126")
async def test_to_acknowledge_and_then_refuse_a_job_closes_the_channel(
    broker_uri: str, connection: Any, queue_name: str
) -> None:
    """What the consumer of the binding's example does to a job without attempts left; ours never does it."""
    async with Jobs(broker_uri) as jobs:
        await jobs.push("pika.job", queue=queue_name)

    def program() -> int:
        channel = connection.channel()
        ((method, _, _),) = take(channel, queue_name, 1)
        channel.basic_ack(method.delivery_tag)
        channel.basic_nack(method.delivery_tag, requeue=False)
        try:
            channel.queue_declare(f"ojs.queue.{queue_name}", passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            code: int = error.reply_code
            return code
        return 0

    assert await asyncio.to_thread(program) == 406


@requirement("OJS-015", "OJS-076", "OJS-078")
async def test_our_worker_retries_over_queues_that_somebody_else_has_declared(
    broker_uri: str, connection: Any, queue_name: str
) -> None:
    def program() -> None:
        channel = connection.channel()
        declare(channel, queue_name)
        declare_retries(channel, queue_name)

    await asyncio.to_thread(program)
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("pika.retry", queue=queue_name, retry=Retry(max_attempts=2, jitter=False))
        async def retry() -> None:
            raise RuntimeError("no")

        async with Worker(jobs) as worker:
            await retry.push()
            await until(lambda: worker.counts["discarded"] == 1)
