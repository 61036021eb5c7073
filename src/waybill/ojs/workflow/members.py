"""The jobs of a streamed group: two bits each, and their counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from waybill.ojs.workflow.numbering import MAX_MEMBERS

PIECE_BYTES: Final = 4096
"""What is written at a time of each of the two rows of bits."""


class Members:
    """Which members are done and which have failed. `total` is None until the pusher has said how many there are."""

    def __init__(self) -> None:
        """None has ended."""
        self.total: int | None = None
        self.done_count = 0
        self.failed_count = 0
        self.changed: set[int] = set()
        """The pieces that nobody has written yet."""
        self._done = bytearray()
        self._failed = bytearray()

    @property
    def is_over(self) -> bool:
        """Whether all have ended."""
        return self.total is not None and self.done_count + self.failed_count >= self.total

    def end(self, index: int, *, is_done: bool) -> bool:
        """Note the end of a member; False if nothing is new. One that is done after all has not failed."""
        if not 0 <= index < (MAX_MEMBERS if self.total is None else self.total):
            return False
        octet, bit = divmod(index, 8)
        if octet >= len(self._done):
            room = bytes(octet // PIECE_BYTES * PIECE_BYTES + PIECE_BYTES - len(self._done))
            self._done += room
            self._failed += room
        mask = 1 << bit
        if self._done[octet] & mask or (self._failed[octet] & mask and not is_done):
            return False
        if is_done:
            if self._failed[octet] & mask:
                self._failed[octet] ^= mask
                self.failed_count -= 1
            self._done[octet] |= mask
            self.done_count += 1
        else:
            self._failed[octet] |= mask
            self.failed_count += 1
        self.changed.add(octet // PIECE_BYTES)
        return True

    def seal(self, total: int) -> None:
        """Take note of how many there are; ends of others, which nobody has pushed, do not count."""
        if self.total is not None:
            return
        self.total = total
        for bits in (self._done, self._failed):
            octet, bit = divmod(total, 8)
            if octet < len(bits):
                bits[octet] &= (1 << bit) - 1
                bits[octet + 1 :] = bytes(len(bits) - octet - 1)
        self._count()

    def failed(self) -> Iterator[int]:
        """Yield the members that have failed."""
        for octet, bits in enumerate(self._failed):
            if bits:
                yield from (octet * 8 + bit for bit in range(8) if bits >> bit & 1)

    def forget_failures(self) -> None:
        """Have those that failed count as not ended: they are tried again."""
        for index in list(self.failed()):
            self.changed.add(index // 8 // PIECE_BYTES)
        self._failed = bytearray(len(self._failed))
        self.failed_count = 0

    def piece(self, number: int) -> bytes:
        """Return a piece of both rows, to be written."""
        part = slice(number * PIECE_BYTES, (number + 1) * PIECE_BYTES)
        return bytes(self._done[part] + self._failed[part])

    def load(self, pieces: dict[int, bytes]) -> None:
        """Take back the pieces that were written."""
        size = (max(pieces, default=-1) + 1) * PIECE_BYTES
        self._done, self._failed = bytearray(size), bytearray(size)
        for number, piece in pieces.items():
            part = slice(number * PIECE_BYTES, (number + 1) * PIECE_BYTES)
            self._done[part], self._failed[part] = piece[:PIECE_BYTES], piece[PIECE_BYTES:]
        self._count()

    def _count(self) -> None:
        self.done_count = int.from_bytes(self._done).bit_count()
        self.failed_count = int.from_bytes(self._failed).bit_count()
