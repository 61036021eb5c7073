"""Detects whether a stream was deleted and recreated under the same name since it was last read.

A stream that ends before the position up to which it was read was recreated. A longer one is recognized by a mark in
the offsets of a query: a digest of the last message that was read, and a time at which it existed. A recreated
stream has another message at that offset, or the same one sent again, and then the whole stream is newer than the mark.

Weak spots: a stream that is recreated with the same messages within a second is not detected; nor is one whose marked
message is gone, which retention removes from streams that are read late.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

from waybill.pipeline.stream_log import StreamLog

# Names of streams in the options contain no comma.
MARKS: Final = ",marks"
# The year 2100.
_TIME_MAX: Final = 4_102_444_800

Mark: TypeAlias = Sequence[object]
"""The digest of a message, and a time in seconds of Unix time: both can be stored as JSON."""


def marks_of(offsets: Mapping[str, object]) -> dict[str, Mark]:
    """The marks that the offsets of a query carry, by stream; none in those of earlier versions."""
    found = offsets.get(MARKS)
    return {stream: one for stream, one in found.items() if _is_mark(one)} if isinstance(found, dict) else {}


def without_marks(offsets: Mapping[str, object]) -> dict[str, int]:
    """The offsets alone."""
    return {stream: at for stream, at in offsets.items() if isinstance(at, int)}


def mark(log: StreamLog, stream: str, end: int) -> Mark | None:
    """The mark of a stream that was read up to `end`; None if there is no such message."""
    digest = _digest(log, stream, end)
    # Brokers store times of messages in seconds: all present messages existed before the next second.
    return None if digest is None else [digest, int(time.time()) + 1]


def was_recreated(log: StreamLog, stream: str, end: int, found: Mark | None, *, thoroughly: bool) -> bool:
    """Whether the stream was recreated since `found` was made. `thoroughly`: also check the times of messages."""
    if not found or end == 0:
        return False
    digest = _digest(log, stream, end)
    if digest is None:
        return False
    if digest != found[0]:
        return True
    if not thoroughly or not isinstance(found[1], int):
        return False
    return log.since(stream, datetime.fromtimestamp(found[1], UTC)) <= log.first(stream)


def _is_mark(found: object) -> bool:
    """Whether this is a mark, and not from a checkpoint that was changed by hand."""
    return isinstance(found, list | tuple) and len(found) == 2 and isinstance(found[0], str) and _is_time(found[1])


def _is_time(found: object) -> bool:
    return isinstance(found, int) and 0 <= found <= _TIME_MAX


def _digest(log: StreamLog, stream: str, end: int) -> str | None:
    message = log.message(stream, end - 1)
    if message is None:
        return None
    sent = (message.body, message.timestamp, message.properties, sorted(message.headers.items()))
    return hashlib.sha256(repr(sent).encode(errors="replace")).hexdigest()[:32]
