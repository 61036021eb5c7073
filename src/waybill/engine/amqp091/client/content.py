"""Assembles the frames of one content: method, header, bodies (0-9-1, 4.2.6)."""

from typing import Final

from waybill.engine.amqp091.client.errors import ProtocolViolation
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.reply_codes import CONTENT_TOO_LARGE, FRAME_ERROR, UNEXPECTED_FRAME

HEADER_FIXED_SIZE: Final = 12


class ContentAssembly:
    """At most one content at a time, as on any channel."""

    def __init__(self, size_max: int) -> None:
        """`size_max` is that of a body, in octets."""
        self.size_max = size_max
        self.busy = False
        """A content has started and is not complete."""
        self._method: Method | None = None
        self._properties: bytes | None = None
        self._missing = 0
        self._parts: list[bytes] = []

    def start(self, method: Method) -> None:
        """A method with content has arrived. Raises ProtocolViolation."""
        self.require_idle()
        self._method = method
        self.busy = True

    def require_idle(self) -> None:
        """Raise ProtocolViolation if a method may not come now."""
        if self._method is not None:
            raise ProtocolViolation(UNEXPECTED_FRAME, "a method in the middle of content")

    def take_header(self, payload: bytes) -> bool:
        """The header's payload has arrived; True if that completes the content. Raises ProtocolViolation."""
        if self._method is None or self._properties is not None:
            raise ProtocolViolation(UNEXPECTED_FRAME, "a content header that no method announced")
        if len(payload) < HEADER_FIXED_SIZE + 2:
            raise ProtocolViolation(FRAME_ERROR, "a content header without room for its fields")
        self._missing = int.from_bytes(payload[4:HEADER_FIXED_SIZE], "big")
        if self._missing > self.size_max:
            text = f"a body of {self._missing} octets, more than message_size_max={self.size_max}"
            raise ProtocolViolation(CONTENT_TOO_LARGE, text)
        self._properties = payload[HEADER_FIXED_SIZE:]
        return self._missing == 0

    def take_body(self, payload: bytes) -> bool:
        """A body's payload has arrived; True if that completes the content. Raises ProtocolViolation."""
        if self._properties is None:
            raise ProtocolViolation(UNEXPECTED_FRAME, "a content body that no header announced")
        if not payload:
            raise ProtocolViolation(UNEXPECTED_FRAME, "a content body frame without any content")
        self._missing -= len(payload)
        if self._missing < 0:
            raise ProtocolViolation(FRAME_ERROR, "more body than the header announced")
        self._parts.append(payload)
        return self._missing == 0

    def finish(self) -> tuple[Method, bytes, bytes]:
        """Take the complete content: method, encoded properties, body."""
        method = self._method
        properties = self._properties
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self.abort()
        if method is None or properties is None:
            raise ProtocolViolation(UNEXPECTED_FRAME, "content without method or header")
        return method, properties, body

    def abort(self) -> None:
        """Discard the received frames."""
        self._method = None
        self.busy = False
        self._properties = None
        self._missing = 0
        self._parts = []
