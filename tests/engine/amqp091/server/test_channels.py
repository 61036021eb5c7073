"""The life of a channel, and of the connection below it (0-9-1, 1.5)."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel
from waybill.wire.amqp091.methods_basic import BasicAck, BasicGet
from waybill.wire.amqp091.methods_channel import (
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
)
from waybill.wire.amqp091.methods_connection import ConnectionClose, ConnectionCloseOk
from waybill.wire.amqp091.methods_exchange import ExchangeDeclare
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDeclareOk


def test_a_closed_channel_can_be_opened_again(channel: Channel) -> None:
    channel.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
    channel.reopen()
    channel.declare("q")


@pytest.mark.parametrize("code", [504])
@requirement("091-channel.open.state")
def test_opening_a_channel_twice_closes_the_connection(
    bench: Bench, channel: Channel, bystander: Channel, code: int
) -> None:
    channel.send(ChannelOpen())
    channel.peer.expect_refused(code)


def test_a_method_on_a_channel_that_is_not_open_closes_the_connection(
    bench: Bench, channel: Channel, bystander: Channel
) -> None:
    channel.number = 7
    channel.send(QueueDeclare("q"))
    channel.peer.expect_refused(504)


def test_after_its_own_close_the_peer_hangs_up(bench: Bench) -> None:
    """A client that meets the end of the stream while it waits for close-ok takes it for a failure."""
    peer = bench.connect()
    peer.connection.call(ConnectionClose(200, "done", 0, 0), ConnectionCloseOk)
    bench.advance(1)
    peer.connection.expect_nothing()
    assert not peer.wire.is_closed


@pytest.mark.ours
def test_a_peer_that_never_hangs_up_is_cut_off(bench: Bench) -> None:
    peer = bench.connect()
    peer.connection.call(ConnectionClose(200, "done", 0, 0), ConnectionCloseOk)
    bench.advance(60)
    peer.connection.expect_nothing()
    assert peer.wire.is_closed


def test_many_channels_share_one_connection(bench: Bench) -> None:
    peer = bench.connect()
    numbers = [1, 2, 3, 500, 2047]
    channels = [peer.open_channel(number) for number in numbers]
    for channel in channels:
        channel.declare(f"q{channel.number}", exclusive=True)
        channel.publish(str(channel.number), f"q{channel.number}")
    for channel in reversed(channels):
        assert channel.take(f"q{channel.number}").body == str(channel.number).encode()


@requirement("OJS-089", "OJS-094", "M010-020")
def test_an_error_closes_one_channel_and_leaves_the_others(bench: Bench) -> None:
    peer = bench.connect()
    broken, sound = peer.open_channel(1), peer.open_channel(2)
    close = broken.refuses(QueueDeclare("absent", passive=True), 404)
    assert close.reply_text == "NOT_FOUND - no queue 'absent' in vhost '/'"
    sound.declare("q")
    broken.reopen()
    broken.declare("q")


@requirement("091-channel.close.stability")
def test_what_follows_an_error_on_the_same_channel_is_dropped(bench: Bench) -> None:
    peer = bench.connect()
    channel = peer.open_channel(1)
    channel.send(QueueDeclare("absent", passive=True), QueueDeclare("never"), ExchangeDeclare("never", "no-such-type"))
    channel.publish(b"never", "never", "nowhere")
    channel.expect_refused(404)
    channel.reopen()
    channel.refuses(QueueDeclare("never", passive=True), 404)


@requirement("091-channel.close.stability")
def test_a_close_that_crosses_ours_is_answered(channel: Channel) -> None:
    channel.send(QueueDeclare("absent", passive=True))
    channel.expect(ChannelClose)
    channel.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
    channel.send(ChannelCloseOk())
    channel.reopen()


@requirement("M010-004")
def test_requests_are_answered_in_their_order(channel: Channel) -> None:
    names = [f"pipelined.{number}" for number in range(100)]
    channel.send(*[QueueDeclare(name, exclusive=True) for name in names])
    assert [channel.expect(QueueDeclareOk).queue for _ in names] == names


@requirement("M010-070")
@requirement("091-channel.flow.initial-state", "091-channel.flow.bidirectional")
def test_flow_stops_deliveries_and_starts_them_again(bench: Bench) -> None:
    if bench.is_rabbitmq:
        pytest.skip("RabbitMQ does not let clients stop the flow")
    channel = bench.channel()
    channel.declare("q")
    channel.consume(no_ack=True)
    assert not channel.call(ChannelFlow(active=False), ChannelFlowOk).active
    channel.publish(b"held")
    channel.expect_nothing()
    assert channel.call(ChannelFlow(active=True), ChannelFlowOk).active
    assert channel.delivery().body == b"held"


@requirement("OJS-007")
@requirement("091-delivery-tag.non-zero")
def test_delivery_tags_count_up_on_each_channel_by_itself(bench: Bench) -> None:
    peer = bench.connect()
    for number in (1, 2):
        channel = peer.open_channel(number)
        channel.declare(f"q{number}", exclusive=True)
        channel.consume(f"q{number}")
        for _ in range(5):
            channel.publish(b"", f"q{number}")
        assert [channel.delivery().tag for _ in range(5)] == [1, 2, 3, 4, 5]
        channel.ack(5, multiple=True)
        channel.publish(b"", f"q{number}")
        assert channel.delivery().tag == 6


def test_polled_messages_share_the_count_of_delivery_tags(channel: Channel) -> None:
    channel.declare("q")
    for _ in range(3):
        channel.publish()
    tags = []
    for _ in range(3):
        delivery = channel.get(no_ack=False)
        assert delivery is not None
        tags.append(delivery.tag)
    assert tags == [1, 2, 3]


@requirement("M010-106")
def test_closing_a_channel_gives_its_messages_back(bench: Bench) -> None:
    peer = bench.connect()
    first, second = peer.open_channel(1), peer.open_channel(2)
    first.declare("q")
    for text in ("1", "2", "3"):
        first.publish(text)
    first.consume()
    assert first.bodies(3) == [b"1", b"2", b"3"]
    first.send(BasicAck(2))
    first.call(ChannelClose(200, "", 0, 0), ChannelCloseOk)
    back = [second.take(), second.take()]
    assert [delivery.body for delivery in back] == [b"1", b"3"]
    assert all(delivery.redelivered for delivery in back)


@requirement("M010-039", "M010-102")
@requirement("091-redelivered.implementation", "091-basic.10")
def test_losing_a_connection_gives_its_messages_back(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"1")
    other = bench.channel()
    other.consume()
    assert not other.delivery().redelivered
    other.peer.wire.cut()
    bench.advance(0.05)
    delivery = channel.take()
    assert delivery.body == b"1"
    assert delivery.redelivered


def test_a_lost_connection_is_not_served_any_more(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    other = bench.channel()
    other.consume()
    other.peer.wire.cut()
    bench.advance(0.05)
    channel.publish(b"1")
    assert channel.take().body == b"1"


def test_channel_numbers_are_free_again_after_an_error(channel: Channel) -> None:
    for _ in range(3):
        channel.refuses(BasicGet("absent"), 404)
        channel.call(ChannelOpen(), ChannelOpenOk)
