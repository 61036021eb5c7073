"""Events of jobs that exceed a time limit (ojs-timeouts section 11.1)."""

from __future__ import annotations

from typing import Final

from waybill.ojs.spec.event_data import EventData


class TimeoutEvent(EventData, frozen=True, kw_only=True):
    """What is told of it. Times are seconds."""

    job_id: str
    job_type: str
    queue: str
    timeout_kind: str
    limit_seconds: float
    elapsed_seconds: float
    attempt: int


class AttemptTimedOut(TimeoutEvent, frozen=True, kw_only=True):
    """An attempt took longer than its `timeout`."""


class AttemptStalled(TimeoutEvent, frozen=True, kw_only=True):
    """The worker of an attempt sent no heartbeats."""


class EnqueueTtlExpired(TimeoutEvent, frozen=True, kw_only=True):
    """A job did not start within its `enqueue_ttl`."""


class TotalTimeoutExceeded(TimeoutEvent, frozen=True, kw_only=True):
    """A job did not end within its `total_timeout`."""


TIMEOUT_EVENT_TYPES: Final[dict[type[EventData], str]] = {
    AttemptTimedOut: "job.timeout",
    AttemptStalled: "job.stalled",
    EnqueueTtlExpired: "job.ttl_expired",
    TotalTimeoutExceeded: "job.total_timeout",
}
EVENT_OF_KIND: Final[dict[str, type[TimeoutEvent]]] = {
    "execution": AttemptTimedOut,
    "stalled": AttemptStalled,
    "enqueue_ttl": EnqueueTtlExpired,
    "total": TotalTimeoutExceeded,
}
"""The event of each `timeout_kind`."""
