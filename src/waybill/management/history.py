"""Samples of counters at regular intervals, from which rates are computed.

A series stores a row of numbers only when one of them has changed, so idle objects take no memory. It has up to three
levels. Each is coarser than the one before, and reaches back further:

    level       step      kept for
    0           5 s       10 minutes
    1           60 s      2 hours
    2           600 s     1 day

Sample times are multiples of the step in Unix time, so a history continues after a restart.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

Row = tuple[int, ...]
Indexes = tuple[int, ...]


class Level(NamedTuple):
    """The step in seconds, and how many steps are kept."""

    step: int
    times: int


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
        """Add a row. `moment` is a multiple of `SAMPLE_SECONDS`, and no earlier than the newest row."""
        if row == self.last:
            return
        self.last = row
        for level, (times, rows) in zip(self._levels, self._rows, strict=True):
            at = moment - moment % level.step
            if times and times[-1] == at:
                rows[-1] = row
                continue
            times.append(at)
            rows.append(row)
            # Remove old rows, except the last one before the oldest time: it still applied then. A removal shifts all
            # other rows, so it is not done at each call.
            gone = bisect_right(times, at - level.step * level.times) - 1
            if gone > len(times) // 4:
                del times[:gone]
                del rows[:gone]

    def at(self, moment: int, level: int = 0) -> Row | None:
        """Return the row that applied at a time; None before the first row."""
        times, rows = self._rows[level]
        index = bisect_right(times, moment) - 1
        return rows[index] if index >= 0 else None

    def rate(self, indexes: Indexes, now: int) -> float:
        """Return the growth per second of the sum of some numbers between the last two samples."""
        before = self.at(now - SAMPLE_SECONDS)
        if before is None or not self.last:
            return 0.0
        return (_sum(self.last, indexes) - _sum(before, indexes)) / SAMPLE_SECONDS

    def samples(self, indexes: Indexes, now: int, age: int, step: int) -> list[dict[str, int]]:
        """Return a sum of numbers for each step of the last `age` seconds, the newest first. Timestamps are in ms.

        The sum is 0 before the object existed. Samples that are no longer kept are left out.
        """
        level = self._level_of(age)
        times = self._rows[level][0]
        kept_for = self._levels[level].step * self._levels[level].times
        is_whole = not times or times[0] > times[-1] - kept_for
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
            if age <= level.step * level.times:
                return index
        return len(self._levels) - 1

    def newest(self) -> int:
        """Return the time of the newest row, 0 if there is none."""
        times = self._rows[0][0]
        return times[-1] if times else 0

    # --- saved across restarts ---

    def packed(self) -> list[tuple[list[int], list[Row]]]:
        """Return the times and rows of each level, to save them."""
        return [(list(times), list(rows)) for times, rows in self._rows]

    @classmethod
    def restored(cls, levels: tuple[Level, ...], packed: list[tuple[list[int], list[Row]]], size: int) -> Series | None:
        """Restore a saved series; None if it is damaged, or has other levels or row lengths."""
        if len(packed) != len(levels):
            return None
        series = cls(levels)
        for (times, rows), (into_times, into_rows) in zip(packed, series._rows, strict=True):
            if len(times) != len(rows) or times != sorted(times) or any(len(row) != size for row in rows):
                return None
            into_times.extend(times)
            into_rows.extend(rows)
        if series._rows[0][1]:
            series.last = series._rows[0][1][-1]
        return series


EMPTY: Final = Series(MINUTE)
"""The history of an object that has none: its counters were always 0."""


def _sum(row: Row, indexes: Indexes) -> int:
    return row[indexes[0]] if len(indexes) == 1 else sum(row[index] for index in indexes)
