"""Choices read from octets: the same octets make the same case, whoever made them up (chance, evolution, a fuzzer).

A case is cut into genes of equal size, one a move. So a change of one gene leaves the other moves as they were, which
is what lets a search get better step by step.
"""

import zlib
from collections.abc import Sequence
from random import Random
from typing import Final, TypeVar

GENE_BYTES: Final = 24

T = TypeVar("T")


class Choices:
    """Draws from one gene; when it is used up, from a generator of numbers that the gene seeds.

    `scale` bounds all amounts.
    """

    def __init__(self, gene: bytes, scale: int = 1 << 20) -> None:
        self.sent = 0
        """How many deliveries the peer has sent in its session before."""
        self._scale = scale
        self._gene = gene
        self._at = 0
        self._random: Random | None = None

    def _below(self, limit: int) -> int:
        size = 1 if limit <= 256 else 2 if limit <= 1 << 16 else 8
        data = self._gene[self._at : self._at + size]
        if len(data) == size:
            self._at += size
            return int.from_bytes(data, "big") % limit
        return self.random.randrange(limit)

    @property
    def random(self) -> Random:
        """What all that need not be steered one by one is drawn from."""
        if self._random is None:
            self._random = Random(zlib.crc32(self._gene))
        return self._random

    def number(self, low: int, high: int) -> int:
        return low + self._below(high - low + 1)

    def pick(self, values: Sequence[T]) -> T:
        return values[self._below(len(values))]

    def chance(self, one_in: int) -> bool:
        return self._below(one_in) == one_in - 1

    def amount(self, limit: int) -> int:
        """From 1 to `limit`, or to the scale of the case; small and large ones alike, the limit itself often."""
        limit = min(limit, self._scale)
        doublings = limit.bit_length()
        return max(1, min(limit, (1 << self._below(doublings + 1)) + self._below(7) - 3))

    def octets(self, size: int) -> bytes:
        return self.random.randbytes(size)


def genes(case: bytes) -> list[bytes]:
    return [case[start : start + GENE_BYTES] for start in range(0, len(case), GENE_BYTES)]
