"""The recently fetched jobs of each queue, and their waits (ojs-fair-scheduling section 10.2)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

WINDOW_SECONDS: Final = 60.0
MAX_QUEUES: Final = 10_000
OTHER: Final = "_other"
"""Further queues count in the totals only."""

Key = tuple[str, str]
"""A queue and a pool; "" means no pool."""


class Dispatches:
    """Counts by queue and pool: totals since the start of the server, and counts of the last seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds."""
        self.totals: Counter[Key] = Counter()
        self.keep_seconds = WINDOW_SECONDS
        """The longest window."""
        self._clock = clock
        self._seconds: deque[tuple[int, Counter[Key], Counter[str]]] = deque()

    def add(self, queue: str, pool: str, waits_ms: Sequence[int]) -> None:
        """Count jobs that were fetched so long after they became available."""
        second = int(self._clock())
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter(), Counter()))
            while self._seconds[0][0] < second - self.keep_seconds:
                self._seconds.popleft()
        _, counts, waits = self._seconds[-1]
        counts[queue, pool] += len(waits_ms)
        waits[queue] += sum(waits_ms)
        is_known = (queue, pool) in self.totals or len(self.totals) < MAX_QUEUES
        self.totals[(queue, pool) if is_known else (OTHER, "")] += len(waits_ms)

    def of_pool(self, pool: str, seconds: float) -> Counter[str]:
        """Count the jobs of a pool's workers within the last `seconds`, by queue."""
        found: Counter[str] = Counter()
        for counts, _ in self._since(seconds):
            for (queue, of_pool), count in counts.items():
                if of_pool == pool:
                    found[queue] += count
        return found

    def by_queue(self, seconds: float = WINDOW_SECONDS) -> dict[str, tuple[int, float]]:
        """Return how many jobs of each queue were fetched within the last `seconds`, and their mean wait in ms."""
        jobs: Counter[str] = Counter()
        waited: Counter[str] = Counter()
        for counts, waits in self._since(seconds):
            waited += waits
            for (queue, _), count in counts.items():
                jobs[queue] += count
        return {queue: (count, waited[queue] / count) for queue, count in jobs.items()}

    def _since(self, seconds: float) -> list[tuple[Counter[Key], Counter[str]]]:
        first = self._clock() - seconds
        return [(counts, waits) for second, counts, waits in self._seconds if second > first]
