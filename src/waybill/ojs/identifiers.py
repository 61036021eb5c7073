"""UUIDv7 identifiers (RFC 9562 section 5.7), ordered within a process.

 48 bits            4      12 bits       2   62 bits
+------------------+-----+-------------+---+------------------------+
| unix time in ms  |  7  | a counter   | 2 | random                 |
+------------------+-----+-------------+---+------------------------+
"""

from __future__ import annotations

import random
import re
import time

_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_VERSION_AND_VARIANT = (7 << 76) | (2 << 62)


class IdentifierSource:
    """Makes UUIDv7 text; each is greater than the one before, even within a millisecond."""

    def __init__(self) -> None:
        """Start with the present time at the first identifier."""
        self._last = 0

    def next(self) -> str:
        """Return the next identifier in lower case with hyphens."""
        # Milliseconds and counter are one number of 60 bits, so a full counter simply borrows the next millisecond.
        tick = (time.time_ns() // 1_000_000) << 12
        self._last = tick = tick if tick > self._last else self._last + 1
        value = ((tick >> 12) << 80) | ((tick & 0xFFF) << 64) | _VERSION_AND_VARIANT | random.getrandbits(62)
        digits = f"{value:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_source = IdentifierSource()


def new_id() -> str:
    """Return a new UUIDv7 for a job, a worker or an event."""
    return _source.next()


def is_uuid7(text: str) -> bool:
    """Say whether this is a UUIDv7 as the envelope wants it: lower case, with hyphens."""
    return _UUID7.fullmatch(text) is not None


def new_traceparent() -> str:
    """Return a fresh W3C traceparent that is not sampled: the root of a trace that somebody may join."""
    return f"00-{random.getrandbits(128) or 1:032x}-{random.getrandbits(64) or 1:016x}-00"


def child_traceparent(parent: str) -> str:
    """Return a traceparent of the same trace with a span of its own; a fresh one if the parent is malformed."""
    parts = parent.split("-")
    if len(parts) != 4 or len(parts[1]) != 32:
        return new_traceparent()
    return f"{parts[0]}-{parts[1]}-{random.getrandbits(64) or 1:016x}-{parts[3]}"
