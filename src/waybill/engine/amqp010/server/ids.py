"""Command ids. On the wire they have 32 bits and wrap (RFC 1982); here they count on, and never wrap."""

from bisect import bisect_left, bisect_right
from typing import Final

from mypy_extensions import i64

from waybill.wire.amqp010.sequence import MASK, MAX_RANGES, serial_distance
from waybill.wire.amqp010.types import Ranges

WRAP: Final = 1 << 32
"""Where the counts begin: an id that a peer names may lie before them."""


def unwrapped(number: i64, near: i64) -> i64:
    """The count that stands for the id `number`, closest to the count `near`."""
    return near + serial_distance(near & MASK, number)


class IdRanges:
    """A set of counts, in rising order. Adding at its end takes constant time."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    @property
    def is_empty(self) -> bool:
        return not self.firsts

    def add(self, first: i64, last: i64) -> None:
        """Add counts beyond those that are there."""
        lasts = self.lasts
        if lasts and lasts[-1] + 1 == first:
            lasts[-1] = int(last)
        else:
            self.firsts.append(int(first))
            lasts.append(int(last))

    def remove(self, first: i64, last: i64) -> None:
        """Remove all counts from `first` to `last`."""
        start = bisect_left(self.lasts, int(first))
        end = bisect_right(self.firsts, int(last))
        if start >= end:
            return
        firsts: list[int] = []
        lasts: list[int] = []
        if self.firsts[start] < first:
            firsts.append(self.firsts[start])
            lasts.append(int(first) - 1)
        if self.lasts[end - 1] > last:
            firsts.append(int(last) + 1)
            lasts.append(self.lasts[end - 1])
        self.firsts[start:end] = firsts
        self.lasts[start:end] = lasts

    def clear(self) -> None:
        self.firsts = []
        self.lasts = []

    def wire(self) -> Ranges:
        """As a sequence-set; the newest ranges if they are too many for one."""
        return self._wire(max(len(self.firsts) - MAX_RANGES, 0), len(self.firsts))

    def all_wire(self) -> list[Ranges]:
        """As sequence-sets: one, unless they are too many for it."""
        count = len(self.firsts)
        return [self._wire(start, min(start + MAX_RANGES, count)) for start in range(0, count, MAX_RANGES)]

    def _wire(self, start: int, end: int) -> Ranges:
        return tuple([(self.firsts[index] & MASK, self.lasts[index] & MASK) for index in range(start, end)])


class Spans:
    """What the ranges that a peer names have in common with what is there: in order, without overlaps.

    Ranges may be much larger than that, or name it again and again. Whoever looks for many keys at once asks `has`;
    `is_small` tells that it is less to look for each count from `numbers`.
    """

    def __init__(self, ranges: Ranges, near: i64, lowest: i64, count: i64) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []
        total: i64 = 0
        found: list[tuple[int, int]] = []
        for low, high in ranges:
            first = max(unwrapped(low, near), lowest)
            last = min(unwrapped(high, near), near - 1)
            if first <= last:
                found.append((int(first), int(last)))
        if len(found) > 1:
            found.sort()
        for begin, end in found:
            start = begin
            if self.lasts and start <= self.lasts[-1]:
                start = self.lasts[-1] + 1
            if start <= end:
                total += end - start + 1
                self.firsts.append(start)
                self.lasts.append(end)
        self.is_small = total <= count

    def has(self, number: i64) -> bool:
        place = bisect_right(self.firsts, int(number)) - 1
        return place >= 0 and number <= self.lasts[place]

    def numbers(self) -> list[int]:
        """Every count."""
        return [
            number for place in range(len(self.firsts)) for number in range(self.firsts[place], self.lasts[place] + 1)
        ]
