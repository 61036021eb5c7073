"""Command ids. On the wire they have 32 bits and wrap (RFC 1982); here they count on, and never wrap."""

from bisect import bisect_left, bisect_right
from typing import Final

from mypy_extensions import i64

from waybill.wire.amqp010.sequence import MASK, MAX_RANGES, serial_distance
from waybill.wire.amqp010.types import Ranges

WRAP: Final = 1 << 32
"""The start of the counts, above 0 because a peer may name an earlier id."""


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
        """Add counts above the existing ones."""
        lasts = self.lasts
        if lasts and lasts[-1] + 1 == first:
            lasts[-1] = int(last)
        else:
            self.firsts.append(int(first))
            lasts.append(int(last))

    def remove_below(self, mark: i64) -> None:
        """Remove all counts below `mark`."""
        passed = bisect_left(self.lasts, int(mark))
        del self.firsts[:passed]
        del self.lasts[:passed]
        if self.firsts and self.firsts[0] < mark:
            self.firsts[0] = int(mark)

    def remove(self, spans: "Spans") -> None:
        """Remove what `spans` name, in one pass over both."""
        firsts: list[int] = []
        lasts: list[int] = []
        place: i64 = 0
        count: i64 = len(spans.firsts)
        for index in range(len(self.firsts)):
            first = self.firsts[index]
            last = self.lasts[index]
            while place < count and spans.lasts[place] < first:
                place += 1
            while place < count and spans.firsts[place] <= last:
                if first < spans.firsts[place]:
                    firsts.append(first)
                    lasts.append(spans.firsts[place] - 1)
                first = spans.lasts[place] + 1
                if first > last:
                    break
                place += 1
            if first <= last:
                firsts.append(first)
                lasts.append(last)
        self.firsts = firsts
        self.lasts = lasts

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
    """The intersection of a peer's ranges with the existing counts: in order, without overlaps.

    Ranges may be much larger than that, or overlap. To look up many keys, use `has`; if `is_small`, looking up each
    count of `numbers` is cheaper.
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
