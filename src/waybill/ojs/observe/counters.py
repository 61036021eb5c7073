"""Plain counters of a session's messages, from which metrics are computed on request."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Final

LATENCY_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DURATION_BOUNDS: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0)


class Histogram:
    """How many values, in seconds, were at most as large as each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


class Counters:
    """Counters of one session. Those by queue have OJS queues as keys; `events` stands for the event stream."""

    def __init__(self) -> None:
        self.published: Counter[str] = Counter()
        self.consumed: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()
        self.nacked: Counter[str] = Counter()
        self.unacked: Counter[str] = Counter()
        self.pushed: Counter[str] = Counter()
        """Pushed jobs that the broker has confirmed."""
        self.refused: Counter[tuple[str, str]] = Counter()
        """Failed pushes, by queue and code."""
        self.push_latency = Histogram(LATENCY_BOUNDS)
        """Durations of pushes, from the first publish of a call to its last confirm."""
        self.returned = 0
        self.skipped: Counter[str] = Counter()
        """Invalid messages, by kind: jobs, events, control messages, results."""
        self.confirm_latency = Histogram(LATENCY_BOUNDS)
        self.durations: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(DURATION_BOUNDS))
        """Durations of attempts by job type."""
