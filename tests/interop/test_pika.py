"""pika, as it is: the example programs of the OJS binding, bulk traffic, and all that the client has."""

import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.exchange_type import ExchangeType

from tests.broker.process import BrokerProcess
from tests.conformance.requirement import requirement

BULK = 100_000
WINDOW = 1000
DELAYS_MS = [1000, 2000, 4000, 8000, 16000, 32000, 60000]


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[pika.BlockingConnection]:
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(host="127.0.0.1", port=broker.port, virtual_host="/ojs")
    )
    yield connection
    if connection.is_open:
        connection.close()


# --- the programs of the binding ---


def publish_job(connection: pika.BlockingConnection, job_id: str) -> None:
    """The publisher: confirms, the queue and its exchanges, one mandatory publish."""
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare(exchange="ojs.exchange.direct", exchange_type="direct", durable=True)
    channel.exchange_declare(exchange="ojs.exchange.dlx", exchange_type="direct", durable=True)
    channel.queue_declare(
        queue="ojs.queue.email",
        durable=True,
        arguments={
            "x-dead-letter-exchange": "ojs.exchange.dlx",
            "x-dead-letter-routing-key": "email",
            "x-max-priority": 10,
        },
    )
    channel.queue_bind(queue="ojs.queue.email", exchange="ojs.exchange.direct", routing_key="email")
    now = datetime.now(UTC)
    job = {
        "id": job_id,
        "type": "email.send",
        "queue": "email",
        "args": ["a@example.com"],
        "created_at": now.isoformat(),
    }
    channel.basic_publish(
        exchange="ojs.exchange.direct",
        routing_key="email",
        body=json.dumps(job),
        mandatory=True,
        properties=pika.BasicProperties(
            message_id=job_id,
            type="email.send",
            content_type="application/openjobspec+json",
            content_encoding="utf-8",
            delivery_mode=2,
            app_id="ojs",
            timestamp=int(now.timestamp()),
            headers={"x-ojs-queue": "email", "x-ojs-attempt": 1, "x-ojs-max-attempts": 1},
        ),
    )


def declare_retries(connection: pika.BlockingConnection) -> None:
    """The retry topology: one delay queue for each delay."""
    channel = connection.channel()
    channel.exchange_declare(exchange="ojs.exchange.retry", exchange_type="direct", durable=True)
    for delay in DELAYS_MS:
        retry_queue = f"ojs.queue.retry.email.{delay}"
        channel.queue_declare(
            queue=retry_queue,
            durable=True,
            arguments={
                "x-dead-letter-exchange": "ojs.exchange.direct",
                "x-dead-letter-routing-key": "email",
                "x-message-ttl": delay,
            },
        )
        channel.queue_bind(queue=retry_queue, exchange="ojs.exchange.retry", routing_key=f"email.{delay}")


def retry_job(channel: Any, body: bytes, original: pika.BasicProperties, next_attempt: int, delay_ms: int) -> None:
    """The retry helper: the job again, with its properties, to the queue of its delay."""
    headers = {**(original.headers or {}), "x-ojs-attempt": next_attempt}
    channel.basic_publish(
        exchange="ojs.exchange.retry",
        routing_key=f"{headers['x-ojs-queue']}.{delay_ms}",
        body=body,
        mandatory=True,
        properties=pika.BasicProperties(
            message_id=original.message_id,
            type=original.type,
            content_type="application/openjobspec+json",
            content_encoding="utf-8",
            delivery_mode=2,
            app_id="ojs",
            timestamp=original.timestamp,
            headers=headers,
        ),
    )


def take_one(connection: pika.BlockingConnection, on_message: Any) -> Any:
    """The consumer, until its callback has run once."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)

    def handle(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        on_message(channel, method, properties, body)
        channel.stop_consuming()

    channel.basic_consume(queue="ojs.queue.email", on_message_callback=handle)
    channel.start_consuming()
    return channel


@requirement("OJS-125", "OJS-115", "OJS-004", "M010-045")
def test_the_publisher_s_program(connection: pika.BlockingConnection) -> None:
    job_id = str(uuid.uuid4())
    publish_job(connection, job_id)
    publish_job(connection, job_id)
    taken = []

    def acknowledge(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        taken.append((properties, json.loads(body)))
        channel.basic_ack(delivery_tag=method.delivery_tag)

    take_one(connection, acknowledge)
    channel = connection.channel()
    channel.queue_purge("ojs.queue.email")
    properties, job = taken[0]
    assert job["id"] == properties.message_id == job_id
    assert properties.headers == {"x-ojs-queue": "email", "x-ojs-attempt": 1, "x-ojs-max-attempts": 1}
    assert properties.content_type == "application/openjobspec+json"


@requirement("OJS-126", "OJS-113")
@requirement("091-redelivered.hinting")
def test_the_consumer_s_program_settles_twice_and_gets_406(connection: pika.BlockingConnection) -> None:
    publish_job(connection, str(uuid.uuid4()))

    def ack_then_nack(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        channel.basic_ack(delivery_tag=method.delivery_tag)
        channel.basic_nack(delivery_tag=method.delivery_tag, requeue=False)

    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        take_one(connection, ack_then_nack).queue_declare("ojs.queue.email", passive=True)
    assert closed.value.reply_code == 406
    assert connection.channel().queue_declare("ojs.queue.email", passive=True).method.message_count == 0


@requirement("OJS-009", "OJS-036")
def test_the_consumer_s_program_discards_to_the_dead_letter_queue(connection: pika.BlockingConnection) -> None:
    publish_job(connection, str(uuid.uuid4()))
    channel = connection.channel()
    channel.queue_declare("ojs.queue.dlx.email", durable=True)
    channel.queue_bind("ojs.queue.dlx.email", "ojs.exchange.dlx", "email")

    def discard(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        channel.basic_nack(delivery_tag=method.delivery_tag, requeue=False)

    take_one(connection, discard)
    for _, properties, _ in channel.consume("ojs.queue.dlx.email", auto_ack=True, inactivity_timeout=10):
        assert properties.headers["x-death"][0]["reason"] == "rejected"
        break


@requirement("OJS-127")
def test_the_retry_topology_s_program_runs_twice(connection: pika.BlockingConnection) -> None:
    declare_retries(connection)
    declare_retries(connection)


@requirement("OJS-128", "OJS-075", "OJS-117")
def test_the_retry_helper_brings_a_job_back(connection: pika.BlockingConnection) -> None:
    publish_job(connection, "the job")
    declare_retries(connection)

    def retry(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        retry_job(channel, body, properties, 2, 1000)
        channel.basic_ack(delivery_tag=method.delivery_tag)

    take_one(connection, retry)
    start = time.monotonic()
    channel = connection.channel()
    for method, properties, _ in channel.consume("ojs.queue.email", inactivity_timeout=10):
        assert method is not None
        assert 0.9 < time.monotonic() - start < 5
        assert properties.message_id == "the job"
        assert properties.headers["x-ojs-attempt"] == 2
        assert properties.expiration is None
        channel.basic_ack(method.delivery_tag)
        break


# --- in bulk ---


class Bulk:
    """Publishes with confirms, a window ahead, and consumes with a prefetch of 100, on one SelectConnection."""

    def __init__(self, uri: str) -> None:
        self.published = 0
        self.confirmed = 0
        self.received: list[int] = []
        self.connection = pika.SelectConnection(
            pika.URLParameters(uri),
            on_open_callback=self.on_open,
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )
        self.channel: Any = None

    def on_open(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self.on_publisher)

    def on_publisher(self, channel: Any) -> None:
        self.channel = channel
        channel.confirm_delivery(self.on_confirm, callback=lambda _: self.declare())

    def declare(self) -> None:
        self.channel.queue_declare("bulk", durable=True, callback=lambda _: self.publish())

    def publish(self) -> None:
        properties = pika.BasicProperties(delivery_mode=2)
        while self.published < BULK and self.published - self.confirmed < WINDOW:
            self.channel.basic_publish("", "bulk", b"%d" % self.published, properties)
            self.published += 1

    def on_confirm(self, frame: Any) -> None:
        assert frame.method.NAME == "Basic.Ack"
        tag = frame.method.delivery_tag
        self.confirmed = tag if frame.method.multiple else self.confirmed + 1
        if self.confirmed == BULK:
            self.connection.channel(on_open_callback=self.on_consumer)
        elif self.published - self.confirmed < WINDOW // 2:
            self.publish()

    def on_consumer(self, channel: Any) -> None:
        channel.basic_qos(prefetch_count=100, callback=lambda _: channel.basic_consume("bulk", self.on_message))

    def on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.received.append(int(body))
        if len(self.received) % 50 == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if len(self.received) == BULK:
            self.connection.close()


@requirement("M010-097")
@pytest.mark.timeout(240)
def test_a_hundred_thousand_messages_there_and_back(broker: BrokerProcess) -> None:
    bulk = Bulk(broker.uri())
    bulk.connection.ioloop.start()
    bulk.connection.ioloop.close()
    assert bulk.confirmed == BULK
    assert bulk.received == list(range(BULK))


# --- the rest of the client ---


def test_returns_are_raised(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError) as unroutable:
        channel.basic_publish("", "nowhere", b"back", mandatory=True)
    assert unroutable.value.messages[0].method.reply_code == 312
    assert unroutable.value.messages[0].body == b"back"


def test_a_full_queue_nacks(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.queue_declare("full", exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    channel.basic_publish("", "full", b"1")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "full", b"2")


def test_exchanges_bindings_and_polling(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.exchange_declare("pika.source", ExchangeType.topic, auto_delete=True)
    channel.exchange_declare("pika.target", ExchangeType.fanout, internal=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.exchange_bind("pika.target", "pika.source", "a.#")
    channel.queue_bind(queue, "pika.target")
    channel.basic_publish(
        "pika.source", "a.b.c", b"1", pika.BasicProperties(headers={"n": [1, {"x": None}], "t": True})
    )
    method, properties, body = channel.basic_get(queue)
    assert (body, properties.headers) == (b"1", {"n": [1, {"x": None}], "t": True})
    assert (method.exchange, method.routing_key, method.message_count) == ("pika.source", "a.b.c", 0)
    channel.basic_reject(method.delivery_tag, requeue=True)
    method, _, _ = channel.basic_get(queue)
    assert method.redelivered
    channel.basic_nack(method.delivery_tag, requeue=False)
    assert channel.basic_get(queue) == (None, None, None)
    channel.queue_unbind(queue, "pika.target")
    channel.exchange_unbind("pika.target", "pika.source", "a.#")
    channel.exchange_delete("pika.target")
    assert channel.queue_purge(queue).method.message_count == 0
    channel.queue_delete(queue)


def test_transactions_recover_and_cancel(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.queue_declare("pika.tx", exclusive=True)
    channel.tx_select()
    channel.basic_publish("", "pika.tx", b"1")
    channel.tx_rollback()
    channel.basic_publish("", "pika.tx", b"2")
    channel.tx_commit()
    other = connection.channel()
    taken = []
    tag = other.basic_consume("pika.tx", lambda *message: taken.append(message))
    while not taken:
        connection.process_data_events(time_limit=10)
    other.basic_recover(requeue=True)
    while len(taken) < 2:
        connection.process_data_events(time_limit=10)
    assert [message[3] for message in taken] == [b"2", b"2"]
    assert taken[1][1].redelivered
    assert other.basic_cancel(tag) == []


@requirement("OJS-098", "OJS-121")
def test_the_broker_cancels_consumers_of_a_deleted_queue(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.queue_declare("pika.gone")
    cancelled = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume("pika.gone", lambda *_: None)
    connection.channel().queue_delete("pika.gone")
    while not cancelled:
        connection.process_data_events(time_limit=10)
    assert cancelled == [tag]


@requirement("OJS-089", "OJS-091", "OJS-094")
def test_channel_errors_leave_the_connection(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_declare("pika.absent", passive=True)
    assert closed.value.reply_code == 404
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        channel.basic_publish("nope", "x", b"")
    assert connection.channel().is_open


def test_a_bad_login_is_told(broker: BrokerProcess) -> None:
    parameters = pika.ConnectionParameters(
        "127.0.0.1", broker.port, credentials=pika.PlainCredentials("guest", "wrong"), connection_attempts=1
    )
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="403"):
        pika.BlockingConnection(parameters)


@requirement("OJS-004")
def test_an_unknown_virtual_host_is_told(broker: BrokerProcess) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="530"):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, "/nowhere"))


@requirement("OJS-101")
def test_heartbeats_keep_an_idle_connection(broker: BrokerProcess) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, heartbeat=1))
    connection.process_data_events(time_limit=4)
    connection.channel().queue_declare("", exclusive=True)
    connection.close()
