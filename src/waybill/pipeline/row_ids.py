"""Derives ids for rows without ids: the same in each attempt of a task, in any order of its rows.

The first digits of an id come from the number of the partition and the name of the write, or of the batch of a
streaming query, which is the same in each try. The last fifteen come from the row's content. Equal rows of a partition
are different jobs: their ids depend on their number, not on their places.

    nnnnnnnn-nnnn-7nnn-accc-cccccccccccc        n: name, c: content; 7 and a are UUIDv7's version and variant

The digits of the content are two checksums, forwards and backwards. For a million rows they are as good as a digest of
60 bits, and much cheaper. Rows whose checksums collide still get different ids.

The ids of a partition are remembered as eight bytes each, beside the last ones.
"""

import hashlib
import sys
from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Final
from zlib import crc32

import numpy as np

_BITS: Final = 60
_LARGEST: Final = (1 << _BITS) - 1
_DIGITS: Final = 16
# The size of the Python set, which is fast, but takes ten times the memory of an array.
_RECENT_MAX: Final = 1 << 18
# Forgetting how often a row was seen only costs time.
_AGAIN_MAX: Final = 100_000


def digest(content: bytes) -> int:
    """The key of a row."""
    return (crc32(content) << 32 | crc32(content[::-1])) & _LARGEST


def digests(contents: list[bytes]) -> list[int]:
    """The keys of many rows."""
    backwards = map(crc32, [content[::-1] for content in contents])
    return [(first << 32 | second) & _LARGEST for first, second in zip(map(crc32, contents), backwards, strict=True)]


class RowIds:
    """Makes the ids of one partition, in one pass over its rows."""

    def __init__(self, name: str) -> None:
        digits = hashlib.sha256(name.encode()).hexdigest()
        self._head = f"{digits[:8]}-{digits[8:12]}-7{digits[12:15]}-a"
        self._seen = _Numbers()
        self._again: dict[int, int] = {}

    def ids(self, digests: Sequence[int]) -> list[str]:
        """The ids of the next rows."""
        head, seen = self._head, self._seen
        fresh = set(digests)
        if len(fresh) == len(digests) and seen.isdisjoint(fresh):
            seen.update(fresh)
        else:
            digests = list(map(self._own, digests))
        digits = _digits(digests)
        places = range(0, len(digits), _DIGITS)
        return [f"{head}{digits[place + 1 : place + 4]}-{digits[place + 4 : place + 16]}" for place in places]

    def _own(self, one: int) -> int:
        """The digest of a row, or another one if an equal row came before."""
        own, count = one, self._again.get(one, 0)
        while own in self._seen:
            count += 1
            own = digest(one.to_bytes(8) + count.to_bytes(8))
        if len(self._again) >= _AGAIN_MAX:
            self._again.clear()
        self._again[one] = count
        self._seen.update((own,))
        return own


class _Numbers:
    """A set of numbers below 2^64: sorted arrays, each at least twice as long as the next, and a set of the last."""

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._runs: list[np.ndarray] = []

    def __contains__(self, number: int) -> bool:
        return not self.isdisjoint((number,))

    def isdisjoint(self, numbers: Collection[int]) -> bool:
        if not self._recent.isdisjoint(numbers):
            return False
        if not self._runs:
            return True
        wanted = np.fromiter(numbers, np.uint64, len(numbers))
        return not any(_has_any(run, wanted) for run in self._runs)

    def update(self, numbers: Iterable[int]) -> None:
        self._recent.update(numbers)
        if len(self._recent) < _RECENT_MAX:
            return
        run = np.sort(np.fromiter(self._recent, np.uint64, len(self._recent)))
        self._recent.clear()
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            # Sorts what is sorted in two parts in one pass.
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)


def _has_any(run: np.ndarray, wanted: np.ndarray) -> bool:
    places = np.searchsorted(run, wanted)
    places[places == len(run)] = 0
    return bool((run[places] == wanted).any())


def _digits(numbers: Sequence[int]) -> str:
    """Sixteen hexadecimal digits of each, in one string: much cheaper than one by one."""
    octets = array("Q", numbers)
    if sys.byteorder == "little":
        octets.byteswap()
    return octets.tobytes().hex()
