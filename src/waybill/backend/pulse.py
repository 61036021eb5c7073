"""How many jobs were enqueued, completed and lost in the last hour, a sample every few seconds.

The counts are the coordinator's view, so they tell of all programs. A server knows them from its start on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from waybill.ojs.spec.states import State

STEP_SECONDS: Final = 5.0
KEPT: Final = 721
RATE_SECONDS: Final = 60.0
POINTS: Final = 60

Counts = Mapping[tuple[str, str], int]


class Beat(NamedTuple):
    """Jobs at a moment: all that ever were, those that are completed, those that have failed for good."""

    at: float
    enqueued: int
    completed: int
    failed: int


class Pulse:
    """The samples of one server."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives Unix time."""
        self._clock = clock
        self._beats: deque[Beat] = deque(maxlen=KEPT)

    def add(self, counts: Counts) -> None:
        """Take a sample."""
        self._beats.append(_beat(self._clock(), counts))

    def rates(self, counts: Counts) -> dict[str, float]:
        """Return what happened a second, within the last minute; `counts` are those of now."""
        now = self._clock()
        before = next((one for one in self._beats if one.at >= now - RATE_SECONDS), None)
        if before is None or now - before.at < 1:
            return {"enqueued": 0.0, "completed": 0.0, "failed": 0.0}
        beat = _beat(now, counts)
        passed = now - before.at
        return {name: round(max(0, getattr(beat, name) - getattr(before, name)) / passed, 2) for name in _NAMES}

    def series(self, seconds: float) -> dict[str, object]:
        """Return what happened in each step of the last `seconds`, the oldest first; None is before the start."""
        step = max(STEP_SECONDS, seconds / POINTS)
        begin = self._clock() - step * POINTS
        found: dict[str, list[int | None]] = {name: [None] * POINTS for name in _NAMES}
        for before, after in zip(self._beats, list(self._beats)[1:], strict=False):
            index = int((after.at - begin) / step)
            if 0 <= index < POINTS:
                for name in _NAMES:
                    change = max(0, getattr(after, name) - getattr(before, name))
                    found[name][index] = (found[name][index] or 0) + change
        return {"step_seconds": step, **found}


_NAMES: Final = ("enqueued", "completed", "failed")


def _beat(now: float, counts: Counts) -> Beat:
    completed = sum(count for (_, state), count in counts.items() if state == State.COMPLETED.value)
    failed = sum(count for (_, state), count in counts.items() if state == State.DISCARDED.value)
    return Beat(now, sum(counts.values()), completed, failed)
