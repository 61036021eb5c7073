"""A server that a test speaks for: feeds frames to the client's engine, in pieces, and reads what it answers."""

import random
from collections.abc import Iterator
from enum import Enum

from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.connection import ClientEngine
from waybill.engine.amqp091.client.delivery import Delivery, ReturnedMessage
from waybill.engine.amqp091.client.events import ChannelEvents, CloseReason, ConnectionEvents
from waybill.engine.amqp091.client.requests import Reply
from waybill.engine.amqp091.client.settings import ConnectionSettings
from waybill.wire.amqp091.frames import (
    FRAME_METHOD,
    PROTOCOL_HEADER,
    Frame,
    content_frames,
    method_frame,
    parse_frame,
)
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods import decode_method
from waybill.wire.amqp091.methods_basic import BasicDeliver
from waybill.wire.amqp091.methods_channel import ChannelOpenOk
from waybill.wire.amqp091.methods_confirm import ConfirmSelectOk
from waybill.wire.amqp091.methods_connection import ConnectionOpenOk, ConnectionStart, ConnectionTune
from waybill.wire.amqp091.properties import BasicProperties

FRAME_MAX = 4096


class Cut(Enum):
    WHOLE = "whole"
    BYTES = "byte by byte"
    RANDOM = "random cuts"


class RecordedConnection(ConnectionEvents):
    """Keeps what happened, in order."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.wake_count = 0

    def opened(self) -> None:
        self.events.append("opened")

    def closed(self, reason: CloseReason) -> None:
        self.events.append(reason)

    def blocked(self, reason: str) -> None:
        self.events.append(("blocked", reason))

    def unblocked(self) -> None:
        self.events.append("unblocked")

    def output_ready(self) -> None:
        self.wake_count += 1


class RecordedChannel(ChannelEvents):
    """Keeps what happened, in order."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def channel_closed(self, reason: CloseReason) -> None:
        self.events.append(reason)

    def confirmed(self, tokens: list[object]) -> None:
        self.events.append(("confirmed", tokens))

    def refused(self, tokens: list[object]) -> None:
        self.events.append(("refused", tokens))

    def returned(self, token: object | None, message: ReturnedMessage) -> None:
        self.events.append(("returned", token, message.reply_code))

    def abandoned(self, tokens: list[object], reason: CloseReason) -> None:
        self.events.append(("abandoned", tokens))

    def consumer_cancelled(self, consumer_tag: str) -> None:
        self.events.append(("cancelled", consumer_tag))

    def flow_changed(self, active: bool) -> None:
        self.events.append(("flow", active))

    def callback_failed(self, delivery: Delivery, error: Exception) -> None:
        self.events.append(("failed", delivery.delivery_tag, str(error)))


class Peer:
    """The server's side of one connection, with a clock of its own."""

    def __init__(self, cut: Cut = Cut.WHOLE, settings: ConnectionSettings | None = None) -> None:
        self.now = 1000.0
        self.events = RecordedConnection()
        self.engine = ClientEngine(settings or ConnectionSettings(), self.events, self.now)
        self._cut = cut
        self._random = random.Random(7)

    def feed(self, data: bytes) -> None:
        for piece in self._pieces(data):
            self.engine.receive_data(piece, self.now)

    def send(self, channel: int, *methods: Method) -> None:
        self.feed(b"".join(method_frame(channel, method) for method in methods))

    def frames(self) -> list[Frame]:
        """What the client has written since the last call."""
        data = self.engine.data_to_send().removeprefix(PROTOCOL_HEADER)
        frames = []
        offset = 0
        while offset < len(data):
            parsed = parse_frame(data, offset, 0)
            assert parsed is not None
            frame, offset = parsed
            frames.append(frame)
        return frames

    def methods(self) -> list[Method]:
        """The methods among them."""
        return [decode_method(frame.payload) for frame in self.frames() if frame.type == FRAME_METHOD]

    def handshake(self, *, heartbeat: int = 0) -> None:
        self.send(0, ConnectionStart(mechanisms="PLAIN AMQPLAIN"))
        self.send(0, ConnectionTune(100, FRAME_MAX, heartbeat))
        self.send(0, ConnectionOpenOk())
        self.methods()
        assert self.events.events == ["opened"]

    def open_channel(self, *, confirms: bool = False, coalesce: bool = False) -> tuple[ClientChannel, RecordedChannel]:
        events = RecordedChannel()
        channel = self.engine.open_channel(events, coalesce_acks=coalesce)
        assert channel is not None
        channel.open(lambda _: None)
        self.send(channel.number, ChannelOpenOk())
        if confirms:
            channel.select_confirms(lambda _: None)
            self.send(channel.number, ConfirmSelectOk())
        self.methods()
        return channel, events

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        if self._cut is Cut.WHOLE:
            yield data
            return
        offset = 0
        while offset < len(data):
            size = 1 if self._cut is Cut.BYTES else self._random.randint(1, 40)
            yield data[offset : offset + size]
            offset += size


class Replies:
    """Takes the replies to requests."""

    def __init__(self) -> None:
        self.all: list[Reply] = []

    def __call__(self, reply: Reply) -> None:
        self.all.append(reply)


def opened(cut: Cut = Cut.WHOLE) -> Peer:
    peer = Peer(cut)
    peer.handshake()
    return peer


def delivery_frames(
    tag: int,
    body: bytes,
    *,
    channel: int = 1,
    consumer_tag: str = "c",
    properties: BasicProperties | None = None,
    redelivered: bool = False,
) -> bytes:
    method = BasicDeliver(consumer_tag, tag, redelivered, "ex", "key")
    return method_frame(channel, method) + content_frames(channel, properties or BasicProperties(), body, FRAME_MAX)
