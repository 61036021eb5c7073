"""Samples of counters at regular moments, from which rates are computed.

A series keeps a row of numbers for each moment at which one of them had changed: idle objects take no memory.
There are three levels, each coarser and longer than the one before:

    level       step      kept for
    0           5 s       10 minutes
    1           60 s      2 hours
    2           600 s     1 day

Moments are multiples of the step in Unix time, so a history continues after a restart.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

Row = tuple[int, ...]
Indexes = tuple[int, ...]


class Level(NamedTuple):
    """The step in seconds, and how many steps are kept."""

    step: int
    moments: int


SAMPLE_SECONDS: Final = 5
DAY: Final = (Level(5, 121), Level(60, 121), Level(600, 145))
HOURS: Final = DAY[:2]
MINUTES: Final = DAY[:1]
MINUTE: Final = (Level(5, 13),)


class Series:
    """The history of one object. All rows have the same length."""

    __slots__ = ("_levels", "_rows", "last")

    def __init__(self, levels: tuple[Level, ...]) -> None:
        self.last: Row = ()
        """The newest row."""
        self._levels = levels
        self._rows: list[tuple[list[int], list[Row]]] = [([], []) for _ in levels]

    def add(self, moment: int, row: Row) -> None:
        """Add the row of a moment, a multiple of `SAMPLE_SECONDS`, no earlier than the newest row."""
        if row == self.last:
            return
        self.last = row
        for level, (moments, rows) in zip(self._levels, self._rows, strict=True):
            at = moment - moment % level.step
            if moments and moments[-1] == at:
                rows[-1] = row
                continue
            moments.append(at)
            rows.append(row)
            # Remove old rows except the one in force at the edge; not each time, as that moves all others.
            gone = bisect_right(moments, at - level.step * level.moments) - 1
            if gone > len(moments) // 4:
                del moments[:gone]
                del rows[:gone]

    def at(self, moment: int, level: int = 0) -> Row | None:
        """Return the row that was in force at a moment; None before the first."""
        moments, rows = self._rows[level]
        index = bisect_right(moments, moment) - 1
        return rows[index] if index >= 0 else None

    def rate(self, indexes: Indexes, now: int) -> float:
        """Return the growth per second of the sum of some numbers between the last two samples."""
        before = self.at(now - SAMPLE_SECONDS)
        if before is None or not self.last:
            return 0.0
        return (_sum(self.last, indexes) - _sum(before, indexes)) / SAMPLE_SECONDS

    def samples(self, indexes: Indexes, now: int, age: int, step: int) -> list[dict[str, int]]:
        """Return a sum over the last `age` seconds, the newest first, as RabbitMQ does: timestamps in ms.

        The sum is 0 before the object existed. Samples that are no longer kept are left out.
        """
        level = self._level_of(age)
        moments = self._rows[level][0]
        kept_for = self._levels[level].step * self._levels[level].moments
        is_whole = not moments or moments[0] > moments[-1] - kept_for
        end = now - now % step
        found: list[dict[str, int]] = []
        for moment in range(end, end - age - 1, -step):
            row = self.at(moment, level)
            if row is None and not is_whole:
                break
            found.append({"sample": 0 if row is None else _sum(row, indexes), "timestamp": moment * 1000})
        return found

    def _level_of(self, age: int) -> int:
        """Return the finest level that reaches back far enough."""
        for index, level in enumerate(self._levels):
            if age <= level.step * level.moments:
                return index
        return len(self._levels) - 1

    def newest(self) -> int:
        """Return the time of the newest row, 0 if there is none."""
        moments = self._rows[0][0]
        return moments[-1] if moments else 0

    # --- saved across restarts ---

    def packed(self) -> list[tuple[list[int], list[Row]]]:
        """Return the bytes to save."""
        return [(list(moments), list(rows)) for moments, rows in self._rows]

    @classmethod
    def unpacked(cls, levels: tuple[Level, ...], packed: list[tuple[list[int], list[Row]]], size: int) -> Series | None:
        """Read saved bytes; None if they are damaged, or have other levels or row lengths."""
        if len(packed) != len(levels):
            return None
        series = cls(levels)
        for (moments, rows), (into_moments, into_rows) in zip(packed, series._rows, strict=True):
            if len(moments) != len(rows) or moments != sorted(moments) or any(len(row) != size for row in rows):
                return None
            into_moments.extend(moments)
            into_rows.extend(rows)
        if series._rows[0][1]:
            series.last = series._rows[0][1][-1]
        return series


NEVER: Final = Series(MINUTE)
"""The history of an object whose counters were always 0."""


def _sum(row: Row, indexes: Indexes) -> int:
    return row[indexes[0]] if len(indexes) == 1 else sum(row[index] for index in indexes)
