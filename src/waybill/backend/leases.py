"""Leases of fetched jobs: the worker and the end of each, and what happens without heartbeats.

A lease is an unacknowledged delivery. If this backend dies, its connection closes, and the broker redelivers its jobs.
While it lives, no job is delivered twice, and a lease ends in one of these ways:

    ack, nack                              the worker's outcome
    no heartbeat for its visibility        the next attempt, immediately
    none for its heartbeat timeout         the next attempt, after the delay of the policy
    the attempt takes longer than allowed  the next attempt, after the delay of the policy
    the job takes longer than allowed      no further attempt
    cancelled                              no further attempt
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Final

from waybill.backend.job_size import SMALL_BYTES, size_of
from waybill.client import Delivery
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.errors import ResponseCode
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.envelope import MIN_VISIBILITY_SECONDS, seconds_of
from waybill.ojs.spec.nesting import shown
from waybill.ojs.spec.timeouts import EXECUTION, STALLED, TOTAL, Overrun, total_end
from waybill.ojs.worker.execution import Execution, Failure, lost_failure
from waybill.ojs.worker.settlement import Settlement

DEFAULT_VISIBILITY_SECONDS: Final = 1800.0
MAX_VISIBILITY_SECONDS: Final = 7 * 86400.0
STARTED: Final = "job.started"
LEASED_MEMORY: Final = 64 * 1024 * 1024
"""The memory of leased jobs, about, from which on no more are fetched, unless a setting says otherwise."""
FULL_SECONDS: Final = 60.0
"""How often the log tells that no more are fetched."""

_log = logging.getLogger("waybill.backend")


class Lease:
    """A worker's lease of one attempt. Times are those of the loop's clock."""

    def __init__(self, execution: Execution, worker_id: str, started_at: str, visibility_seconds: float) -> None:
        self.execution = execution
        self.worker_id = worker_id
        self.started_at = started_at
        self.visibility_seconds = visibility_seconds
        self.heartbeat_seconds = float(seconds_of(execution.envelope.heartbeat_timeout))
        """The job's own limit of the time between heartbeats, 0 if it has none."""
        self.visible_until = execution.started + self.silence_seconds
        self.total_until = float("inf")
        """When the time of all attempts is over."""
        self.timer: asyncio.TimerHandle | None = None
        self.size = size_of(execution.delivery.body)
        self.opened: bytes | None = None
        """The JSON of a small job as the worker got it, up to its fields for workers (see `open_text`)."""
        self.is_known = False
        """Whether the view has applied the start of the attempt."""
        self.on_known: Callable[[], None] | None = None
        """Called when the view has applied it."""

    @property
    def is_small(self) -> bool:
        """Whether its job takes so little memory that what was made of it may be kept."""
        return len(self.execution.delivery.body) <= SMALL_BYTES

    @property
    def silence_seconds(self) -> float:
        """How long the worker may be silent."""
        return min(self.visibility_seconds, self.heartbeat_seconds or self.visibility_seconds)

    @property
    def ends_at(self) -> float:
        """When the lease expires."""
        return min(self.visible_until, self.execution.deadline, self.total_until)

    def exceeded(self, now: float) -> Overrun:
        """Return which limit has ended the lease."""
        execution = self.execution
        elapsed = now - execution.started
        if self.total_until <= now:
            total = seconds_of(execution.envelope.total_timeout)
            return Overrun(TOTAL, total, total + now - self.total_until)
        if execution.deadline <= now:
            return Overrun(EXECUTION, execution.envelope.timeout_seconds, elapsed)
        return Overrun(STALLED, self.silence_seconds, now - self.visible_until + self.silence_seconds)

    def begun(self, _job: object) -> None:
        """Record that the view has applied the start of the attempt."""
        self.is_known = True
        if self.on_known is not None:
            self.on_known()


class Leases:
    """The leases of one backend."""

    def __init__(
        self,
        events: EventWriter,
        view: JobView,
        settlement: Settlement,
        backend_id: str,
        on_end: Callable[[Execution], None],
        memory: int = LEASED_MEMORY,
    ) -> None:
        """`backend_id` stands for workers without a name. `on_end` is called with each attempt whose lease has ended.

        No more jobs are fetched while those that are leased take more than `memory` bytes, about.
        """
        self._on_end = on_end
        self._events = events
        self._view = view
        self._settlement = settlement
        self._backend_id = backend_id
        self._leases: dict[str, Lease] = {}
        self.size = 0
        """The memory of all leased jobs, about."""
        self.memory = memory
        self._told_at = float("-inf")
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._leases)

    def is_full(self, arriving: int = 0) -> bool:
        """Whether the leased jobs, with those of `arriving` bytes, take so much memory that no more may be fetched."""
        return self.size + arriving > self.memory

    def tell_full(self) -> None:
        """Log that workers get no jobs for want of memory, from time to time."""
        if (now := self._loop.time()) >= self._told_at + FULL_SECONDS:
            self._told_at = now
            _log.warning(
                "workers have %d jobs of this server, which take about %d MiB, and get no more until some have ended:"
                " http.leased_memory is the limit, and further servers of the same broker take further jobs",
                len(self._leases),
                self.size >> 20,
            )

    def get(self, job_id: str) -> Lease | None:
        """Return the lease of a job, None if this backend has not leased it."""
        return self._leases.get(job_id)

    def begin(self, execution: Execution, worker_id: str, visibility_seconds: float | None) -> Lease:
        """Lease a job to a worker."""
        envelope = execution.envelope
        execution.started = self._loop.time()
        execution.deadline = execution.started + envelope.timeout_seconds
        if envelope.grace_period is not None:
            execution.deadline += seconds_of(envelope.grace_period)
        execution.began_at = self._events.timestamp()
        lease = Lease(execution, worker_id, execution.began_at, _visibility(execution, visibility_seconds))
        if envelope.total_timeout is not None and (end := total_end(envelope)) is not None:
            lease.total_until = execution.started + (end - datetime.now(UTC)).total_seconds()
        self._leases[envelope.id] = lease
        self.size += lease.size
        self._view.expectations.tell((STARTED, envelope.id), lease.begun)
        self._events.record_started(
            envelope.id,
            lease.started_at,
            envelope.type,
            execution.queue,
            execution.attempt,
            worker_id or self._backend_id,
            execution.run,
        )
        self._watch(envelope.id, lease)
        return lease

    def holds(self, execution: Execution, delivery: Delivery) -> bool:
        """Whether a delivery belongs to an attempt that is already leased; if so, it is handled here.

        It replaces the delivery of a lost connection. While that one is valid, it is a duplicate.
        """
        lease = self._leases.get(execution.envelope.id)
        if lease is None or lease.execution.key != execution.key:
            return False
        if lease.execution.delivery.is_current:
            self._settlement.refused(execution.queue, delivery)
        else:
            lease.execution.delivery = delivery
        return True

    def end(self, job_id: str) -> Lease | None:
        """Remove and return a lease, to settle its job; None if there is none."""
        lease = self._leases.pop(job_id, None)
        if lease is not None:
            self.size -= lease.size
            self._on_end(lease.execution)
            if lease.timer is not None:
                lease.timer.cancel()
        return lease

    def extend(self, job_id: str, worker_id: str, visibility_seconds: float | None) -> Lease | None:
        """Extend the lease of a worker from now on; None if it has none on this job."""
        lease = self._leases.get(job_id)
        if lease is None or (worker_id and lease.worker_id and worker_id != lease.worker_id):
            return None
        if visibility_seconds is not None:
            lease.visibility_seconds = _clamped(visibility_seconds)
        lease.visible_until = self._loop.time() + lease.silence_seconds
        self._watch(job_id, lease)
        return lease

    def cancel(self, job_id: str) -> None:
        """End the lease of a cancelled job."""
        lease = self.end(job_id)
        if lease is not None:
            self._settlement.cancelled(lease.execution)

    def of_worker(self, worker_id: str) -> list[Lease]:
        """Return the leases of a worker."""
        return [lease for lease in self._leases.values() if lease.worker_id == worker_id]

    def count_of(self, worker_ids: Collection[str]) -> int:
        """Return the total number of jobs of some workers."""
        return sum(lease.worker_id in worker_ids for lease in self._leases.values())

    def expire(self, lease: Lease) -> None:
        """End a lease as if its worker had sent no heartbeats."""
        if self.end(lease.execution.envelope.id) is lease:
            self._expire(lease, None)

    def give_back_all(self) -> None:
        """Requeue all leased jobs at shutdown. Their workers may still be running them."""
        for job_id in list(self._leases):
            lease = self.end(job_id)
            if lease is not None:
                self._expire(lease, None)

    def _watch(self, job_id: str, lease: Lease) -> None:
        # An extended lease keeps its timer, which checks again: heartbeats are frequent, and ends are rare.
        if lease.timer is None or lease.timer.when() > lease.ends_at:
            if lease.timer is not None:
                lease.timer.cancel()
            lease.timer = self._loop.call_at(lease.ends_at, self._check, job_id, lease)

    def _check(self, job_id: str, lease: Lease) -> None:
        lease.timer = None
        if self._leases.get(job_id) is not lease:
            return
        now = self._loop.time()
        if now < lease.ends_at:
            self._watch(job_id, lease)
            return
        self.end(job_id)
        self._expire(lease, lease.exceeded(now))

    def _expire(self, lease: Lease, limit: Overrun | None) -> None:
        """End an attempt that exceeded a limit, or that its worker or server has given up."""
        execution = lease.execution
        now = self._events.timestamp()
        duration = self._loop.time() - execution.started
        job_id = shown(execution.envelope.id)
        try:
            if limit is None or (limit.kind == STALLED and not lease.heartbeat_seconds):
                _log.warning("no heartbeat for job %s from worker %s", job_id, shown(lease.worker_id))
                failure = lost_failure(execution.attempt, now, limit)
                self._settlement.failed(execution, failure, duration, delay=0.0)
                return
            _log.warning("job %s exceeded a time limit: %s of %g s", job_id, limit.kind, limit.limit_seconds)
            response = ResponseCode.DEAD_LETTER if limit.kind == TOTAL else ResponseCode.RETRY
            self._settlement.failed(execution, Failure(limit.error(execution.attempt, now), response), duration)
        except Exception as error:  # noqa: BLE001 - a delivery must not stay unsettled
            self._settlement.abandon(execution.delivery, execution.queue, error)


def _visibility(execution: Execution, asked_seconds: float | None) -> float:
    """Return how long a worker may be silent: from its request, else from the job, else the default."""
    if asked_seconds is not None:
        return _clamped(asked_seconds)
    envelope = execution.envelope
    if envelope.visibility_timeout or envelope.visibility_timeout_ms:
        return _clamped(envelope.visibility_seconds)
    return DEFAULT_VISIBILITY_SECONDS


def _clamped(seconds: float) -> float:
    return min(max(seconds, MIN_VISIBILITY_SECONDS), MAX_VISIBILITY_SECONDS)
