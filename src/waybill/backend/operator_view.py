"""What pages ask for again and again, kept for moments: who looks each second costs a few hundredths of a core."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Final

from waybill.backend.backend import Backend
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.queue_times import QueueTimes

SHARE: Final = 40.0
"""How many times as long as it takes to count is counted again at the earliest."""
TIMES_SECONDS: Final = 5.0
MOST_KEPT: Final = 10_000

Counts = dict[tuple[str, str], int]


class OperatorView:
    """Counts and times of one backend."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._backend = backend
        self._clock = clock
        self._counts: Counts = {}
        self._counts_until = 0.0
        self._times: dict[tuple[str, int], tuple[float, QueueTimes]] = {}

    async def counts(self) -> Counts:
        """Return how many jobs there are by queue and state."""
        began = self._clock()
        if began >= self._counts_until:
            self._counts = await self._backend.counts()
            now = self._clock()
            # What takes a millisecond or two is fresh each time.
            self._counts_until = now + SHARE * max(0.0, now - began - 0.005)
        return self._counts

    async def times(self, names: Sequence[str], last: int) -> dict[str, QueueTimes]:
        """Return the times of some queues, by their `last` completed jobs."""
        now = self._clock()
        missing = [name for name in names if self._times.get((name, last), (0.0,))[0] <= now]
        if missing:
            if len(self._times) > MOST_KEPT:
                self._times.clear()
            found = await self._backend.view.read(functools.partial(_times, missing, last))
            kept_for = TIMES_SECONDS if len(names) > 1 and last else 0.0
            self._times |= {(name, last): (now + kept_for, one) for name, one in found.items()}
        return {name: self._times[name, last][1] for name in names}


def _times(names: Sequence[str], last: int, store: JobStore) -> dict[str, QueueTimes]:
    return {name: store.times(name, last) for name in names}
