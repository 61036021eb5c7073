"""UUIDv7 identifiers (RFC 9562 section 5.7), ascending within a process.

     48 bits            4      12 bits       2   62 bits
    +------------------+-----+-------------+---+------------------------------+
    | unix time in ms  |  7  | a counter   | 2 | random, new each millisecond |
    +------------------+-----+-------------+---+------------------------------+

Two processes meet only if they draw the same 62 bits in the same millisecond.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from typing import Final

_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
DERIVED: Final = "fff"
"""The counter of ids that are made of names. The source above gets there only with 4,096 ids in a millisecond."""
_COUNTS: Final = tuple(f"{count:03x}" for count in range(4096))


class IdentifierSource:
    """Makes UUIDv7 text; each is greater than the one before, even within a millisecond."""

    def __init__(self) -> None:
        """Start with the present time at the first identifier."""
        self._millisecond = 0
        self._count = 0
        self._head = ""
        self._tail = ""

    def next(self) -> str:
        """Return the next identifier in lower case with hyphens."""
        millisecond = time.time_ns() // 1_000_000
        if millisecond > self._millisecond:
            self._turn(millisecond)
        elif self._count == len(_COUNTS):
            # More than the counter holds, or the clock went back: the next millisecond is borrowed.
            self._turn(self._millisecond + 1)
        count = self._count
        self._count = count + 1
        return self._head + _COUNTS[count] + self._tail

    def _turn(self, millisecond: int) -> None:
        self._millisecond = millisecond
        self._count = 0
        digits = f"{millisecond:012x}"
        self._head = f"{digits[:8]}-{digits[8:]}-7"
        tail = f"{(2 << 62) | random.getrandbits(62):016x}"
        self._tail = f"-{tail[:4]}-{tail[4:]}"


_source = IdentifierSource()


# The method itself: two of them are made for every job.
new_id: Final = _source.next
"""Return a new UUIDv7 for a job, a worker or an event."""


def is_uuid7(text: str) -> bool:
    """Return whether this is a UUIDv7 in the envelope's form: lower case, with hyphens."""
    return _UUID7.fullmatch(text) is not None


def derived_id(millisecond: int, *names: str) -> str:
    """Return a UUIDv7 derived from a Unix time in milliseconds and names: the same everywhere for the same input.

    The random part is a SHA-256 of the names, each with its length, so `("a", "bc")` and `("ab", "c")` differ.
    """
    digits = f"{millisecond & 0xFFFF_FFFF_FFFF:012x}"
    named = "".join(f"{len(name)}:{name}" for name in (digits, *names))
    number = int.from_bytes(hashlib.sha256(named.encode(errors="surrogatepass")).digest()[:8])
    tail = f"{(2 << 62) | (number & ((1 << 62) - 1)):016x}"
    return f"{digits[:8]}-{digits[8:]}-7{DERIVED}-{tail[:4]}-{tail[4:]}"


def may_be_derived(identifier: str) -> bool:
    """Return whether an id may be one of `derived_id`; at most one in thousands of other ids may look like one."""
    return identifier[15:18] == DERIVED


def push_event_id(job_id: str) -> str:
    """Return the id of the job.enqueued event of a job that coordinators push: the same for each of its copies."""
    return f"evt_{derived_id(0, 'enqueued', job_id)}"


def new_traceparent() -> str:
    """Return a new, unsampled W3C traceparent: the root of a trace that others may join."""
    return f"00-{random.getrandbits(128) or 1:032x}-{random.getrandbits(64) or 1:016x}-00"


def child_traceparent(parent: str) -> str:
    """Return a traceparent of the same trace with a new span; a new trace if the parent is malformed."""
    parts = parent.split("-")
    if len(parts) != 4 or len(parts[1]) != 32:
        return new_traceparent()
    return f"{parts[0]}-{parts[1]}-{random.getrandbits(64) or 1:016x}-{parts[3]}"
