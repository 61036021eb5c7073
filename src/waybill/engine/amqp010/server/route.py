"""Transfers that begin like the previous one: recognized by their bytes and taken without decoding.

    | frame: message.transfer | frame: header segment | frame: body segment |

The first frame is the same for all messages to one destination. For many publishers, the header frame is the same, too.
Then only the bodies differ, and a run of messages is published together.
"""

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from waybill.engine.amqp010.server.envelope import TransferEnvelope, read_envelope
from waybill.engine.amqp010.server.session import Session
from waybill.model.message import NO_TTL
from waybill.wire.amqp010.frames import BODY, COMMAND_TRACK, FRAME_HEAD_SIZE, HEADER

INCOMPLETE: Final = -1
COLD: Final = 0
"""The result of `take` if the message is incomplete, or cannot be taken here."""
ROUTES_MAX: Final = 64
HEADER_HEAD: Final = 0x03 << 8 | HEADER
BODY_HEAD: Final = 0x07 << 8 | BODY
"""Flags and type of a whole header segment that is not the last, and of a whole body segment."""
RUN_MAX: Final = 64
KEPT_HEADER_MAX: Final = 2048
"""The limit of a kept header, because its memory is not counted."""
UNIT_BITS: Final = 12


class TransferRoute:
    """`octets`: the frame of the command."""

    def __init__(self, session: Session, octets: bytes, exchange: str, *, is_explicit: bool) -> None:
        self.session = session
        self.channel = session.channel
        self.octets = octets
        self.size: i64 = len(octets)
        self.exchange = exchange
        self.is_explicit = is_explicit
        self.envelope: TransferEnvelope | None = None
        self._tail = COMMAND_TRACK << 16 | session.channel
        self._header = b""
        self._prefix = b""
        self._stride: i64 = 0

    def take(self, data: bytes, o: i64, n: i64) -> i64:
        """Take the message whose command frame is at `o`, and those that follow and differ in their bodies only.

        Returns where the last one taken ends, INCOMPLETE, or COLD. Raises what forbids it; `end` tells where it ended.
        """
        if self._stride > 0 and data[o : o + len(self._prefix)] == self._prefix:
            end = self._take_run(data, o, n)
            if end != COLD:
                return end
        h = o + self.size
        b = self._segment_end(data, h, n, HEADER_HEAD)
        if b <= 0:
            return b
        end = self._segment_end(data, b, n, BODY_HEAD)
        if end > 0:
            self._publish(data, o, h, b, end)
        return end

    def _segment_end(self, data: bytes, o: i64, n: i64, kind: i64) -> i64:
        """Where the frame at `o` ends, if it is a whole segment of that kind; INCOMPLETE; or COLD."""
        if n - o < FRAME_HEAD_SIZE:
            return INCOMPLETE
        head = read_i64_be(data, o)
        size = head >> 32 & 0xFFFF
        if head >> 48 & 0xFFFF != kind or head & 0xFFFFFF != self._tail or size < FRAME_HEAD_SIZE:
            return COLD
        if size > self.session.attached.max_frame_size:
            return COLD
        return o + size if n - o >= size else INCOMPLETE

    def _publish(self, data: bytes, o: i64, h: i64, b: i64, end: i64) -> None:
        session = self.session
        envelope = self.envelope
        number = session.received()
        if envelope is None or not envelope.is_lasting or data[h:b] != self._header:
            self._stride = 0
            self._prefix = self._header = b""
            session.runtime.work_left -= 2 + ((b - h) >> 5)
            header = data[h + FRAME_HEAD_SIZE : b]
            connection = session.attached
            if envelope is None or not envelope.adapt(header, connection.facts):
                self.envelope = None
                envelope = read_envelope(connection, self.exchange, header)
            if b - h > KEPT_HEADER_MAX:
                self.envelope = None
            else:
                self._header = data[h:b]
                self.envelope = envelope
        elif self._stride != end - o:
            self._expect_more(data, o, b, end)
        session.publish(envelope, data[b + FRAME_HEAD_SIZE : end], number, is_explicit=self.is_explicit)

    def _expect_more(self, data: bytes, o: i64, b: i64, end: i64) -> None:
        """A second message has this header: others may follow that have bodies of the same size."""
        self._prefix = data[o : b + FRAME_HEAD_SIZE]
        self._stride = end - o

    def _take_run(self, data: bytes, o: i64, n: i64) -> i64:
        session = self.session
        envelope = self.envelope
        stride = self._stride
        if n - o < stride:
            return INCOMPLETE
        if envelope is None or envelope.immediate:
            return COLD
        if session.transaction is not None or session.branch is not None:
            return COLD
        route = envelope.resolve(session.attached)
        if route.by_headers or len(route.queues) != 1 or envelope.ttl_ms != NO_TTL:
            return COLD
        prefix = self._prefix
        size: i64 = len(prefix)
        count: i64 = 1
        end = o + stride
        while count < RUN_MAX and n - end >= stride and data[end : end + size] == prefix:
            end += stride
            count += 1
        session.runtime.work_left -= count + ((end - o) >> UNIT_BITS)
        session.publish_run(envelope, data, o, stride, count, size, is_explicit=self.is_explicit)
        return end
