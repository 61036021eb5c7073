"""The publishes of a connection: recognized by their bytes, and cut into messages without decoding.

Publishers repeat themselves, so each message is compared with the previous one: its method frame, then its content
header, then (`prefix`) everything before its body.
"""

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from waybill.engine.amqp091.server.channel_host import ConsumerHost
from waybill.model.routing import Route
from waybill.wire.amqp091.content import ContentFacts, scan
from waybill.wire.amqp091.frames import FRAME_END, FRAME_HEADER, FRAME_OVERHEAD
from waybill.wire.amqp091.properties import FLAG_REPLY_TO, FLAG_USER_ID

LOOKED_AT: Final = FLAG_USER_ID | FLAG_REPLY_TO
INCOMPLETE: Final = -1
NO_HEADER: Final = b"\x00"
OUTRUN: Final = 4096
RUN_MAX: Final = 512
# Larger bodies are collected frame by frame, so that incomplete input is never copied more than once.
WHOLE_CONTENT_LIMIT: Final = 262_144
# So are bodies in smaller frames, to be stored in larger ones: each delivery on another channel looks at every frame.
SMALL_FRAME_BYTES: Final = 256


class PublishRoute:
    """A basic.publish method frame of a connection, and its route.

    Nothing is decoded or routed again until another frame comes, or the topology changes.
    """

    def __init__(
        self, channel: ConsumerHost, octets: bytes, exchange: str, routing_key: str, *, mandatory: bool
    ) -> None:
        self._header_head = channel.header_head
        self._body_head = channel.body_head
        self.octets = octets
        self.size: i64 = len(octets)
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.route: Route | None = None
        self.epoch: i64 = 0
        self.is_durable = False
        self.takes_runs = False
        self.facts = ContentFacts()
        self._header = NO_HEADER
        self._header_size: i64 = 0
        # The bytes before the body of a message with that header, and the total size: 0 until a header was repeated.
        self._prefix = b""
        self.stride: i64 = 0
        # Of a frame's payload: see `Connection._process`.
        self._frame_max = channel.connection.frame_max
        self._content_max: i64 = min(WHOLE_CONTENT_LIMIT, channel.connection.host.limits.message_size_max)

    def run_end(self, data: bytes, o: i64, n: i64, *, one_by_one: bool) -> i64:
        """The end of the run of complete messages from `o` on that differ only in their bodies."""
        stride = self.stride
        prefix = self._prefix
        size: i64 = len(prefix)
        end = o + stride
        # If messages are taken one by one, later ones would be examined again for each of them.
        n = min(n, o + stride * RUN_MAX if self.takes_runs and not one_by_one else end)
        # In compiled code, comparing a slice takes half the time of startswith.
        while end <= n and data[end - 1] == FRAME_END and data[o : o + size] == prefix:
            o = end
            end += stride
        return o

    def content_end(self, data: bytes, h: i64, n: i64) -> i64:
        """The end of the content after the method frame if it is complete; then `facts` describe it.

        `INCOMPLETE` if it should be awaited; 0 if it must be taken frame by frame.
        """
        facts = self.facts
        b = h + self._header_size
        if data[h:b] == self._header:
            if self.stride == 0:
                self._expect_more()
        else:
            if n - h < 22:
                return INCOMPLETE if n <= h or data[h] == FRAME_HEADER else 0
            head = read_i64_be(data, h)
            size = head >> 8 & 0xFFFFFFFF
            if head >> 40 != self._header_head or size > self._frame_max:
                return 0
            b = h + size + FRAME_OVERHEAD
            if n < b:
                return INCOMPLETE
            scan(data, h, facts)
            self._remember_header(data, h, b)
        return self._body_end(data, b, n)

    def _body_end(self, data: bytes, b: i64, n: i64) -> i64:
        missing = self.facts.body_size
        if missing > self._content_max:
            return 0
        while missing > 0:
            if n - b < 8:
                return INCOMPLETE
            head = read_i64_be(data, b)
            size = head >> 8 & 0xFFFFFFFF
            if head >> 40 != self._body_head or size > missing or size > self._frame_max:
                return 0
            if size < SMALL_FRAME_BYTES and size < missing:
                return 0
            b += size + FRAME_OVERHEAD
            if n < b:
                return INCOMPLETE
            if data[b - 1] != FRAME_END:
                return 0
            missing -= size
        return b

    def _remember_header(self, data: bytes, start: i64, end: i64) -> None:
        """Keep the content header just scanned into `facts`, so that an equal one need not be scanned.

        One with an expiration or headers is not kept: what `facts` says of these depends on where they are.
        """
        facts = self.facts
        self.stride = 0
        if facts.expiration_size < 0 and facts.headers_size < 0:
            self._header = data[start:end]
            self._header_size = end - start
        else:
            self._header = NO_HEADER

    def _expect_more(self) -> None:
        """A second message has the cached header. If headers affect routing, each message is examined alone."""
        facts = self.facts
        size = facts.body_size
        if size > min(self._content_max, self._frame_max - FRAME_OVERHEAD) or facts.flags & LOOKED_AT:
            return
        self._prefix = self.octets + self._header
        self.stride = self.size + self._header_size
        if size > 0:
            self._prefix += int(self._body_head << 32 | size).to_bytes(7, "big")
            self.stride += size + FRAME_OVERHEAD

    def is_outrunning(self) -> bool:
        """Whether one of its queues has consumers, and a backlog that they do not keep up with."""
        return self.route is not None and self.route.is_outrunning(OUTRUN)
