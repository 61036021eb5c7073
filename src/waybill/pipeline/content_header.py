"""Reads content headers of stream messages: the offset, and the publisher's properties.

    flags | content-type | content-encoding | headers: length, ..., "x-stream-offset" l int64 | other properties

A broker adds the offset as the last header. The rest hardly changes between messages of a publisher, so decoded
properties are cached by their bytes, without the offset.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import Final

from waybill.client import BasicProperties
from waybill.pipeline.message import NO_METADATA, OFFSET_HEADER, Metadata, Properties, utc_seconds

# Flags of class basic, 0-9-1 section 1.8.1: those that come before the headers, and that of the headers.
_CONTENT_TYPE: Final = 0x80
_CONTENT_ENCODING: Final = 0x40
_HEADERS: Final = 0x20
# The header without its value: a short string, and the type of a signed 64-bit number.
_MARK: Final = bytes([len(OFFSET_HEADER)]) + OFFSET_HEADER.encode() + b"l"
_VALUE_BYTES: Final = 8
_KNOWN_MAX: Final = 1_000
# array's signed number of 64 bits.
_INT64: Final = "q"


class ContentHeaders:
    """Reads content headers of one stream's deliveries, and caches their common parts."""

    def __init__(self) -> None:
        self._known: dict[bytes, Metadata] = {}
        # The last header read: the bytes before and after its offset, and their place.
        self._length = -1
        self._before = b""
        self._after = b""
        self._last = NO_METADATA

    def read_all(self, encoded: list[bytes]) -> tuple[Sequence[int | None], list[Metadata]]:
        """`read` each header; all at once if they differ only in the offset, as most do."""
        _, sent = self.read(encoded[0])
        start, end = len(self._before), len(self._before) + _VALUE_BYTES
        if (
            set(map(len, encoded)) == {self._length}
            and {one[:start] for one in encoded} == {self._before}
            and {one[end:] for one in encoded} == {self._after}
        ):
            return _native(b"".join([one[start:end] for one in encoded])), [sent] * len(encoded)
        each = [self.read(one) for one in encoded]
        return [offset for offset, _ in each], [sent for _, sent in each]

    def read(self, encoded: bytes) -> tuple[int | None, Metadata]:
        """The offset (None if this is not a stream) and the decoded properties of an encoded header."""
        # With equal flags and lengths before it, the offset can only be in the same place.
        before, after = self._before, self._after
        if len(encoded) == self._length and encoded.startswith(before) and encoded.endswith(after):
            return int.from_bytes(encoded[len(before) : len(before) + _VALUE_BYTES], "big"), self._last
        end = _table_end(encoded)
        start = end - _VALUE_BYTES
        if start < len(_MARK) or encoded[start - len(_MARK) : start] != _MARK:
            return _decoded(encoded)
        before, after = encoded[:start], encoded[end:]
        key = before + after
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            _, known = _decoded(encoded)
            self._known[key] = known
        self._length, self._before, self._after, self._last = len(encoded), before, after, known
        return int.from_bytes(encoded[start:end], "big"), known


def _native(big_endian: bytes) -> Sequence[int]:
    """Consecutive numbers of 64 bits."""
    numbers = array(_INT64, big_endian)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _table_end(encoded: bytes) -> int:
    """Where the table of headers ends; 0 if there is none. The decoder refuses truncated ones."""
    flags = encoded[0]
    at = 2
    if not flags & _HEADERS:
        return 0
    try:
        if flags & _CONTENT_TYPE:
            at += 1 + encoded[at]
        if flags & _CONTENT_ENCODING:
            at += 1 + encoded[at]
    except IndexError:
        return 0
    end = at + 4 + int.from_bytes(encoded[at : at + 4], "big")
    return end if end <= len(encoded) else 0


def _decoded(encoded: bytes) -> tuple[int | None, Metadata]:
    """What `ContentHeaders.read` returns, for headers in any order."""
    sent = BasicProperties.decode(encoded)
    headers = sent.headers or {}
    offset = headers.pop(OFFSET_HEADER, None)
    properties = Properties(
        content_type=sent.content_type,
        content_encoding=sent.content_encoding,
        delivery_mode=sent.delivery_mode,
        priority=sent.priority,
        correlation_id=sent.correlation_id,
        reply_to=sent.reply_to,
        expiration=sent.expiration,
        message_id=sent.message_id,
        type=sent.type,
        user_id=sent.user_id,
        app_id=sent.app_id,
    )
    return (offset if isinstance(offset, int) else None), Metadata(utc_seconds(sent.timestamp), properties, headers)
