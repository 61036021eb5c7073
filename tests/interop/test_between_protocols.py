"""Publish on one protocol, consume on the other: pika and python-qpid-proton on the same queues."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not built: apt install gcc python3-dev, then make setup")

from proton import Delivery, Message, char, decimal32, symbol, timestamp, ubyte, uint, ulong
from proton.reactor import AtLeastOnce, Copy
from proton.utils import BlockingConnection

from tests.broker.process import BrokerProcess
from tests.conformance.requirement import requirement

UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Both:
    """A queue, and a client of each protocol to it."""

    def __init__(self, port: int, queue: str) -> None:
        self.queue = queue
        self.old = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        self.channel = self.old.channel()
        self.channel.confirm_delivery()
        self.new = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{port}", timeout=20)

    def publish_old(self, body: bytes, properties: pika.BasicProperties, exchange: str = "", key: str = "") -> None:
        self.channel.basic_publish(exchange, key or self.queue, body, properties)

    def publish_new(self, message: Message, address: str = "") -> None:
        sender = self.new.create_sender(address or f"/queues/{self.queue}")
        assert sender.send(message).remote_state == Delivery.ACCEPTED
        sender.close()

    def get_old(self) -> tuple[pika.BasicProperties, bytes]:
        method, properties, body = self.channel.basic_get(self.queue, auto_ack=True)
        assert method is not None, "no message"
        return properties, body

    def get_new(self) -> Message:
        receiver = self.new.create_receiver(f"/queues/{self.queue}", credit=1)
        message = receiver.receive(timeout=20)
        receiver.accept()
        receiver.close()
        return message

    def close(self) -> None:
        self.new.close()
        self.old.close()


@pytest.fixture
def both(broker: BrokerProcess) -> Iterator[Both]:
    both = Both(broker.port, f"between.{uuid.uuid4()}")
    both.channel.queue_declare(both.queue, durable=True)
    yield both
    both.close()


def test_what_091_says_is_heard_on_10(both: Both) -> None:
    headers: dict[str, Any] = {"text": "é", "n": 5, "yes": True, "x-mine": "annotation", "nested": {"a": [1]}}
    both.publish_old(
        b"body",
        pika.BasicProperties(
            content_type="text/plain",
            content_encoding="gzip",
            headers=headers,
            delivery_mode=2,
            priority=7,
            correlation_id="c-1",
            reply_to="answers/here",
            expiration="600000",
            message_id=f"urn:uuid:{UUID}",
            timestamp=1_700_000_000,
            type="greeting",
            user_id="guest",
            app_id="app",
        ),
    )
    message = both.get_new()
    assert message.inferred
    assert bytes(message.body) == b"body"
    assert (message.content_type, message.content_encoding) == ("text/plain", "gzip")
    assert message.properties == {"text": "é", "n": 5, "yes": True}
    assert message.durable
    assert message.priority == 7
    assert message.correlation_id == "c-1"
    assert message.reply_to == "/queues/answers%2Fhere"
    assert 0 < message.ttl <= 600
    assert message.id == UUID
    assert message.creation_time == 1_700_000_000
    assert message.user_id == b"guest"
    assert message.group_id == "app"
    assert message.annotations["x-mine"] == "annotation"
    assert message.annotations["x-basic-type"] == "greeting"
    assert message.annotations["x-opt-headers"] == {"nested": {"a": [1]}}


def test_what_10_says_is_heard_on_091(both: Both) -> None:
    message = Message(
        body=b"body",
        inferred=True,
        id=ulong(7),
        correlation_id=b"\x00\x01",
        user_id=b"guest",
        reply_to="/queues/answers%2Fhere",
        content_type="text/plain",
        creation_time=1_700_000_000,
        durable=True,
        priority=7,
        ttl=600,
        properties={"text": "é", "n": 5, "yes": True},
        annotations={symbol("x-opt-mine"): "kept"},
    )
    both.publish_new(message)
    properties, body = both.get_old()
    assert body == b"body"
    assert properties.message_id == "7"
    assert properties.correlation_id == "AAE="
    assert properties.reply_to == "answers/here"
    assert properties.content_type == "text/plain"
    assert properties.timestamp == 1_700_000_000
    assert properties.user_id == "guest"
    assert (properties.delivery_mode, properties.priority) == (2, 7)
    assert properties.expiration == "600000"
    assert properties.type is None
    assert properties.headers == {
        "text": "é",
        "n": 5,
        "yes": True,
        "x-opt-mine": "kept",
        "x-message-id-type": "ulong",
        "x-correlation-id-type": "binary",
    }


@pytest.mark.parametrize("body", ["text", {"a": [1, 2]}, [1, "two", None], ulong(5), UUID])
def test_a_body_that_is_no_data_goes_through_091_as_sections(both: Both, body: object) -> None:
    both.publish_new(Message(body=body, properties={"kept": ulong(5)}, subject="s"))
    properties, octets = both.get_old()
    assert properties.type == "amqp-1.0"
    both.publish_old(octets, properties)
    back = both.get_new()
    assert back.body == body
    assert back.subject == "s"
    assert type(back.properties["kept"]) is ulong


def test_all_types_come_back_from_091(both: Both) -> None:
    # What has a type in 0-9-1 too is not here: pika makes reals whole numbers, and all integers the same.
    values = {
        "ulong": ulong(1),
        "decimal": decimal32(5),
        "char": char("x"),
        "timestamp": timestamp(1_700_000_000_123),
        "uuid": UUID,
        "binary": b"\x00",
        "string": "s",
        "symbol": symbol("s"),
        "boolean": True,
        "null": None,
        "x-own": "application property, and no annotation",
    }
    sent = Message(body=b"", inferred=True, properties=values, subject="subject", address="to", group_sequence=3)
    sent.annotations = {symbol("x-opt-list"): [uint(1), {symbol("k"): ubyte(2)}]}
    sent.instructions = {symbol("x-opt-here"): 1}
    both.publish_new(sent)
    properties, body = both.get_old()
    both.publish_old(body, properties)
    back = both.get_new()
    assert back.properties == values
    # proton reads octets as a memoryview.
    del back.properties["binary"], values["binary"]
    assert {name: type(value) for name, value in back.properties.items()} == {
        name: type(value) for name, value in values.items()
    }
    assert (back.subject, back.address, back.group_sequence) == ("subject", "to", 3)
    # RabbitMQ's annotations tell besides where it was published.
    assert back.annotations.pop(symbol("x-routing-key")) == both.queue
    assert back.annotations.pop(symbol("x-exchange")) == ""
    assert back.annotations == sent.annotations
    assert not back.instructions


def test_dead_letters_tell_both_protocols_how_they_died(both: Both) -> None:
    dying = f"{both.queue}.dying"
    both.channel.queue_declare(
        dying, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": both.queue}
    )
    publishers: list[Callable[[], None]] = [
        lambda: both.publish_new(Message(body=b"new", inferred=True), f"/queues/{dying}"),
        lambda: both.publish_old(b"old", pika.BasicProperties(), key=dying),
    ]
    for publish in publishers:
        for get in (both.get_old, both.get_new):
            publish()
            receiver = both.new.create_receiver(f"/queues/{dying}", credit=1)
            receiver.receive(timeout=20)
            receiver.reject()
            receiver.close()
            got: Any = get()
            if isinstance(got, Message):
                (death,) = got.annotations["x-opt-deaths"]
                assert got.annotations["x-first-death-reason"] == "rejected"
            else:
                (death,) = got[0].headers["x-death"]
                assert got[0].headers["x-first-death-reason"] == "rejected"
            assert (death["queue"], death["reason"], death["count"]) == (dying, "rejected", 1)
            assert list(death["routing-keys"]) == [dying]


@requirement("M10-041")
def test_headers_exchanges_route_what_10_sends(both: Both) -> None:
    exchange = f"{both.queue}.headers"
    both.channel.exchange_declare(exchange, "headers")
    both.channel.queue_bind(both.queue, exchange, "", {"x-match": "all", "color": "red", "n": 5})
    sender = both.new.create_sender(f"/exchanges/{exchange}")
    assert (
        sender.send(Message(body="no", properties={"color": "blue", "n": 5}), error_states=[]).remote_state
        == Delivery.RELEASED
    )
    assert sender.send(Message(body="yes", properties={"color": "red", "n": uint(5)})).remote_state == Delivery.ACCEPTED
    assert both.get_new().body == "yes"


def test_a_subject_is_the_routing_key(both: Both) -> None:
    both.channel.queue_bind(both.queue, "amq.topic", "news.*")
    both.publish_new(Message(body=b"n", inferred=True, subject="news.eu"), "/exchanges/amq.topic")
    both.publish_new(Message(body=b"m", inferred=True), "/exchanges/amq.topic/news.us")
    assert [both.get_old()[1] for _ in range(2)] == [b"n", b"m"]


def test_a_browser_of_10_sees_what_091_then_takes(both: Both) -> None:
    both.publish_old(b"1", pika.BasicProperties())
    browser = both.new.create_receiver(f"/queues/{both.queue}", credit=1, options=[AtLeastOnce(), Copy()])
    assert bytes(browser.receive(timeout=20).body) == b"1"
    browser.accept()
    browser.close()
    assert both.get_old()[1] == b"1"


def test_conversion_works_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        both = Both(broker.port, "kept")
        both.channel.queue_declare("kept", durable=True)
        both.publish_new(Message(body={"a": 1}, durable=True, subject="s", properties={"n": uint(1)}))
        both.publish_old(b"old", pika.BasicProperties(delivery_mode=2, headers={"n": 1}, type="t"))
        both.close()
        broker.kill()
        broker.start()
        both = Both(broker.port, "kept")
        properties, body = both.get_old()
        assert properties.type == "amqp-1.0"
        message = both.get_new()
        assert bytes(message.body) == b"old"
        assert message.properties == {"n": 1}
        assert message.annotations["x-basic-type"] == "t"
        both.publish_old(body, properties)
        assert both.get_new().body == {"a": 1}
        both.close()
