"""Events about limits, full queues and bulk operations, most of them of servers over HTTP."""

from __future__ import annotations

from typing import Final

from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.operator_events import OPERATOR_EVENT_TYPES
from waybill.ojs.spec.rate_limit_events import RateLimitAdjusted, RateLimitDropped, RateLimitExceeded, RateLimitReleased
from waybill.ojs.spec.record_events import RecordPut, RecordRemoved
from waybill.ojs.spec.timeout_events import TIMEOUT_EVENT_TYPES


class QueuePressure(EventData, frozen=True, kw_only=True):
    """How full a queue is (ojs-backpressure section 10.1). The subject of these events is the queue."""

    queue: str
    depth: int
    bound: int


class BackpressureWarning(QueuePressure, frozen=True, kw_only=True):
    """A queue is nearly full."""


class BackpressureCleared(QueuePressure, frozen=True, kw_only=True):
    """A queue that was nearly full has room again."""


class BackpressureRejected(QueuePressure, frozen=True, kw_only=True):
    """A push was refused, because its queue is full; at most one event a second for each queue and server."""

    job_type: str


class BackpressureDropped(EventData, frozen=True, kw_only=True):
    """A job was discarded to make room for newer ones."""

    queue: str
    job_id: str
    job_type: str


class BulkEnqueued(EventData, frozen=True, kw_only=True):
    """A bulk enqueue has ended (ojs-bulk-operations section 12.1). The subject of these events is the request."""

    total: int
    succeeded: int
    failed: int
    atomicity: str


class BulkCancelled(EventData, frozen=True, kw_only=True):
    """A bulk cancel has ended."""

    total: int
    cancelled: int
    skipped: int


class BulkRetried(EventData, frozen=True, kw_only=True):
    """A bulk retry has ended."""

    total: int
    retried: int
    skipped: int


class JobDeleted(EventData, frozen=True, kw_only=True):
    """A job that has ended is to be forgotten. An event of ours."""

    job_type: str
    queue: str


class DeadLetterPruned(EventData, frozen=True, kw_only=True):
    """Dead letters of a queue, the subject, were deleted by its retention (ojs-dead-letter section 11.1)."""

    queue: str
    count: int


class DeadLetterChanged(EventData, frozen=True, kw_only=True):
    """What is told of a dead letter, which is the subject."""

    queue: str
    job_id: str


class DeadLetterRetried(DeadLetterChanged, frozen=True, kw_only=True):
    """An operator has retried a dead letter."""


class DeadLetterDeleted(DeadLetterChanged, frozen=True, kw_only=True):
    """An operator has deleted a dead letter."""


class BulkDeleted(EventData, frozen=True, kw_only=True):
    """A bulk delete has ended."""

    total: int
    deleted: int
    skipped: int


SERVER_EVENT_TYPES: Final[dict[type[EventData], str]] = {
    RateLimitExceeded: "rate_limit.exceeded",
    RateLimitReleased: "rate_limit.released",
    RateLimitDropped: "rate_limit.dropped",
    RateLimitAdjusted: "rate_limit.dynamic_adjusted",
    BackpressureWarning: "backpressure.warning",
    BackpressureCleared: "backpressure.cleared",
    BackpressureRejected: "backpressure.rejected",
    BackpressureDropped: "backpressure.dropped",
    BulkEnqueued: "bulk.enqueue.completed",
    BulkCancelled: "bulk.cancel.completed",
    BulkRetried: "bulk.retry.completed",
    JobDeleted: "job.deleted",
    DeadLetterPruned: "dead_letter.pruned",
    DeadLetterRetried: "dead_letter.retried",
    DeadLetterDeleted: "dead_letter.deleted",
    BulkDeleted: "bulk.delete.completed",
    RecordPut: "record.put",
    RecordRemoved: "record.removed",
    **TIMEOUT_EVENT_TYPES,
    **OPERATOR_EVENT_TYPES,
}
