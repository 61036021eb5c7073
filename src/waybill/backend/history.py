"""The history of throughput: differences between counts of jobs, for a day.

The counts come from the coordinator's view, so they include all programs. A server takes a sample once a minute, and
whenever a request needs the counts anyway. Samples and steps contain only changed queues, so idle queues take no time
and no memory. If many queues change all the time, the oldest steps keep only the sums.

`history_records` saves finished minutes, so a new server knows the history.

A step also has percentiles of how long the last jobs of its busiest queues waited, which the caller looks up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import takewhile
from typing import Final, NamedTuple

from waybill.backend.job_form import Form
from waybill.ojs.coordinator.job_counts import JobCounts
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_unix_time

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
SAMPLE_SECONDS: Final = MINUTE
STEP_SECONDS: Final = 15.0
"""Samples within this time are one step."""
LEAST_SECONDS: Final = 1.0
MOST_CHANGES: Final = 100_000
"""The maximum number of changes of single queues: about 20 MB."""
POINTS: Final = 60
PERIODS: Final = {"1m": 1, "5m": 5, "1h": 60, "1d": 24 * 60}
NAMES: Final = ("enqueued", "completed", "failed")

Done = tuple[int, int, int]
"""The numbers of enqueued, completed and finally failed jobs."""
_NOTHING: Final = (0, 0, 0)
Wait = tuple[int, int]
"""The 50th and the 99th percentile of how many milliseconds jobs waited."""
MOST_TIMED: Final = 20
"""The number of queues of a step whose waits are looked up."""


class Rate(NamedTuple):
    """The jobs that ended within `seconds`, about an hour at most."""

    completed: int
    failed: int
    seconds: float


class HistoryStep:
    """The changes between two moments."""

    __slots__ = ("begin", "end", "queues", "total", "waits")

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.end = begin
        self.total: Done = _NOTHING
        self.queues: dict[str, Done] = {}
        self.waits: dict[str, Wait] = {}

    def add(self, queue: str, done: Done) -> bool:
        """Add the changes of a queue; returns whether it is new in this step."""
        before = self.queues.get(queue)
        self.queues[queue] = done if before is None else _sum((before, done))
        self.total = _sum((self.total, done))
        return before is None

    def add_all(self, step: HistoryStep) -> None:
        """Add another step; old steps have no queues."""
        for queue, done in step.queues.items():
            self.queues[queue] = _sum((self.queues.get(queue, _NOTHING), done))
        self.total = _sum((self.total, step.total))
        self.waits |= step.waits

    def of(self, queue: str | None) -> Done:
        """Return the changes of a queue, or of all for None."""
        return self.total if queue is None else self.queues.get(queue, _NOTHING)


class History:
    """The steps of one server."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns the Unix time."""
        self._clock = clock
        self._steps: deque[HistoryStep] = deque()
        self._known: dict[str, Done] = {}
        """The totals of each queue, as of `_version` of the counts."""
        self._version = -1
        self._at = 0.0
        self._changes = 0
        self._is_cut = False
        """Whether the last step is closed, even if it is short."""

    def add(self, counts: JobCounts, *, is_last: bool = False) -> None:
        """Take a sample, unless the last one is younger than a second. The counts are the same object each time.

        The last sample of a process (`is_last`) is always taken.
        """
        now = self._clock()
        if self._version < 0:
            self._known = {queue: _done(own) for queue, own in counts.by_queue.items()}
            self._version, self._at = counts.version, now
        if now - self._at < LEAST_SECONDS and not is_last:
            return
        step = self._steps[-1] if self._steps else None
        if step is None or self._is_cut or now - step.begin > STEP_SECONDS:
            step = HistoryStep(self._at)
            self._steps.append(step)
            self._is_cut = False
        for queue in counts.changed_since(self._version):
            done = _done(counts.by_queue.get(queue, {}))
            if (old := self._known.get(queue, _NOTHING)) != done:
                self._changes += step.add(queue, _change(old, done))
                self._known[queue] = done
        step.end = self._at = now
        self._version = counts.version
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._steps and self._steps[0].end < now - DAY:
            self._changes -= len(self._steps.popleft().queues)
        for step in self._steps:
            if self._changes <= MOST_CHANGES:
                break
            self._changes -= len(step.queues)
            step.queues, step.waits = {}, {}

    # --- waits ---

    def untimed(self) -> list[str]:
        """Return the queues of the last step of which jobs have completed, without waits: the busiest ones."""
        step = self._steps[-1] if self._steps else None
        found = {} if step is None else {queue: done[1] for queue, done in step.queues.items() if done[1]}
        busiest = nlargest(MOST_TIMED, found, key=found.__getitem__)
        return [] if step is None else [queue for queue in busiest if queue not in step.waits]

    def time(self, waits: Mapping[str, Wait]) -> None:
        """Add waits of queues to the last step."""
        if self._steps:
            self._steps[-1].waits |= waits

    # --- other records ---

    def cut(self, since: int) -> dict[int, list[HistoryStep]]:
        """Return the finished steps by minute since 1970, from `since` on."""
        self._is_cut = True
        found: dict[int, list[HistoryStep]] = {}
        for step in [*takewhile(lambda step: step.end >= since * MINUTE, reversed(self._steps))][::-1]:
            found.setdefault(int(step.end // MINUTE), []).append(step)
        return found

    @property
    def oldest(self) -> float | None:
        """When the history begins, as a Unix time."""
        return self._steps[0].begin if self._steps else None

    def within(self, begin: float, end: float) -> list[HistoryStep]:
        """Return the steps that ended within a time."""
        return [step for step in self._steps if begin <= step.end < end]

    def restore(self, steps: Iterable[HistoryStep]) -> None:
        """Load saved steps, oldest first. Must be called before the first sample."""
        now = self._clock()
        self._steps = deque(step for step in steps if step.begin <= step.end <= now)
        self._changes = sum(len(step.queues) for step in self._steps)
        self._is_cut = True
        self._forget(now)

    # --- queries ---

    def rates(self, tenant_prefix: str = "") -> dict[str, float]:
        """Return the rates per second of the last one or two minutes."""
        now = self._clock()
        steps = self._since(now - 2 * MINUTE)
        passed = now - steps[0].begin if steps else 0.0
        done = _sum(_within(step, tenant_prefix) for step in steps)
        return {name: round(one / passed, 2) if passed else 0.0 for name, one in zip(NAMES, done, strict=True)}

    def series(self, seconds: float, tenant_prefix: str = "", queue: str | None = None) -> dict[str, object]:
        """Return the changes in equal parts of the last `seconds`, oldest first; None where unknown.

        For a queue, or for all whose names begin with `tenant_prefix`.
        """
        width = max(MINUTE, seconds / POINTS)
        points = max(1, int(seconds / width))
        begin = self._clock() - width * points
        found: dict[str, list[int | None]] = {name: [None] * points for name in NAMES}
        for step in takewhile(lambda step: step.end >= begin, reversed(self._steps)):
            index = min(int((step.end - begin) / width), points - 1)
            done = _within(step, tenant_prefix) if queue is None else step.of(queue)
            for name, change in zip(NAMES, done, strict=True):
                found[name][index] = (found[name][index] or 0) + change
        return {"step_seconds": width, **found}

    def done(self, seconds: float, queues: Collection[str]) -> Done:
        """Return the changes of some queues in the last `seconds`, as far as they are known."""
        begin = self._clock() - seconds
        steps = takewhile(lambda step: step.end >= begin, reversed(self._steps))
        return _sum(step.queues[queue] for step in steps if step.queues for queue in queues if queue in step.queues)

    def throughput(self, queue: str | None = None) -> Form:
        """Return how many jobs of a queue, or of all, ended per minute in the last five minutes."""
        now = self._clock()
        steps = self._since(now - 5 * MINUTE - 1)
        minutes = (now - steps[0].begin) / MINUTE if steps else 0.0
        enqueued, processed, failed = (
            round(one / minutes, 2) if minutes else 0.0 for one in _sum(step.of(queue) for step in steps)
        )
        return {"processed_per_minute": processed, "failed_per_minute": failed, "enqueued_per_minute": enqueued}

    def rate(self, queue: str, counts: JobCounts) -> Rate:
        """Return the jobs that ended within the last hour; `counts` are the current counts."""
        return self._rate(queue, counts, self._clock() - HOUR - MINUTE)

    def today(self, queue: str, counts: JobCounts) -> Rate:
        """Return the jobs that ended since midnight in UTC; `counts` are the current counts."""
        now = self._clock()
        return self._rate(queue, counts, now - now % DAY)

    def _rate(self, queue: str, counts: JobCounts, since: float) -> Rate:
        steps = self._since(since)
        unsampled = _NOTHING
        if self._version >= 0:
            unsampled = _change(self._known.get(queue, _NOTHING), _done(counts.by_queue.get(queue, {})))
        _, completed, failed = _sum([*(step.of(queue) for step in steps), unsampled])
        return Rate(completed, failed, max(self._clock() - steps[0].begin, 1.0) if steps else 1.0)

    def periods(
        self, minutes: int, since: float, until: float, queue: str | None, older: Sequence[HistoryStep] = ()
    ) -> list[Form]:
        """Return the changes in each period between two moments, oldest first; the last one may still go on.

        `older` are steps that began before those of this history.
        """
        width = minutes * MINUTE
        first = older[-1].end if older else 0.0
        known = [*older, *(step for step in self._steps if step.end > first)]
        steps = [step for step in known if since - width <= step.begin and step.end <= until]
        found: list[Form] = []
        while steps:
            begin = steps[0].begin
            count = next((index for index, step in enumerate(steps) if step.end > begin + width), len(steps)) or 1
            done = _sum(step.of(queue) for step in steps[:count])
            names = ("enqueued", "processed", "failed")
            counted: Form = dict(zip(names, done, strict=True))
            found.append({"timestamp": format_unix_time(begin), **counted, **_latency(steps[:count], queue)})
            del steps[:count]
        return found

    def _since(self, moment: float) -> list[HistoryStep]:
        """Return the steps that begin at a moment or later, oldest first."""
        return [*takewhile(lambda step: step.begin >= moment, reversed(self._steps))][::-1]


def _latency(steps: Iterable[HistoryStep], queue: str | None) -> Form:
    """Return the percentiles of a queue, or of all: each sample counts for the jobs that completed in its step."""
    samples = [
        (wait, step.queues.get(name, _NOTHING)[1])
        for step in steps
        for name, wait in step.waits.items()
        if queue in {None, name}
    ]
    return {
        f"latency_p{percent}_ms": _weighted([(wait[index], count) for wait, count in samples], percent)
        for index, percent in enumerate((50, 99))
    }


def _weighted(samples: list[tuple[int, int]], percent: int) -> int:
    """Return the least value that is not exceeded by this percentage of the jobs; 0 without jobs."""
    left = sum(count for _, count in samples) * percent / 100
    for value, count in sorted(samples):
        left -= count
        if left <= 0:
            return value
    return 0


def _change(before: Done, after: Done) -> Done:
    return max(0, after[0] - before[0]), max(0, after[1] - before[1]), max(0, after[2] - before[2])


def _done(own: Mapping[str, int]) -> Done:
    """Return the totals of a queue: enqueued, completed and finally failed jobs."""
    return sum(own.values()), own.get(State.COMPLETED.value, 0), own.get(State.DISCARDED.value, 0)


def _within(step: HistoryStep, prefix: str) -> Done:
    """Return the changes of queues whose names begin with a prefix."""
    if not prefix:
        return step.total
    return _sum(done for queue, done in step.queues.items() if queue.startswith(prefix))


def _sum(parts: Iterable[Done]) -> Done:
    enqueued = completed = failed = 0
    for one in parts:
        enqueued += one[0]
        completed += one[1]
        failed += one[2]
    return enqueued, completed, failed
