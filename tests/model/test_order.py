"""What stands first in one read happens first: a message that was published belongs to a consumer who waits for it."""

from tests.engine.amqp091.peer import Bench, Channel
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicPublish,
)
from waybill.wire.amqp091.methods_queue import (
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from waybill.wire.amqp091.properties import BasicProperties


def message(body: bytes) -> bytes:
    return method_frame(1, BasicPublish("", "q")) + content_frames(1, BasicProperties(), body, 4096)


def method(method: Method) -> bytes:
    return method_frame(1, method)


def test_a_consumer_who_waits_comes_before_a_get(channel: Channel) -> None:
    channel.declare("q")
    channel.consume(no_ack=True)
    channel.peer.write(message(b"1") + method(BasicGet("q", no_ack=True)))
    assert isinstance(channel.answer().method, BasicGetEmpty)
    assert channel.bodies(1) == [b"1"]


def test_what_was_published_before_a_cancel_goes_to_the_consumer(channel: Channel) -> None:
    channel.declare("q")
    first = channel.consume(no_ack=True, arguments={"x-priority": 1})
    second = channel.consume(no_ack=True)
    channel.peer.write(message(b"1") + message(b"2") + method(BasicCancel(first)) + message(b"3"))
    assert isinstance(channel.answer().method, BasicCancelOk)
    assert [delivery.method.consumer_tag for delivery in channel.deliveries(3)] == [first, first, second]


def test_a_consumer_who_comes_later_comes_later(channel: Channel) -> None:
    channel.declare("q")
    first = channel.consume(no_ack=True)
    late = BasicConsume("q", "late", no_ack=True, arguments={"x-priority": 1})
    channel.peer.write(message(b"1") + method(late) + message(b"2"))
    assert isinstance(channel.answer().method, BasicConsumeOk)
    assert [delivery.method.consumer_tag for delivery in channel.deliveries(2)] == [first, "late"]


def test_what_a_consumer_has_got_is_not_counted_purged_or_deleted(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    bench.channel().consume(no_ack=True)
    channel.peer.write(message(b"1") + method(QueueDeclare("q", passive=True)))
    assert channel.expect(QueueDeclareOk).message_count == 0
    channel.peer.write(message(b"2") + method(QueuePurge("q")))
    assert channel.expect(QueuePurgeOk).message_count == 0
    channel.peer.write(message(b"3") + method(QueueDelete("q", if_empty=True)))
    assert channel.expect(QueueDeleteOk).message_count == 0
