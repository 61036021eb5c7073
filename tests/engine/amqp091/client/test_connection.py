"""An open connection: heartbeats, blocking, closing, and servers that break the rules."""

import pytest

from tests.engine.amqp091.client.peer import FRAME_MAX, Cut, Peer, Replies, opened
from waybill.engine.amqp091.client.events import CloseReason, Initiator
from waybill.engine.amqp091.client.settings import ConnectionSettings
from waybill.wire.amqp091.frames import HEARTBEAT_FRAME, frame, method_frame
from waybill.wire.amqp091.methods_basic import BasicAck, BasicGetEmpty
from waybill.wire.amqp091.methods_channel import ChannelOpenOk
from waybill.wire.amqp091.methods_connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUnblocked,
)
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDeclareOk


def last_reason(peer: Peer) -> CloseReason:
    reason = peer.events.events[-1]
    assert isinstance(reason, CloseReason)
    return reason


def advance(peer: Peer, seconds: float) -> None:
    peer.now += seconds
    peer.engine.handle_timeout(peer.now)


def test_a_heartbeat_goes_out_when_nothing_else_did() -> None:
    peer = Peer()
    peer.handshake(heartbeat=10)
    advance(peer, 5)  # The handshake was written since.
    assert peer.engine.data_to_send() == b""
    advance(peer, 5)
    assert peer.engine.data_to_send() == HEARTBEAT_FRAME


def test_output_spares_the_heartbeat() -> None:
    peer = Peer()
    peer.handshake(heartbeat=10)
    advance(peer, 5)
    channel, _ = peer.open_channel()
    channel.request(QueueDeclare("q"), Replies())
    peer.frames()
    advance(peer, 5)
    assert peer.engine.data_to_send() == b""


def test_a_silent_server_is_given_up_after_two_intervals() -> None:
    peer = Peer()
    peer.handshake(heartbeat=10)
    for _ in range(4):
        advance(peer, 5)
    assert not peer.engine.closed
    advance(peer, 5)
    assert peer.engine.closed
    assert last_reason(peer).initiator is Initiator.TRANSPORT


def test_a_server_is_not_silent_while_nothing_is_read() -> None:
    peer = Peer()
    peer.handshake(heartbeat=10)
    peer.engine.is_read = False
    for _ in range(20):
        advance(peer, 5)
    peer.engine.is_read = True
    for _ in range(4):
        advance(peer, 5)
    assert not peer.engine.closed
    advance(peer, 5)
    assert peer.engine.closed


def test_heartbeats_of_the_server_keep_the_connection() -> None:
    peer = Peer()
    peer.handshake(heartbeat=10)
    for _ in range(10):
        advance(peer, 5)
        peer.feed(HEARTBEAT_FRAME)
    assert not peer.engine.closed


def test_without_heartbeats_there_is_no_timeout() -> None:
    peer = Peer(settings=ConnectionSettings(heartbeat_s=0))
    peer.handshake(heartbeat=10)
    assert peer.engine.next_timeout() is None


def test_blocked_and_unblocked_are_reported() -> None:
    peer = opened()
    peer.send(0, ConnectionBlocked("low on memory"), ConnectionUnblocked())
    assert peer.events.events[1:] == [("blocked", "low on memory"), "unblocked"]


def test_an_orderly_close_waits_for_its_answer() -> None:
    peer = opened()
    _, events = peer.open_channel()
    peer.engine.close()
    assert peer.methods() == [ConnectionClose(200, "OK")]
    assert not peer.engine.closed
    assert isinstance(events.events[-1], CloseReason)
    peer.send(1, QueueDeclareOk("late"))
    peer.send(0, ConnectionCloseOk())
    assert peer.engine.closed
    assert last_reason(peer).initiator is Initiator.CLIENT


def test_a_close_of_the_server_fails_what_is_in_flight() -> None:
    peer = opened()
    channel, events = peer.open_channel()
    replies = Replies()
    channel.request(QueueDeclare("q"), replies)
    peer.send(0, ConnectionClose(320, "CONNECTION_FORCED"))
    assert peer.methods()[-1] == ConnectionCloseOk()
    assert replies.all == [CloseReason(320, "CONNECTION_FORCED")]
    assert events.events == replies.all
    channel.request(QueueDeclare("q"), replies)
    assert len(replies.all) == 2


def test_a_lost_transport_ends_everything_once() -> None:
    peer = opened()
    _, events = peer.open_channel()
    peer.engine.connection_lost(peer.now)
    peer.engine.connection_lost(peer.now)
    assert len(peer.events.events) == 2
    assert len(events.events) == 1


BROKEN = {
    "unknown frame type": b"\x09\x00\x01\x00\x00\x00\x00\xce",
    "no frame end": b"\x01\x00\x01\x00\x00\x00\x04\x00\x0a\x00\x0b\x00",
    "a frame too big": b"\x03\x00\x01" + FRAME_MAX.to_bytes(4, "big") + b"x",
    "unknown class": frame(1, 0, b"\x00\x63\x00\x01"),
    "truncated method": frame(1, 0, b"\x00\x0a\x00\x32\x01"),
    "a heartbeat on a channel": b"\x08\x00\x01\x00\x00\x00\x00\xce",
    "content on channel 0": frame(3, 0, b"body"),
    "a channel that is not open": method_frame(77, ChannelOpenOk()),
    "an answer to nothing": method_frame(1, QueueDeclareOk("q")),
    "a message nobody asked for": method_frame(1, BasicGetEmpty()),
    "a confirm without confirms": method_frame(1, BasicAck(1)),
    "a body without header": frame(3, 1, b"body"),
    "a header without method": frame(2, 1, b"\x00\x3c\x00\x00" + bytes(10)),
}


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("name", BROKEN)
def test_a_server_that_breaks_the_protocol_is_told_and_left(name: str, cut: Cut) -> None:
    peer = opened(cut)
    _, events = peer.open_channel()
    peer.feed(BROKEN[name])
    (close,) = peer.methods()
    assert isinstance(close, ConnectionClose)
    assert close.reply_code >= 500
    assert peer.engine.closed
    assert last_reason(peer).code == close.reply_code
    assert isinstance(events.events[-1], CloseReason)


def test_channel_numbers_are_used_in_turn_and_run_out() -> None:
    peer = opened()
    channels = [peer.open_channel()[0] for _ in range(100)]
    assert [channel.number for channel in channels] == list(range(1, 101))
    assert peer.engine.open_channel(channels[0].events) is None


def test_a_wake_is_asked_for_once_a_drain() -> None:
    peer = opened()
    channel, _ = peer.open_channel()
    peer.frames()
    woken = peer.events.wake_count
    channel.request(QueueDeclare("a"), Replies())
    channel.request(QueueDeclare("b"), Replies())
    assert peer.events.wake_count == woken + 1
