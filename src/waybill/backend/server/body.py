"""The body of a request: so many octets, or chunks (RFC 9112 section 7.1)."""

from __future__ import annotations

from typing import Final

from waybill.backend.server.head import BadRequest

MAX_LINE_BYTES: Final = 256
"""Of the size of a chunk with its extensions, which are left out."""
MAX_TRAILER_BYTES: Final = 8 * 1024
_HEXADECIMAL: Final = frozenset(b"0123456789abcdefABCDEF")
_SIZE_DIGITS: Final = 15


class BodyTooLarge(Exception):
    """A body is larger than it may be."""


class Chunks:
    """Reads a chunked body out of what arrives."""

    def __init__(self, limit: int) -> None:
        """`limit` is how many octets the body may have."""
        self.body = bytearray()
        self._limit = limit
        self._left = 0
        """Octets of the chunk that are still to come, with the line end after it."""
        self._is_last = False
        self._trailer_size = 0

    def take(self, data: bytearray) -> bool:
        """Take what belongs to the body away from the front of `data`; True at its end.

        Raises BadRequest, BodyTooLarge.
        """
        while True:
            if self._is_last:
                return self._skip_trailers(data)
            if self._left == 0 and not self._begin(data):
                return False
            if self._is_last:
                continue
            if self._left > 2:
                count = min(self._left - 2, len(data))
                self.body += data[:count]
                del data[:count]
                self._left -= count
            if self._left > 2 or len(data) < self._left:
                return False
            if not data.startswith(b"\r\n"):
                raise BadRequest("invalid_request", "A chunk does not end where it should.")
            del data[:2]
            self._left = 0

    def _begin(self, data: bytearray) -> bool:
        """Read the line before a chunk; False if it is not there yet."""
        end = data.find(b"\r\n", 0, MAX_LINE_BYTES + 2)
        if end < 0:
            if len(data) > MAX_LINE_BYTES:
                raise BadRequest("invalid_request", "The size of a chunk is too long.")
            return False
        digits = bytes(data[:end]).partition(b";")[0].rstrip(b" \t")
        if not 0 < len(digits) <= _SIZE_DIGITS or not _HEXADECIMAL.issuperset(digits):
            raise BadRequest("invalid_request", "The size of a chunk is no hexadecimal number.")
        del data[: end + 2]
        size = int(digits, 16)
        if len(self.body) + size > self._limit:
            raise BodyTooLarge
        self._left = size + 2
        self._is_last = size == 0
        return True

    def _skip_trailers(self, data: bytearray) -> bool:
        while (end := data.find(b"\r\n")) >= 0:
            del data[: end + 2]
            if end == 0:
                return True
            self._trailer_size += end
        if self._trailer_size + len(data) > MAX_TRAILER_BYTES:
            raise BadRequest("headers_too_large", "The trailers of the body are too large.")
        return False
