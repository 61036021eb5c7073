"""How many jobs of each queue have ended lately: the counts of the view, looked at from time to time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, NamedTuple

from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.spec.states import State

LOOK_SECONDS: Final = 30.0
HOUR: Final = 3600.0

Counts = dict[tuple[str, str], int]


class Rate(NamedTuple):
    """What has ended within `seconds`, an hour at most."""

    completed: int
    failed: int
    seconds: float


class Throughput:
    """The rates of all queues, since the start of this backend or for an hour."""

    def __init__(self, view: JobView) -> None:
        """Nothing is counted before `run`."""
        self._view = view
        self._seen: deque[tuple[float, Counts]] = deque()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            self._note(await self._view.read(lambda store: store.counts()))
            await asyncio.sleep(LOOK_SECONDS)

    def rate(self, queue: str, counts: Counts) -> Rate:
        """Return what has ended lately; `counts` are those of now."""
        if not self._seen:
            return Rate(0, 0, 1.0)
        then, before = self._seen[0]
        completed, failed = (
            max(0, counts.get((queue, state.value), 0) - before.get((queue, state.value), 0))
            for state in (State.COMPLETED, State.DISCARDED)
        )
        return Rate(completed, failed, max(time.monotonic() - then, 1.0))

    def _note(self, counts: Counts) -> None:
        now = time.monotonic()
        ended = {State.COMPLETED.value, State.DISCARDED.value}
        self._seen.append((now, {key: count for key, count in counts.items() if key[1] in ended}))
        while len(self._seen) > 1 and self._seen[1][0] <= now - HOUR:
            self._seen.popleft()
