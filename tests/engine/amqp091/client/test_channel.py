"""A channel: requests, deliveries, acknowledgements, confirms, returns."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.client.peer import FRAME_MAX, Cut, Peer, RecordedChannel, Replies, delivery_frames, opened
from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.delivery import Delivery
from waybill.engine.amqp091.client.events import CloseReason
from waybill.engine.amqp091.client.settings import ConnectionSettings
from waybill.engine.amqp091.client.states import ChannelState
from waybill.wire.amqp091.frames import FRAME_BODY, content_frames, method_frame
from waybill.wire.amqp091.methods_basic import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicRecover,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
)
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk, ChannelFlow, ChannelFlowOk
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDeclareOk
from waybill.wire.amqp091.properties import BasicProperties

PROPERTIES = BasicProperties(content_type="text/plain", message_id="m")


def consuming(
    cut: Cut = Cut.WHOLE, *, no_ack: bool = False, coalesce: bool = False
) -> tuple[Peer, ClientChannel, list[Delivery], RecordedChannel]:
    peer = opened(cut)
    channel, events = peer.open_channel(coalesce=coalesce)
    deliveries: list[Delivery] = []
    channel.consume(BasicConsume("q", "c", no_ack=no_ack), deliveries.append, Replies())
    peer.send(1, BasicConsumeOk("c"))
    peer.methods()
    return peer, channel, deliveries, events


def test_requests_may_be_sent_before_the_open_is_answered() -> None:
    peer = opened()
    channel = peer.engine.open_channel(RecordedChannel())
    assert channel is not None
    replies = Replies()
    channel.open(replies)
    channel.request(QueueDeclare("q"), replies)
    assert [method.NAME for method in peer.methods()] == ["channel.open", "queue.declare"]


def test_answers_are_matched_in_order() -> None:
    peer = opened()
    channel, _ = peer.open_channel()
    first, second = Replies(), Replies()
    channel.request(QueueDeclare("a"), first)
    channel.request(QueueDeclare("b"), second)
    peer.send(1, QueueDeclareOk("a"), QueueDeclareOk("b"))
    assert (first.all, second.all) == ([QueueDeclareOk("a")], [QueueDeclareOk("b")])


def test_answers_of_different_kinds_may_come_in_another_order() -> None:
    """RabbitMQ's queues answer these two themselves, and are overtaken by its channels."""
    peer, channel, _, _ = consuming()
    first, second, third = Replies(), Replies(), Replies()
    channel.request(BasicCancel("c"), first)
    channel.request(QueueDeclare("q"), second)
    channel.request(BasicCancel("other"), third)
    peer.send(1, QueueDeclareOk("q"), BasicCancelOk("other"), BasicCancelOk("c"))
    assert (first.all, second.all, third.all) == ([BasicCancelOk("c")], [QueueDeclareOk("q")], [BasicCancelOk("other")])
    assert not peer.engine.closed


@requirement("OJS-089")
def test_a_channel_error_leaves_other_channels_alone() -> None:
    peer = opened()
    channel, events = peer.open_channel()
    other, other_events = peer.open_channel()
    replies = Replies()
    channel.request(QueueDeclare("q", passive=True), replies)
    peer.methods()
    peer.send(1, ChannelClose(404, "NOT_FOUND", 50, 10))
    assert peer.methods() == [ChannelCloseOk()]
    reason = CloseReason(404, "NOT_FOUND", 50, 10, 1)
    assert (replies.all, events.events, channel.state) == ([reason], [reason], ChannelState.CLOSED)
    assert (other_events.events, other.usable) == ([], True)


def test_closing_waits_for_the_answer_and_drops_what_comes_before() -> None:
    peer, channel, deliveries, events = consuming()
    replies = Replies()
    channel.close(replies)
    peer.feed(delivery_frames(1, b"late"))
    peer.send(1, ChannelCloseOk())
    assert (replies.all, deliveries, channel.state) == ([ChannelCloseOk()], [], ChannelState.CLOSED)
    assert isinstance(events.events[-1], CloseReason)


def test_both_sides_may_close_at_once() -> None:
    peer, channel, _, _ = consuming()
    replies = Replies()
    channel.close(replies)
    peer.methods()
    peer.send(1, ChannelClose(406, "PRECONDITION_FAILED"), ChannelCloseOk())
    assert peer.methods() == [ChannelCloseOk()]
    assert replies.all == [ChannelCloseOk()]


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("size", [0, 1, FRAME_MAX - 8, FRAME_MAX - 7, 20_000])
def test_deliveries_arrive_whole_in_any_cut(cut: Cut, size: int) -> None:
    peer, _, deliveries, _ = consuming(cut)
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    peer.feed(
        delivery_frames(1, body, properties=PROPERTIES)
        + delivery_frames(2, b"two", redelivered=True)
        + delivery_frames(3, body)
    )
    assert [d.delivery_tag for d in deliveries] == [1, 2, 3]
    assert [d.body for d in deliveries] == [body, b"two", body]
    first, second, _ = deliveries
    assert (first.exchange, first.routing_key, first.consumer_tag, first.redelivered) == ("ex", "key", "c", False)
    assert first.properties == PROPERTIES
    assert second.redelivered


def test_other_channels_may_speak_in_the_middle_of_content() -> None:
    peer, _, deliveries, _ = consuming()
    other, _ = peer.open_channel()
    replies = Replies()
    other.request(QueueDeclare("q"), replies)
    frames = delivery_frames(1, b"a" * 10_000)
    header_end = frames.index(bytes([FRAME_BODY, 0, 1]))
    peer.feed(frames[:header_end] + method_frame(2, QueueDeclareOk("q")) + frames[header_end:])
    assert (len(replies.all), len(deliveries)) == (1, 1)


def test_a_delivery_for_a_consumer_that_is_gone_goes_back() -> None:
    peer, channel, deliveries, _ = consuming()
    channel.request(BasicCancel("c"), Replies())
    peer.send(1, BasicCancelOk("c"))
    peer.methods()
    peer.feed(delivery_frames(1, b"late"))
    assert deliveries == []
    assert peer.methods() == [BasicNack(1, multiple=False, requeue=True)]


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("size", [3000, FRAME_MAX])
def test_a_body_that_is_too_large_ends_the_connection(cut: Cut, size: int) -> None:
    """As soon as it is announced, whether it is delivered within one frame or several."""
    peer = Peer(cut, ConnectionSettings(message_size_max=2999))
    peer.handshake()
    channel, events = peer.open_channel()
    deliveries: list[Delivery] = []
    channel.consume(BasicConsume("q", "c"), deliveries.append, lambda _: None)
    peer.send(1, BasicConsumeOk("c"))
    peer.feed(delivery_frames(1, bytes(2999)) + delivery_frames(2, bytes(size)))
    assert [len(one.body) for one in deliveries] == [2999]
    (reason,) = events.events
    assert isinstance(reason, CloseReason)
    assert (reason.code, reason.text) == (311, f"a body of {size} octets, more than message_size_max=2999")


def test_a_callback_that_raises_harms_nobody_else() -> None:
    peer, channel, _, events = consuming()

    def fail(delivery: Delivery) -> None:
        raise ValueError(f"no {delivery.body.decode()}")

    channel.consume(BasicConsume("q", "bad"), fail, Replies())
    peer.send(1, BasicConsumeOk("bad"))
    peer.feed(delivery_frames(1, b"thanks", consumer_tag="bad") + delivery_frames(2, b"fine"))
    assert events.events == [("failed", 1, "no thanks")]
    assert not peer.engine.closed


def test_a_consumer_cancelled_by_the_server_is_reported() -> None:
    peer, _, _, events = consuming()
    peer.send(1, BasicCancel("c", no_wait=True))
    assert events.events == [("cancelled", "c")]


@requirement("OJS-033")
def test_each_delivery_is_acknowledged_alone() -> None:
    peer, _, deliveries, _ = consuming()
    peer.feed(b"".join(delivery_frames(tag, b"x") for tag in (1, 2, 3)))
    assert [delivery.ack() for delivery in deliveries] == [True] * 3
    assert peer.methods() == [BasicAck(1), BasicAck(2), BasicAck(3)]


def test_a_second_settlement_is_not_sent() -> None:
    peer, _, deliveries, _ = consuming()
    peer.feed(b"".join(delivery_frames(tag, b"x") for tag in (1, 2, 3, 4)))
    first, second, third, fourth = deliveries
    assert second.ack()
    assert not second.ack()
    assert not second.nack()
    assert third.ack(multiple=True)
    assert not first.reject()
    assert fourth.reject(requeue=False)
    assert peer.methods() == [BasicAck(2), BasicAck(3, multiple=True), BasicReject(4, requeue=False)]


def test_coalesced_acks_cover_exactly_what_was_acknowledged() -> None:
    peer, _, deliveries, _ = consuming(coalesce=True)
    peer.feed(b"".join(delivery_frames(tag, b"x") for tag in range(1, 10)))
    for index in (1, 0, 2, 6, 4):  # Tags 2, 1, 3, 7, 5: all up to 3, and two beyond a gap.
        deliveries[index].ack()
    assert peer.methods() == [BasicAck(3, multiple=True), BasicAck(7), BasicAck(5)]
    deliveries[3].ack()
    assert peer.methods() == [BasicAck(4)]
    deliveries[5].ack()
    deliveries[7].nack(requeue=False)
    deliveries[8].ack()
    assert peer.methods() == [BasicAck(6), BasicNack(8, requeue=False), BasicAck(9)]


def test_coalesced_acks_do_not_cover_what_is_rejected() -> None:
    peer, _, deliveries, _ = consuming(coalesce=True)
    peer.feed(b"".join(delivery_frames(tag, b"x") for tag in range(1, 4)))
    deliveries[0].ack()
    deliveries[2].ack()
    deliveries[1].reject(requeue=False)
    assert peer.methods() == [BasicAck(3), BasicAck(1), BasicReject(2, requeue=False)]


def test_nothing_is_acknowledged_on_a_channel_that_is_gone() -> None:
    peer, _, deliveries, _ = consuming()
    peer.feed(delivery_frames(1, b"x"))
    peer.send(1, ChannelClose(406, "PRECONDITION_FAILED"))
    peer.methods()
    assert not deliveries[0].ack()
    assert peer.methods() == []


def test_after_recover_the_old_tags_are_void() -> None:
    peer, channel, deliveries, _ = consuming()
    peer.feed(delivery_frames(1, b"x") + delivery_frames(2, b"y"))
    channel.request(BasicRecover(requeue=True), Replies())
    peer.send(1, BasicRecoverOk())
    peer.methods()
    assert not deliveries[0].ack()
    peer.feed(delivery_frames(3, b"x", redelivered=True))
    assert deliveries[2].ack()


def test_no_ack_deliveries_need_no_settlement() -> None:
    peer, _, deliveries, _ = consuming(no_ack=True)
    peer.feed(delivery_frames(1, b"x"))
    assert not deliveries[0].ack()
    assert peer.methods() == []


@pytest.mark.parametrize("cut", Cut)
def test_get_gives_a_delivery_or_nothing(cut: Cut) -> None:
    peer = opened(cut)
    channel, _ = peer.open_channel()
    replies = Replies()
    channel.request(BasicGet("q"), replies)
    channel.request(BasicGet("q"), replies)
    content = content_frames(1, PROPERTIES, b"body", FRAME_MAX)
    peer.feed(method_frame(1, BasicGetOk(1, False, "ex", "key", 5)) + content + method_frame(1, BasicGetEmpty()))
    delivery, empty = replies.all
    assert isinstance(delivery, Delivery)
    assert (delivery.body, delivery.message_count, delivery.properties) == (b"body", 5, PROPERTIES)
    assert empty == BasicGetEmpty()


@pytest.mark.parametrize("size", [0, 1, FRAME_MAX - 8, FRAME_MAX - 7, 20_000])
def test_a_publish_is_one_content_within_the_frame_size(size: int) -> None:
    peer = opened()
    channel, _ = peer.open_channel()
    channel.publisher.publish(b"x" * size, "ex", "key", PROPERTIES, True, None)
    method, header, *bodies = peer.frames()
    assert method.payload == BasicPublish("ex", "key", mandatory=True).encode()
    assert header.payload == b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + PROPERTIES.encode()
    assert b"".join(body.payload for body in bodies) == b"x" * size
    assert all(len(body.payload) <= FRAME_MAX - 8 for body in bodies)


def test_properties_changed_between_publishes_are_encoded_anew() -> None:
    peer = opened()
    channel, _ = peer.open_channel()
    properties = BasicProperties(message_id="one", headers=None)
    channel.publisher.publish(b"", "", "q", properties, False, None)
    channel.publisher.publish(b"", "", "q", properties, False, None)
    properties.message_id = "two"
    channel.publisher.publish(b"", "", "q", properties, False, None)
    properties.headers = {"list": [1]}
    channel.publisher.publish(b"", "", "q", properties, False, None)
    properties.headers["list"] = [2]
    channel.publisher.publish(b"", "", "q", properties, False, None)
    headers = [frame.payload for frame in peer.frames() if frame.type == 2]
    decoded = [BasicProperties.decode(payload, 12) for payload in headers]
    assert [p.message_id for p in decoded] == ["one", "one", "two", "two", "two"]
    assert [p.headers for p in decoded] == [None, None, None, {"list": [1]}, {"list": [2]}]


def test_confirms_resolve_in_bulk_and_out_of_order() -> None:
    peer = opened()
    channel, events = peer.open_channel(confirms=True)
    for token in range(1, 8):
        channel.publisher.publish(b"", "", "q", None, False, token)
    peer.send(1, BasicAck(3), BasicAck(2, multiple=True), BasicNack(5), BasicAck(7, multiple=True), BasicAck(7))
    assert events.events == [
        ("confirmed", [3]),
        ("confirmed", [1, 2]),
        ("refused", [5]),
        ("confirmed", [4, 6, 7]),
    ]


def test_publishes_without_a_confirm_are_abandoned_with_the_channel() -> None:
    peer = opened()
    channel, events = peer.open_channel(confirms=True)
    for token in ("a", "b", "c"):
        channel.publisher.publish(b"", "nope", "q", None, False, token)
    peer.send(1, BasicAck(1), ChannelClose(404, "NOT_FOUND", 60, 40))
    assert events.events[:2] == [("confirmed", ["a"]), ("abandoned", ["b", "c"])]


@requirement("OJS-097")
def test_a_return_finds_its_publish() -> None:
    peer = opened()
    channel, events = peer.open_channel(confirms=True)
    for token, key, body in [(1, "a", b"x"), (2, "b", b"x"), (3, "b", b"y"), (4, "b", b"y"), (5, "c", b"")]:
        channel.publisher.publish(body, "ex", key, PROPERTIES, True, token)
    for key, body in [("b", b"y"), ("b", b"y"), ("c", b"")]:
        peer.feed(
            method_frame(1, BasicReturn(312, "NO_ROUTE", "ex", key)) + content_frames(1, PROPERTIES, body, FRAME_MAX)
        )
    peer.send(1, BasicAck(5, multiple=True))
    assert events.events == [
        ("returned", 3, 312),
        ("returned", 4, 312),
        ("returned", 5, 312),
        ("confirmed", [1, 2]),
    ]


def test_flow_is_answered_and_reported() -> None:
    peer = opened()
    _, events = peer.open_channel()
    peer.send(1, ChannelFlow(active=False))
    assert peer.methods() == [ChannelFlowOk(active=False)]
    assert events.events == [("flow", False)]
