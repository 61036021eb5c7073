"""What pages ask for again and again, kept for moments: who looks each second costs a few hundredths of a core."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from waybill.backend.fetcher import Fetcher
from waybill.ojs.client import Jobs
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.queue_times import QueueTimes
from waybill.ojs.spec.states import State

SHARE: Final = 60.0
"""How many times as long as it takes to count is counted again at the earliest."""
QUICK_SECONDS: Final = 0.005
"""What takes no longer than this is fresh each time."""
TIMES_SECONDS: Final = 5.0
PAUSED_SECONDS: Final = 10.0
MOST_KEPT: Final = 10_000

ByState = dict[str, int]


class Asked(Protocol):
    """A backend, as far as it is asked."""

    jobs: Jobs
    fetcher: Fetcher

    @property
    def view(self) -> JobView:
        """What is known of jobs."""

    async def counts(self) -> dict[tuple[str, str], int]:
        """Return how many jobs there are by queue and state."""


class Counted:
    """How many jobs there are, at a moment."""

    def __init__(self, counts: Mapping[tuple[str, str], int]) -> None:
        self.by_queue: dict[str, ByState] = {}
        self.total: ByState = {state.value: 0 for state in State}
        for (queue, state), count in counts.items():
            self.by_queue.setdefault(queue, {})[state] = count
            self.total[state] = self.total.get(state, 0) + count
        waiting = State.AVAILABLE.value
        self.fullest = sorted(self.by_queue, key=lambda name: (-self.by_queue[name].get(waiting, 0), name))
        """The queues, that with the most jobs that wait first."""

    def within(self, prefix: str) -> Counted:
        """Return what is in queues whose names begin so."""
        if not prefix:
            return self
        own = ((queue, one) for queue, one in self.by_queue.items() if queue.startswith(prefix))
        return Counted({(queue, state): count for queue, one in own for state, count in one.items()})


class OperatorView:
    """Counts and times of one backend."""

    def __init__(self, backend: Asked, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._backend = backend
        self._clock = clock
        self._counted = Counted({})
        self._counted_until = 0.0
        self._times: dict[tuple[str, int], tuple[float, QueueTimes]] = {}
        self._paused: dict[str, tuple[float, bool]] = {}
        self._pauses_heard = 0

    async def counted(self) -> Counted:
        """Return how many jobs there are by queue and state."""
        began = self._clock()
        if began >= self._counted_until:
            self._counted = Counted(await self._backend.counts())
            now = self._clock()
            self._counted_until = now + SHARE * max(0.0, now - began - QUICK_SECONDS)
        return self._counted

    async def times(self, names: Sequence[str], last: int) -> dict[str, QueueTimes]:
        """Return the times of some queues, by their `last` completed jobs."""
        now = self._clock()
        missing = [name for name in names if self._times.get((name, last), (0.0,))[0] <= now]
        if missing:
            if len(self._times) > MOST_KEPT:
                self._times = {key: self._times[key] for key in ((name, last) for name in names) if key in self._times}
            found = await self._backend.view.read(functools.partial(_times, missing, last))
            ended = self._clock()
            kept_for = max(TIMES_SECONDS if len(names) > 1 and last else 0.0, SHARE * (ended - now - QUICK_SECONDS))
            self._times |= {(name, last): (ended + kept_for, one) for name, one in found.items()}
        return {name: self._times[name, last][1] for name in names}

    async def paused(self, names: Sequence[str]) -> list[bool]:
        """Say of each queue whether it is paused: the broker is asked again when anybody has paused or resumed one."""
        now, heard = self._clock(), self._backend.fetcher.pauses_heard
        if heard != self._pauses_heard or len(self._paused) > MOST_KEPT:
            self._pauses_heard, self._paused = heard, {}
        missing = [name for name in names if self._paused.get(name, (0.0,))[0] <= now]
        found = await asyncio.gather(*map(self._backend.jobs.is_paused, missing))
        self._paused |= {name: (now + PAUSED_SECONDS, one) for name, one in zip(missing, found, strict=True)}
        return [self._paused[name][1] for name in names]


def _times(names: Sequence[str], last: int, store: JobStore) -> dict[str, QueueTimes]:
    return {name: store.times(name, last) for name in names}
