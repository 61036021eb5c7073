"""The set of messages that have arrived: exact in any order, and small, as numbers are mostly consecutive."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

import msgspec

MAX_RUNS: Final = 100
"""No message of a run this many restarts ago is still in transit."""


class Done(msgspec.Struct):
    """Numbers by run, as sorted disjoint ranges of first and last number."""

    runs: dict[str, list[tuple[int, int]]] = {}

    def has(self, run: str, number: int) -> bool:
        """Whether a message has arrived."""
        ranges = self.runs.get(run, [])
        at = bisect_right(ranges, (number, 2**63)) - 1
        return at >= 0 and number <= ranges[at][1]

    def after(self, numbers: Iterable[tuple[str, int]]) -> Done:
        """Return a copy with more messages, each given with its run."""
        runs = {run: list(ranges) for run, ranges in self.runs.items()}
        for run, number in numbers:
            _add(runs.setdefault(run, []), number)
        return Done(dict(list(runs.items())[-MAX_RUNS:]))


def _add(ranges: list[tuple[int, int]], number: int) -> None:
    at = bisect_right(ranges, (number, 2**63))
    first = last = number
    if at and ranges[at - 1][1] >= number - 1:
        at -= 1
        first, last = ranges[at][0], max(ranges[at][1], number)
        del ranges[at]
    if at < len(ranges) and ranges[at][0] <= last + 1:
        last = max(last, ranges[at][1])
        del ranges[at]
    ranges.insert(at, (first, last))
