"""How much was done when: the counts of jobs once a minute, for a day, and the differences between them.

The counts are the coordinator's view, so they tell of all programs. A server knows them from its start on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from waybill.backend.job_form import Form
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_unix_time

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
KEPT: Final = 24 * 60 + 1
PERIODS: Final = {"1m": 1, "5m": 5, "1h": 60, "1d": 24 * 60}

Counts = Mapping[tuple[str, str], int]


class Sample(NamedTuple):
    """Jobs at a moment, by queue: all that ever were, those that are completed, those that have failed for good."""

    at: float
    queues: dict[str, tuple[int, int, int]]


class Rate(NamedTuple):
    """What has ended within `seconds`, about an hour at most."""

    completed: int
    failed: int
    seconds: float


class History:
    """The samples of one server."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives Unix time."""
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    def add(self, counts: Counts) -> None:
        """Take a sample, unless the last is younger than a minute."""
        now = self._clock()
        if not self._samples or now - self._samples[-1].at >= MINUTE:
            self._samples.append(_sample(now, counts))

    def throughput(self, counts: Counts, queue: str | None = None) -> Form:
        """Return how many jobs ended a minute, lately."""
        now = self._clock()
        before = next((one for one in self._samples if one.at >= now - 5 * MINUTE - 1), None)
        if before is None or now - before.at < 1:
            return {"processed_per_minute": 0.0, "failed_per_minute": 0.0, "enqueued_per_minute": 0.0}
        enqueued, processed, failed = _difference(before, _sample(now, counts), queue)
        minutes = (now - before.at) / MINUTE
        return {
            "processed_per_minute": round(processed / minutes, 2),
            "failed_per_minute": round(failed / minutes, 2),
            "enqueued_per_minute": round(enqueued / minutes, 2),
        }

    def rate(self, queue: str, counts: Counts) -> Rate:
        """Return what has ended since the start of this server or for an hour; `counts` are those of now."""
        now = self._clock()
        before = next((one for one in self._samples if one.at >= now - HOUR - MINUTE), None)
        if before is None:
            return Rate(0, 0, 1.0)
        _, completed, failed = _difference(before, _sample(now, counts), queue)
        return Rate(completed, failed, max(now - before.at, 1.0))

    def periods(self, minutes: int, since: float, until: float, queue: str | None) -> list[Form]:
        """Return what was done in each period between two moments, the oldest first."""
        found: list[Form] = []
        samples = [one for one in self._samples if since - minutes * MINUTE <= one.at <= until]
        for before, after in zip(samples[::minutes], samples[minutes::minutes], strict=False):
            enqueued, processed, failed = _difference(before, after, queue)
            found.append(
                {
                    "timestamp": format_unix_time(before.at),
                    "enqueued": enqueued,
                    "processed": processed,
                    "failed": failed,
                }
            )
        return found


def _sample(now: float, counts: Counts) -> Sample:
    queues: dict[str, tuple[int, int, int]] = {}
    for (queue, state), count in counts.items():
        total, completed, discarded = queues.get(queue, (0, 0, 0))
        completed += count if state == State.COMPLETED.value else 0
        discarded += count if state == State.DISCARDED.value else 0
        queues[queue] = (total + count, completed, discarded)
    return Sample(now, queues)


def _difference(before: Sample, after: Sample, queue: str | None) -> tuple[int, int, int]:
    """Return how many jobs were enqueued, completed and discarded. What was forgotten meanwhile does not count."""
    names = {queue} if queue is not None else set(after.queues)
    zero = (0, 0, 0)
    pairs = [(before.queues.get(name, zero), after.queues.get(name, zero)) for name in names]
    enqueued, processed, failed = (sum(max(0, new[i] - old[i]) for old, new in pairs) for i in range(3))
    return enqueued, processed, failed
