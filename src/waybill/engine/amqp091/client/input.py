"""The received part of an incomplete frame."""

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from waybill.wire.amqp091.frames import FRAME_OVERHEAD

SMALLEST_FRAME: Final = FRAME_OVERHEAD
"""The minimum number of octets before a frame is examined."""


class Input:
    """Joins the parts only when the frame is complete, so a peer that sends single octets causes no repeated copies."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing: i64 = 0

    def take(self, data: bytes) -> bytes:
        """Return the bytes to cut into frames, ending with `data`; nothing while a frame is incomplete."""
        if not self._parts:
            return data
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return b""
        joined = b"".join(self._parts)
        self._parts = []
        return joined

    def keep(self, rest: bytes) -> None:
        """Keep the beginning of a frame. With 8 octets or more, its size has been checked."""
        size: i64 = SMALLEST_FRAME
        if len(rest) >= SMALLEST_FRAME:
            size = FRAME_OVERHEAD + (i64(read_i32_be(rest, 3)) & 0xFFFFFFFF)
        self._missing = size - len(rest)
        self._parts = [rest]
