"""Timers of the model. The node asks for the earliest deadline and fires due timers; nothing here reads a clock."""

import heapq
from typing import Final

from mypy_extensions import i64, mypyc_attr

SWEEP_LENGTH: Final = 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class Timer:
    """A callback. It may be scheduled for several times, and must check whether anything is due."""

    def fire(self, now: float) -> None:
        """`now` has reached a time at which this timer was scheduled."""
        raise NotImplementedError

    def is_stale(self, at: float) -> bool:
        """Whether `fire` would do nothing at `at`, a time at which this timer was scheduled."""
        return False


class Timers:
    """A queue of deadlines, earliest first, in the order of scheduling among equals.

    Cancelled deadlines are not removed one by one: when the queue has doubled its size, all stale ones are dropped
    together. So stale deadlines never take more room than live ones.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._count: i64 = 0
        self._sweep_at: i64 = SWEEP_LENGTH

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, at: float, timer: Timer) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, timer))
        if len(self._heap) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        self._heap[:] = [scheduled for scheduled in self._heap if not scheduled[2].is_stale(scheduled[0])]
        heapq.heapify(self._heap)
        self._sweep_at = max(2 * len(self._heap), SWEEP_LENGTH)

    def next_deadline(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Timer | None:
        """Take out the first timer that is due."""
        heap = self._heap
        return heapq.heappop(heap)[2] if heap and heap[0][0] <= now else None
