"""Detects whether the event stream is still the one that was folded.

A stream that was lost with its broker, deleted, or restored from an older backup starts again: its offsets refer to
other messages. A reader that continued at the old offset would wait for messages that never arrive, or skip messages.
So digests of the last messages are kept. The one where reading continues is stored with the position, and reading
begins with that message:

    kept:    offset 4711, digest a3f1...
    read:    offset 4711, digest a3f1...     the same stream: go on
             offset 4711, digest 9c02...     another one, that has grown as far
             offset 12                       another one, that is shorter
             offset 9000                     old messages were dropped: nothing can be said
"""

from __future__ import annotations

from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from waybill.ojs.errors import JobsError

REMEMBERED: Final = 500
"""More messages than can be in transit at once: after a lost connection they arrive again."""


class StreamMark(NamedTuple):
    """A message of the stream, by its offset and a digest of its body."""

    offset: int
    digest: int


class StreamReplaced(JobsError):
    """Another coordinator has begun to rebuild the view in this database from the first event."""


def digest_of(body: bytes) -> int:
    """Return a digest of 63 bits, which every database can store."""
    return xxh3_64_intdigest(body) >> 1


class StreamIdentity:
    """The last messages that were read from a stream."""

    def __init__(self, begin: int = 0, mark: StreamMark | None = None) -> None:
        """Reading begins at offset `begin`, or at the message of the mark."""
        self._lowest = begin if mark is None else mark.offset
        self._digests: dict[int, int] = {} if mark is None else {mark.offset: mark.digest}

    def note(self, offset: int, body: bytes) -> StreamMark | None:
        """Return the mark of a message, None if the stream that was read before cannot contain it."""
        digest = digest_of(body)
        known = self._digests.get(offset)
        if known is not None:
            return StreamMark(offset, digest) if known == digest else None
        if offset < self._lowest:
            return None
        self._digests[offset] = digest
        if len(self._digests) > REMEMBERED:
            del self._digests[next(iter(self._digests))]
            self._lowest = next(iter(self._digests))
        return StreamMark(offset, digest)
