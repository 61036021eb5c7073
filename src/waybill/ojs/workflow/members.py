"""The jobs of a streamed group: two bits each, in pieces that are loaded when needed, and their counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from waybill.ojs.workflow.numbering import MAX_MEMBERS

PIECE_BYTES: Final = 4096
MEMBERS_PER_PIECE: Final = PIECE_BYTES * 8


class Piece(msgspec.Struct):
    """Which members of a range are completed, and which have failed."""

    done: bytearray = msgspec.field(default_factory=lambda: bytearray(PIECE_BYTES))
    failed: bytearray = msgspec.field(default_factory=lambda: bytearray(PIECE_BYTES))


class MemberCounts(msgspec.Struct):
    """`total` is None until the pusher has reported it; `size` is above every index seen so far.

    `expected` is the number that the pusher has announced; `pushed` is above every index that is known to be in its
    queue. An `abandoned` group gets no more members.
    """

    total: int | None = None
    done: int = 0
    failed: int = 0
    size: int = 0
    expected: int | None = None
    pushed: int = 0
    abandoned: bool = False

    @property
    def known(self) -> int | None:
        """The number of members, None if unknown."""
        if self.total is not None:
            return self.total
        return max(self.size, self.pushed) if self.abandoned else self.expected


class Members:
    """All members of one group."""

    def __init__(self, counts: MemberCounts, load: Callable[[int], Piece | None] = lambda _: None) -> None:
        """`load` returns a stored piece, None for one in which nothing has happened."""
        self.counts = counts
        self.changed: dict[int, Piece] = {}
        """The pieces to be stored."""
        self._load = load

    @property
    def is_over(self) -> bool:
        """Whether all members have ended."""
        known = self.counts.known
        return known is not None and self.counts.done + self.counts.failed >= known

    @property
    def is_incomplete(self) -> bool:
        """Whether some members were never pushed, because their pusher died."""
        counts = self.counts
        return counts.abandoned and counts.total is None and counts.done + counts.failed != counts.expected

    def end(self, index: int, *, is_done: bool) -> bool:
        """Record the end of a member; False if nothing changes.

        A member that completes after a failure no longer counts as failed.
        """
        counts = self.counts
        if not 0 <= index < (MAX_MEMBERS if counts.total is None else counts.total):
            return False
        number, place = divmod(index, MEMBERS_PER_PIECE)
        octet, mask = place // 8, 1 << place % 8
        piece = self._piece(number)
        has_failed = bool(piece.failed[octet] & mask)
        if piece.done[octet] & mask or (has_failed and not is_done):
            return False
        self.changed[number] = piece
        counts.size = max(counts.size, index + 1)
        if is_done:
            piece.done[octet] |= mask
            counts.done += 1
            if has_failed:
                piece.failed[octet] ^= mask
                counts.failed -= 1
        else:
            piece.failed[octet] |= mask
            counts.failed += 1
        return True

    def seal(self, total: int) -> None:
        """Record the number of members; ends of others, which were never pushed, do not count."""
        counts = self.counts
        if counts.total is not None:
            return
        counts.total = min(total, MAX_MEMBERS)
        for index in range(counts.total, counts.size):
            number, place = divmod(index, MEMBERS_PER_PIECE)
            octet, mask = place // 8, 1 << place % 8
            piece = self._piece(number)
            if piece.done[octet] & mask:
                piece.done[octet] ^= mask
                counts.done -= 1
            if piece.failed[octet] & mask:
                piece.failed[octet] ^= mask
                counts.failed -= 1
            self.changed[number] = piece

    def failed(self) -> Iterator[int]:
        """Yield the failed members."""
        for number in self._numbers():
            for octet, bits in enumerate(self._piece(number).failed):
                if bits:
                    first = number * MEMBERS_PER_PIECE + octet * 8
                    yield from (first + bit for bit in range(8) if bits >> bit & 1)

    def restart(self, index: int) -> bool:
        """Reset a failed member to not ended; False if it has not failed."""
        if not 0 <= index < self.counts.size:
            return False
        number, place = divmod(index, MEMBERS_PER_PIECE)
        octet, mask = place // 8, 1 << place % 8
        piece = self._piece(number)
        if not piece.failed[octet] & mask:
            return False
        piece.failed[octet] ^= mask
        self.counts.failed -= 1
        self.changed[number] = piece
        return True

    def forget_failures(self) -> None:
        """Reset failed members to not ended, because they are retried."""
        for number in self._numbers():
            piece = self._piece(number)
            if any(piece.failed):
                piece.failed = bytearray(PIECE_BYTES)
                self.changed[number] = piece
        self.counts.failed = 0

    def _numbers(self) -> range:
        return range(-(-self.counts.size // MEMBERS_PER_PIECE))

    def _piece(self, number: int) -> Piece:
        return self.changed.get(number) or self._load(number) or Piece()
