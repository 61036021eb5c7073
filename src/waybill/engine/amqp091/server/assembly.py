"""A message that arrives frame by frame, because it is too large, or in too many frames, to be taken in one piece."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.engine.amqp091.server.channel_host import ChannelHost
from waybill.engine.amqp091.server.faults import BASIC, PUBLISH, channel_fault, connection_fault
from waybill.engine.amqp091.server.publish_route import SMALL_FRAME_BYTES, PublishRoute
from waybill.model.runtime import BYTES_PER_UNIT
from waybill.wire.amqp091.content import joined, scan
from waybill.wire.amqp091.frames import FRAME_HEADER
from waybill.wire.amqp091.reply_codes import CONTENT_TOO_LARGE, PRECONDITION_FAILED, UNEXPECTED_FRAME

EMPTY_FRAMES_MAX: Final = 16


class Assembly:
    """The content frames of one message, counted as held memory of its connection."""

    def __init__(self, connection: ChannelHost, route: PublishRoute) -> None:
        self._connection = connection
        self.route = route
        self.pieces = BytesWriter()
        self._has_header = False
        self._missing: i64 = 0
        self._empty: i64 = 0
        self._small: i64 = 0

    def take(self, kind: i64, octets: bytes) -> bool:
        """Take the next content frame. True once the message is complete."""
        if self._has_header == (kind == FRAME_HEADER):
            raise connection_fault(UNEXPECTED_FRAME, "content out of order")
        if kind == FRAME_HEADER:
            facts = self._connection.facts
            scan(octets, 0, facts)
            self._missing = facts.body_size
            self._has_header = True
        else:
            self._count_body(len(octets) - 8)
        self._check_size(self._missing)
        held = self._connection.held
        if not held.add(len(octets)):
            raise channel_fault(PRECONDITION_FAILED, held.refusal(), BASIC, PUBLISH)
        self.pieces.write(octets)
        return self._missing == 0

    def content(self) -> bytes:
        """The complete message as it is stored. Copying it is charged to the turn."""
        octets = self.pieces.getvalue()
        units = len(octets) // BYTES_PER_UNIT
        if self._small > 1:
            octets = joined(octets, self._connection.frame_max)
            units *= 2
        self._connection.host.runtime.work_left -= units
        return octets

    def _count_body(self, size: i64) -> None:
        """Count a body frame of this size. Raises a connection fault for one that no honest client sends."""
        self._missing -= size
        if size < SMALL_FRAME_BYTES:
            self._small += 1
        if self._missing < 0:
            raise connection_fault(UNEXPECTED_FRAME, "a body is longer than its header announced")
        if size == 0:
            self._empty += 1
            if self._empty > EMPTY_FRAMES_MAX:
                raise connection_fault(UNEXPECTED_FRAME, f"more than {EMPTY_FRAMES_MAX} empty body frames in a message")

    def _check_size(self, size: i64) -> None:
        """Refuse a body by its announced size, before any of it is kept."""
        limit = self._connection.host.limits.message_size_max
        if size > limit:
            raise channel_fault(
                CONTENT_TOO_LARGE if size < 0 else PRECONDITION_FAILED,
                f"message size {size} is larger than the maximum of {limit} bytes",
                BASIC,
                PUBLISH,
            )
