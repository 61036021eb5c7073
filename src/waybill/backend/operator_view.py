"""Caches the data that pages poll, so that polling each second is cheap."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from waybill.backend.fetcher import Fetcher
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.pauses import paused_among
from waybill.ojs.coordinator.failure_group import FailureGroup, Hours
from waybill.ojs.coordinator.job_counts import JobCounts
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.queue_times import QueueTimes
from waybill.ojs.spec.states import State

TIMES_SECONDS: Final = 5.0
"""How long the times of queues are shown although more jobs have ended."""
TIMED_AT_ONCE: Final = 5
"""Queues whose times are read before others get at the store: each takes a look at thousands of jobs."""
PAUSED_SECONDS: Final = 10.0
FAILURES_SECONDS: Final = 5.0
"""How long failure groups are shown without new failures: the details of an error may still change."""
MOST_LISTS: Final = 100
MOST_KEPT: Final = 10_000


class ViewedBackend(Protocol):
    """The part of a backend that is used here."""

    fetcher: Fetcher

    @property
    def broker(self) -> BrokerConnection:
        """The connection to the broker."""

    @property
    def view(self) -> JobView:
        """The view of jobs."""

    async def job_counts(self) -> JobCounts:
        """Return the number of jobs by queue and state."""


class Failures(NamedTuple):
    """Failure groups, the latest first, and the failed jobs of each by hour."""

    groups: list[FailureGroup]
    hours: dict[str, Hours]


class _CachedTimes(NamedTuple):
    """Cached times of a queue: the version of its counts, and the expiry after a change."""

    version: int
    until: float
    times: QueueTimes


class OperatorView:
    """Counts and times of one backend."""

    def __init__(self, backend: ViewedBackend, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._backend = backend
        self._clock = clock
        self._times: dict[tuple[str, int], _CachedTimes] = {}
        self._paused: dict[str, tuple[float, bool]] = {}
        self._pause_count = 0
        self._failures: dict[tuple[int, str], tuple[int, float, Failures]] = {}

    async def counted(self) -> JobCounts:
        """Return the number of jobs by queue and state."""
        return await self._backend.job_counts()

    async def times(self, names: Sequence[str], last: int) -> dict[str, QueueTimes]:
        """Return the times of some queues, by their `last` completed jobs."""
        counts, now = await self.counted(), self._clock()
        versions = {name: counts.version_of(name) for name in names}
        missing = [name for name in names if not self._is_fresh(name, last, versions[name], now)]
        if missing:
            if len(self._times) > MOST_KEPT:
                self._times = {key: self._times[key] for key in ((name, last) for name in names) if key in self._times}
            found: dict[str, QueueTimes] = {}
            for start in range(0, len(missing), TIMED_AT_ONCE):
                some = missing[start : start + TIMED_AT_ONCE]
                found |= await self._backend.view.read(functools.partial(_times, some, last))
            until = self._clock() + TIMES_SECONDS if len(names) > 1 and last else 0.0
            self._times |= {(name, last): _CachedTimes(versions[name], until, one) for name, one in found.items()}
        return {name: self._times[name, last].times for name in names}

    def _is_fresh(self, name: str, last: int, version: int, now: float) -> bool:
        kept = self._times.get((name, last))
        return kept is not None and (kept.version == version or now < kept.until)

    async def failures(self, limit: int, prefix: str) -> Failures:
        """Return the failure groups of queues whose names begin with a prefix."""
        version, now = (await self.counted()).version_of_state(State.DISCARDED.value), self._clock()
        kept = self._failures.get((limit, prefix))
        if kept is not None and kept[0] == version and now < kept[1]:
            return kept[2]
        found = await self._backend.view.read(functools.partial(_failures, limit, prefix))
        if len(self._failures) >= MOST_LISTS:
            self._failures.clear()
        self._failures[limit, prefix] = version, self._clock() + FAILURES_SECONDS, found
        return found

    async def paused(self, names: Sequence[str]) -> list[bool]:
        """Return whether each queue is paused. The broker is asked again after any pause or resumption."""
        now, heard = self._clock(), self._backend.fetcher.pause_count
        if heard != self._pause_count or len(self._paused) > MOST_KEPT:
            self._pause_count, self._paused = heard, {}
        missing = [name for name in names if self._paused.get(name, (0.0,))[0] <= now]
        paused = await paused_among(self._backend.broker, missing)
        self._paused |= {name: (now + PAUSED_SECONDS, name in paused) for name in missing}
        return [self._paused[name][1] for name in names]


def _times(names: Sequence[str], last: int, store: JobStore) -> dict[str, QueueTimes]:
    return {name: store.times(name, last) for name in names}


def _failures(limit: int, prefix: str, store: JobStore) -> Failures:
    groups = store.failures(limit, prefix)
    return Failures(groups, store.failure_hours([one.fingerprint for one in groups]))
