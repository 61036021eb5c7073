"""Direct reply-to: a request's answer comes straight back on the channel that asked, through no declared queue."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicCancelOk, BasicConsume
from waybill.wire.amqp091.methods_queue import QueueDeclare
from waybill.wire.amqp091.properties import BasicProperties

REPLY_TO = "amq.rabbitmq.reply-to"


@pytest.fixture
def server(bench: Bench) -> Channel:
    channel = bench.channel()
    channel.declare("requests")
    return channel


def ask(channel: Channel, body: str, **more: str) -> None:
    channel.publish(body, "requests", properties=BasicProperties(reply_to=REPLY_TO, correlation_id=body, **more))  # type: ignore[arg-type]


def request_of(server: Channel) -> tuple[str, str]:
    """The next request: where to reply, and its correlation id."""
    properties = server.take("requests").properties
    assert properties.reply_to is not None
    assert properties.correlation_id is not None
    return properties.reply_to, properties.correlation_id


@requirement("M010-058")
def test_a_round_trip(server: Channel, channel: Channel) -> None:
    channel.consume(REPLY_TO, no_ack=True)
    for body in ("1", "2"):
        ask(channel, body)
        reply_to, correlation_id = request_of(server)
        assert reply_to.startswith(REPLY_TO + ".")
        server.publish(f"answer {body}", reply_to, properties=BasicProperties(correlation_id=correlation_id))
        answer = channel.delivery()
        assert (answer.body, answer.properties.correlation_id) == (f"answer {body}".encode(), body)
        assert (answer.method.exchange, answer.method.routing_key) == ("", reply_to)


def test_other_properties_stay_as_they_are(server: Channel, channel: Channel) -> None:
    channel.consume(REPLY_TO, no_ack=True)
    properties = BasicProperties(
        reply_to=REPLY_TO, content_type="text/plain", headers={"a": 1}, delivery_mode=1, priority=3, message_id="m"
    )
    channel.publish(b"x" * 300_000, "requests", properties=properties)
    taken = server.take("requests")
    assert taken.body == b"x" * 300_000
    assert (taken.properties.content_type, taken.properties.message_id) == ("text/plain", "m")
    assert (taken.properties.headers, taken.properties.priority) == ({"a": 1}, 3)


def test_many_askers_get_their_own_answers(bench: Bench, server: Channel) -> None:
    askers = [bench.channel() for _ in range(3)]
    for number, asker in enumerate(askers):
        asker.consume(REPLY_TO, no_ack=True)
        ask(asker, str(number))
    for _ in askers:
        reply_to, correlation_id = request_of(server)
        server.publish(correlation_id, reply_to)
    for number, asker in enumerate(askers):
        assert asker.bodies(1) == [str(number).encode()]


def test_an_answer_that_comes_too_late_is_returned(bench: Bench, server: Channel) -> None:
    asker = bench.channel()
    asker.consume(REPLY_TO, no_ack=True)
    ask(asker, "1")
    reply_to, _ = request_of(server)
    asker.peer.close()
    server.publish("late", reply_to, mandatory=True)
    assert server.expect_return().method.reply_code == 312


def test_the_server_can_ask_whether_somebody_waits(bench: Bench, server: Channel) -> None:
    asker = bench.channel()
    asker.consume(REPLY_TO, no_ack=True)
    ask(asker, "1")
    reply_to, _ = request_of(server)
    server.declare(reply_to, passive=True)
    asker.peer.close()
    server.refuses(QueueDeclare(reply_to, passive=True), 404)


def test_it_needs_a_consumer(server: Channel, channel: Channel) -> None:
    ask(channel, "1")
    channel.expect_refused(406)
    assert server.depth("requests") == 0


def test_its_consumer_cannot_acknowledge(channel: Channel) -> None:
    channel.refuses(BasicConsume(REPLY_TO), 406)


def test_a_channel_has_one(channel: Channel) -> None:
    channel.consume(REPLY_TO, "first", no_ack=True)
    channel.refuses(BasicConsume(REPLY_TO, "second", no_ack=True), 406)


def test_after_a_cancel_it_can_begin_anew(server: Channel, channel: Channel) -> None:
    tag = channel.consume(REPLY_TO, no_ack=True)
    channel.call(BasicCancel(tag), BasicCancelOk)
    channel.consume(REPLY_TO, no_ack=True)
    ask(channel, "1")
    server.publish("answer", request_of(server)[0])
    assert channel.bodies(1) == [b"answer"]
