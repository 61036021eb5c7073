"""The memory that jobs take, from their JSON."""

from __future__ import annotations

from typing import Final

SMALL_BYTES: Final = 4 * 1024
_VALUE_BYTES: Final = 64
_OBJECT_BYTES: Final = 256
_WIDE_BYTES: Final = 4
"""How much a character of a text takes at most."""


def size_of(body: bytes) -> int:
    """Return how much memory a job takes, about: its JSON, and its arguments, which may be many small values."""
    if len(body) <= SMALL_BYTES:
        return 2 * len(body)
    # One character outside of Latin-1 makes all of its text as wide as it is.
    is_plain = body.isascii() and b"\\u" not in body
    values = body.count(b",") + body.count(b":")
    return (2 if is_plain else 1 + _WIDE_BYTES) * len(body) + _VALUE_BYTES * values + _OBJECT_BYTES * body.count(b"{")
