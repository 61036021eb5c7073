"""How long the last jobs of a queue waited and ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

PERCENTILES: Final = (50, 95, 99)


class Times(NamedTuple):
    """The times of one completed job."""

    enqueued_at: str | None
    scheduled_at: str | None
    started_at: str | None
    ended_at: str | None


class QueueTimes(NamedTuple):
    """When the oldest waiting job was enqueued, and the 50th, 95th and 99th percentiles of the last jobs' times."""

    oldest_at: str | None
    wait_ms: tuple[int, ...] | None
    run_ms: tuple[int, ...] | None


def times_of(oldest_at: str | None, jobs: Iterable[Times]) -> QueueTimes:
    """Return the times of a queue."""
    waits, runs = [], []
    for job in jobs:
        started = _moment(job.started_at)
        ended = _moment(job.ended_at)
        ready = _moment(max(job.enqueued_at or "", job.scheduled_at or ""))
        if started is not None and ended is not None:
            runs.append((ended - started).total_seconds() * 1000)
        if started is not None and ready is not None:
            waits.append((started - ready).total_seconds() * 1000)
    return QueueTimes(oldest_at, _percentiles(waits), _percentiles(runs))


def _percentiles(values: Sequence[float]) -> tuple[int, ...] | None:
    if not values:
        return None
    ordered = sorted(values)
    return tuple(max(0, round(ordered[min(len(ordered) - 1, len(ordered) * one // 100)])) for one in PERCENTILES)


def _moment(text: str | None) -> datetime | None:
    """Parse a time; events of foreign producers may contain anything."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
