"""Deadlines of the model. The node asks for the earliest one and fires what is due; nothing here reads a clock."""

import heapq

from mypy_extensions import i64


class Timer:
    """Something with a deadline. It may be scheduled at several times at once and must check what is really due."""

    def fire(self, now: float) -> None:
        """`now` has reached a time at which this timer was scheduled."""
        raise NotImplementedError


class Timers:
    """A queue of deadlines, earliest first, in the order of scheduling among equals."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._count: i64 = 0

    def schedule(self, at: float, timer: Timer) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, timer))

    def next_deadline(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> Timer | None:
        """Take out the first timer that is due."""
        heap = self._heap
        return heapq.heappop(heap)[2] if heap and heap[0][0] <= now else None
