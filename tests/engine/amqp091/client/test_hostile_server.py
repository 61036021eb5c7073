"""Whatever a server sends, in whatever state and cut anywhere: no exception, and everybody who waits is told."""

import random
from typing import Any, Final

import pytest

from tests.engine.amqp091.client.peer import FRAME_MAX, Peer, RecordedChannel, Replies, delivery_frames, opened
from waybill.engine.amqp091.client.delivery import Delivery
from waybill.engine.amqp091.client.events import CloseReason
from waybill.engine.amqp091.client.input import Input
from waybill.engine.amqp091.client.settings import ConnectionSettings
from waybill.engine.amqp091.client.states import CHANNEL_STATES, CONNECTION_STATES, ChannelState, ConnectionState
from waybill.wire.amqp091.frames import FRAME_BODY, FRAME_HEADER, HEARTBEAT_FRAME, content_frames, frame, method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.method_arguments import (
    BIT,
    LONG,
    LONG_OCTETS,
    LONG_STRING,
    LONGLONG,
    OCTET,
    SHORT,
    SHORT_STRING,
    TABLE,
)
from waybill.wire.amqp091.methods import METHODS
from waybill.wire.amqp091.methods_basic import BasicAck, BasicConsume, BasicConsumeOk, BasicDeliver, BasicReturn
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk
from waybill.wire.amqp091.methods_connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionTune,
)
from waybill.wire.amqp091.methods_queue import QueueDeclare
from waybill.wire.amqp091.properties import BasicProperties

LONGEST: Final = "n" * 255
WIDE_TABLE: Final[dict[str, object]] = {f"key-{number}": number for number in range(200)}
DEEP_TABLE: Final[dict[str, object]] = {"a": {"b": {"c": [[[1, "x" * 100]]]}}}
EXTREMES: Final[dict[int, tuple[object, ...]]] = {
    OCTET: (0, 255),
    SHORT: (0, 2**16 - 1),
    LONG: (0, 2**32 - 1),
    LONGLONG: (0, 1, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1),
    BIT: (False, True),
    SHORT_STRING: ("", LONGEST, "c"),
    LONG_STRING: ("", "l" * 3000),
    LONG_OCTETS: (b"", b"o" * 3000),
    TABLE: ({}, WIDE_TABLE, DEEP_TABLE),
}


def extremes(method: type[Method]) -> list[Method]:
    """The method with each of its arguments at each extreme, the others as they are by default or at 1."""
    declared = method.ARGUMENTS
    kinds = {name: kind for name, kind in zip(declared.names, declared.kinds, strict=True) if name in method.FIELDS}
    plain: dict[str, Any] = {name: EXTREMES[kind][-1 if kind == SHORT_STRING else 0] for name, kind in kinds.items()}
    made: list[Method] = [method(**plain)]
    made += [method(**{**plain, name: value}) for name, kind in kinds.items() for value in EXTREMES[kind]]
    return made


class Busy:
    """A connection with all that can wait: requests, confirms, a consumer, half a content, a channel being closed."""

    def __init__(self) -> None:
        self.peer = opened()
        self.replies = Replies()
        channel, self.events = self.peer.open_channel(confirms=True)
        self.deliveries: list[Delivery] = []
        channel.consume(BasicConsume("q", "c"), self.deliveries.append, self.replies)
        self.peer.send(1, BasicConsumeOk("c"))
        for number in range(5):
            channel.publisher.publish(b"x", "ex", "key", None, mandatory=True, token=number)
        channel.request(QueueDeclare("q"), self.replies)
        closing, self.closing_events = self.peer.open_channel()
        closing.request(QueueDeclare("q"), self.replies)
        closing.close(self.replies)
        self.requested = 4
        self.peer.feed(delivery_frames(1, b"whole"))

    def assert_nobody_waits(self) -> None:
        """After the end of the transport."""
        self.peer.engine.connection_lost(self.peer.now)
        assert len(self.replies.all) == self.requested
        told = [
            token
            for event in self.events.events
            if isinstance(event, tuple) and event[0] in {"confirmed", "refused", "abandoned"}
            for token in event[1]
        ]
        returned = [event[1] for event in self.events.events if isinstance(event, tuple) and event[0] == "returned"]
        assert sorted(told + [token for token in returned if token is not None]) == [0, 1, 2, 3, 4]
        assert sum(isinstance(event, CloseReason) for event in self.events.events) == 1
        assert sum(isinstance(event, CloseReason) for event in self.closing_events.events) == 1
        assert sum(isinstance(event, CloseReason) for event in self.peer.events.events) == 1
        assert self.peer.engine.closed


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.NAME)
def test_every_method_at_its_limits_on_every_channel(method: type[Method]) -> None:
    for number in (0, 1, 2, 7):
        for made in extremes(method):
            busy = Busy()
            busy.peer.send(number, made)
            if made.HAS_CONTENT:
                busy.peer.feed(content_frames(number, BasicProperties(headers={"x": 1}), b"body", FRAME_MAX))
            busy.assert_nobody_waits()


@pytest.mark.parametrize("state", [state for state in ConnectionState if state is not ConnectionState.CLOSED])
def test_every_method_in_every_state_of_the_connection(state: ConnectionState) -> None:
    for method in METHODS:
        for number in (0, 1):
            peer = in_state(state)
            peer.send(number, extremes(method)[0])
            peer.engine.connection_lost(peer.now)
            assert sum(isinstance(event, CloseReason) for event in peer.events.events) == 1, method.NAME


def in_state(state: ConnectionState) -> Peer:
    peer = Peer()
    steps: list[Method] = [ConnectionStart(mechanisms="PLAIN"), ConnectionTune(10, FRAME_MAX, 0), ConnectionOpenOk()]
    order = [ConnectionState.HEADER_SENT, ConnectionState.LOGIN, ConnectionState.OPENING, ConnectionState.OPEN]
    for step in steps[: order.index(state)] if state in order else steps:
        peer.send(0, step)
    if state is ConnectionState.CLOSING:
        peer.engine.close()
    assert peer.engine.state is state
    return peer


@pytest.mark.parametrize("state", list(ConnectionState))
def test_a_close_by_us_in_every_state_is_heard_once(state: ConnectionState) -> None:
    peer = in_state(ConnectionState.OPEN) if state is ConnectionState.CLOSED else in_state(state)
    if state is ConnectionState.CLOSED:
        peer.send(0, ConnectionClose(320, "CONNECTION_FORCED"))
    peer.engine.close()
    peer.engine.close()
    peer.send(0, ConnectionCloseOk())
    peer.engine.connection_lost(peer.now)
    assert sum(isinstance(event, CloseReason) for event in peer.events.events) == 1
    assert peer.engine.state is ConnectionState.CLOSED


def test_the_transport_ends_after_any_octet() -> None:
    data = method_frame(0, ConnectionStart(mechanisms="PLAIN")) + method_frame(0, ConnectionTune(10, FRAME_MAX, 0))
    for length in range(len(data)):
        peer = Peer()
        peer.feed(data[:length])
        peer.engine.connection_lost(peer.now)
        assert [type(event) for event in peer.events.events] == [CloseReason]
    content = delivery_frames(2, b"x" * 5000) + method_frame(1, BasicAck(3, multiple=True)) + HEARTBEAT_FRAME
    for length in range(0, len(content), 37):
        busy = Busy()
        busy.peer.feed(content[:length])
        busy.assert_nobody_waits()


def test_any_octet_changed_is_survived() -> None:
    chance = random.Random(11)
    good = (
        delivery_frames(2, b"x" * 300, properties=BasicProperties(headers=DEEP_TABLE))
        + method_frame(1, BasicAck(2, multiple=True))
        + method_frame(1, BasicReturn(312, "NO_ROUTE", "ex", "key"))
        + content_frames(1, BasicProperties(), b"x", FRAME_MAX)
        + method_frame(2, ChannelCloseOk())
    )
    for _ in range(400):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            bad[chance.randrange(len(bad))] = chance.choice((0, 1, 0x7F, 0x80, 0xCE, 0xFF))
        busy = Busy()
        busy.peer.feed(bytes(bad))
        busy.assert_nobody_waits()


@pytest.mark.parametrize(
    ("proposed", "agreed"),
    [
        (ConnectionTune(0, 0, 0), (2047, 131_072, 60)),
        (ConnectionTune(2**16 - 1, 2**32 - 1, 2**16 - 1), (2047, 131_072, 60)),
        (ConnectionTune(1, 1, 1), (1, 4096, 1)),
    ],
)
@pytest.mark.parametrize("settings", [ConnectionSettings(), ConnectionSettings(frame_max=0, channel_max=0)])
def test_any_tune_is_answered_with_what_both_can_do(
    proposed: ConnectionTune, agreed: tuple[int, int, int], settings: ConnectionSettings
) -> None:
    peer = Peer(settings=settings)
    peer.send(0, ConnectionStart(mechanisms="PLAIN"), proposed, ConnectionOpenOk())
    engine = peer.engine
    assert engine.state is ConnectionState.OPEN
    if settings.frame_max:
        assert (engine.channel_max, engine.frame_max, engine.heartbeat_s) == agreed
    assert engine.frame_max >= 4096
    channel, _ = peer.open_channel()
    channel.publisher.publish(b"x" * 300_000, "", "q", None, mandatory=False, token=None)
    assert engine.open_channel(RecordedChannel()) is None or engine.channel_max != 1


def test_a_frame_sent_octet_by_octet_is_joined_once() -> None:
    octets = method_frame(0, ConnectionClose(320, "x" * 200))
    arrived = Input()
    looks = []
    for octet in octets:
        joined = arrived.take(bytes([octet]))
        if joined:
            looks.append(len(joined))
            if joined != octets:
                arrived.keep(joined)
    # The first octet, then the frame's head, then all of it.
    assert looks == [1, 8, len(octets)]
    peer = opened()
    for octet in octets:
        peer.feed(bytes([octet]))
    assert peer.engine.closed


def test_a_channel_may_be_closed_in_the_middle_of_a_content() -> None:
    peer = opened()
    channel, events = peer.open_channel()
    deliveries: list[Delivery] = []
    channel.consume(BasicConsume("q", "c"), deliveries.append, Replies())
    peer.send(1, BasicConsumeOk("c"))
    content = delivery_frames(1, b"x" * 10_000)
    cut = content.index(bytes([FRAME_BODY, 0, 1]))
    peer.feed(content[:cut])
    replies = Replies()
    channel.close(replies)
    peer.feed(content[cut:] + method_frame(1, ChannelCloseOk()))
    assert (replies.all, deliveries) == ([ChannelCloseOk()], [])
    assert not peer.engine.closed
    assert len(events.events) == 1


def test_a_confirm_in_the_middle_of_a_content_is_refused_as_any_method() -> None:
    peer = opened()
    channel, _ = peer.open_channel(confirms=True)
    channel.publisher.publish(b"x", "", "q", None, mandatory=False, token=1)
    peer.send(1, BasicDeliver("c", 1, False, "ex", "key"), BasicAck(1))
    assert peer.engine.close_reason is not None
    assert peer.engine.close_reason.code == 505


def test_empty_body_frames_do_not_pile_up() -> None:
    peer = opened()
    peer.open_channel()
    header = frame(FRAME_HEADER, 1, b"\x00\x3c\x00\x00" + (100).to_bytes(8, "big") + b"\x00\x00")
    peer.feed(method_frame(1, BasicDeliver("c", 1, False, "ex", "key")) + header + frame(FRAME_BODY, 1, b"") * 1000)
    assert peer.engine.close_reason is not None
    assert peer.engine.close_reason.code == 505


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1.1"),
        (b"SSH-2.0-OpenSSH", "SSH-2.0"),
        (b"\x15\x03\x01\x00\x02\x02\x46\x00", "amqps"),
        (b"AMQP\x00\x01\x00\x00", "AMQP"),
    ],
)
@pytest.mark.parametrize("step", [1, 100])
def test_another_protocol_is_named(answer: bytes, says: str, step: int) -> None:
    peer = Peer()
    for offset in range(0, len(answer), step):
        peer.feed(answer[offset : offset + step])
    (reason,) = peer.events.events
    assert isinstance(reason, CloseReason)
    assert says in reason.text


def test_another_version_is_refused() -> None:
    peer = Peer()
    peer.send(0, ConnectionStart(0, 10, mechanisms="PLAIN"))
    assert peer.engine.close_reason is not None
    assert "0-10" in peer.engine.close_reason.text


def test_a_connection_that_is_refused_for_a_name_that_is_no_text_says_why() -> None:
    peer = Peer()
    peer.send(0, ConnectionStart(mechanisms="\udcff\udcfe"))
    assert peer.engine.close_reason is not None
    assert peer.engine.close_reason.code == 540


def test_the_tables_lead_every_state_to_an_end() -> None:
    for states, closed in ((CONNECTION_STATES, ConnectionState.CLOSED), (CHANNEL_STATES, ChannelState.CLOSED)):
        for state, events in states.items():
            assert (closed in events.values()) == (state is not closed)
    with pytest.raises(KeyError):
        _ = CHANNEL_STATES[ChannelState.CLOSED]["channel.close"]


def test_a_channel_that_the_server_closes_twice_is_told_once() -> None:
    busy = Busy()
    busy.peer.send(1, ChannelClose(404, "NOT_FOUND"))
    busy.peer.send(1, ChannelClose(404, "NOT_FOUND"))
    busy.assert_nobody_waits()
