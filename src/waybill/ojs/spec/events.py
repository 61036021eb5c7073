"""Lifecycle events (ojs-events.md): one envelope, and one data type for each kind of event.

An AMQP message of the event stream carries one event, or a JSON array of many; `decode_events` reads both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from waybill.ojs.spec.checkpoint import Checkpoint
from waybill.ojs.spec.cron_events import (
    ClaimAdmitted,
    ClaimCopied,
    ClaimDropped,
    ClaimPushed,
    CronClaimed,
    CronRegistered,
    CronRemoved,
    CronSkipped,
    CronToggled,
    CronTold,
    CronTriggered,
)
from waybill.ojs.spec.event_data import ErrorSummary, EventData
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.nesting import is_nested_deeper, is_too_heavy
from waybill.ojs.spec.pushing_events import WorkflowAbandoned, WorkflowPushing
from waybill.ojs.spec.server_events import SERVER_EVENT_TYPES
from waybill.ojs.spec.stage_events import JobActivated, JobStaged, JobUnstaged
from waybill.ojs.spec.workflow_events import (
    WorkflowCallbackFired,
    WorkflowCancelled,
    WorkflowCompensated,
    WorkflowCompleted,
    WorkflowCreated,
    WorkflowExpired,
    WorkflowFailed,
    WorkflowFollowed,
    WorkflowForgotten,
    WorkflowJobCompleted,
    WorkflowJobFailed,
    WorkflowRetried,
    WorkflowRevived,
    WorkflowSealed,
    WorkflowStarted,
    WorkflowStepCompleted,
    WorkflowStepFailed,
    WorkflowStopped,
)

BATCH_TYPE: Final = "ojs.events"
"""The `type` property of a message that carries a JSON array of events."""


class JobEventData(EventData, frozen=True, kw_only=True):
    """What every job event says."""

    job_type: str
    queue: str


class JobEnqueued(JobEventData, frozen=True, kw_only=True):
    """A job became available in its queue, or will at `scheduled_at`."""

    priority: int | None = None
    scheduled_at: str | None = None
    unique_key: str | None = None
    job: msgspec.Raw | None = None
    """The envelope, if the pusher wants coordinators to show it."""
    run: int | None = None
    """How often its dead letter was retried: it orders the events of a job, as no clock can. In others the same."""


class JobScheduled(JobEventData, frozen=True, kw_only=True):
    """A job was accepted for later, or an attempt begins later: `undoes` is when it had begun, "" if it had not."""

    scheduled_at: str
    undoes: str | None = None


class JobReserved(JobEventData, frozen=True, kw_only=True):
    """A unique job requests its place; the first request in the stream gets it. Not a standard event."""

    unique_key: str
    states: Sequence[str]
    period: str | None = None
    reserved_until: str
    reserved_by: str | None = None


class JobReleased(JobEventData, frozen=True, kw_only=True):
    """A reserved job was never enqueued: its place is free. An event of ours."""


class JobStarted(JobEventData, frozen=True, kw_only=True):
    """A worker began an attempt, counted from 1."""

    worker_id: str
    attempt: int
    run: int | None = None


class JobCompleted(JobEventData, frozen=True, kw_only=True):
    """A handler succeeded. `result` is JSON, `result_error` says why not. `no_more_attempts`: no attempt can follow."""

    duration_ms: int
    attempt: int
    result: msgspec.Raw | None = None
    result_error: ErrorSummary | None = None
    result_expires_at: str | None = None
    no_more_attempts: bool | None = None


class JobFailure(JobEventData, frozen=True, kw_only=True):
    """One attempt failed."""

    attempt: int
    error: ErrorSummary
    duration_ms: int | None = None


class JobRetrying(JobEventData, frozen=True, kw_only=True):
    """The job waits for its next attempt; `attempt` is the one that failed."""

    attempt: int
    max_attempts: int
    next_retry_at: str
    error: ErrorSummary


class JobDiscarded(JobEventData, frozen=True, kw_only=True):
    """The job has finally failed. A dead letter of it may be kept."""

    total_attempts: int
    last_error: ErrorSummary
    dead_letter: bool | None = None
    run: int | None = None


class JobCancellation(JobEventData, frozen=True, kw_only=True):
    """The job was stopped on purpose. `waited`: a worker has dropped its message; it may have been deleted since."""

    cancelled_by: str | None = None
    reason: str | None = None
    waited: bool | None = None
    run: int | None = None


class DeliveredMessage(EventData, frozen=True, kw_only=True):
    """The message of a job, as it was delivered: its encoded property list and its body, both base64 in JSON."""

    properties: bytes
    body: bytes


class JobHeartbeat(JobEventData, frozen=True, kw_only=True):
    """A worker extends its lease of a long job.

    The first heartbeat of an attempt has its visibility timeout, and the message: to replace an attempt that fell
    silent, a coordinator needs the message, because the hung worker still holds the broker's copy.
    """

    worker_id: str
    attempt: int
    visible_until: str
    visibility_ms: int | None = None
    message: DeliveredMessage | None = None


class JobExpired(JobEventData, frozen=True, kw_only=True):
    """The deadline passed before the job could start."""

    created_at: str
    expired_at: str
    ttl_ms: int


class JobProgress(JobEventData, frozen=True, kw_only=True):
    """A running job reports its progress, 0 to 100, and a checkpoint (ojs-progress section 6.4)."""

    worker_id: str
    attempt: int
    progress_percent: float
    progress_message: str | None = None
    progress_data: msgspec.Raw | None = None
    """A JSON object with details of the application's own."""
    checkpoint: Checkpoint | None = None
    checkpoint_removed: bool | None = None
    """The next attempt is to begin from the start."""


class QueuePaused(EventData, frozen=True, kw_only=True):
    """Workers stop fetching from a queue."""

    queue: str
    paused_by: str | None = None


class QueueResumed(EventData, frozen=True, kw_only=True):
    """Workers fetch from a queue again."""

    queue: str
    resumed_by: str | None = None


class ViewMarked(EventData, frozen=True, kw_only=True):
    """An extension: a coordinator that has read it knows all that was written before."""


class WorkerStarted(EventData, frozen=True, kw_only=True):
    """A worker consumes."""

    worker_id: str
    queues: Sequence[str]
    concurrency: int


class WorkerStopped(EventData, frozen=True, kw_only=True):
    """A worker has shut down; `reason` is shutdown, signal or error."""

    worker_id: str
    reason: str
    jobs_completed: int
    uptime_ms: int


class WorkerQuiet(EventData, frozen=True, kw_only=True):
    """A worker accepts no new jobs and finishes the current ones."""

    worker_id: str
    active_jobs: int


class WorkerHeartbeat(EventData, frozen=True, kw_only=True):
    """A worker is alive."""

    worker_id: str
    active_jobs: int
    queues: Sequence[str]
    memory_mb: float | None = None
    cpu_percent: float | None = None


EVENT_TYPES: Final[dict[type[EventData], str]] = {
    JobEnqueued: "job.enqueued",
    JobScheduled: "job.scheduled",
    JobReserved: "job.reserved",
    JobReleased: "job.released",
    JobStarted: "job.started",
    JobCompleted: "job.completed",
    JobFailure: "job.failed",
    JobRetrying: "job.retrying",
    JobDiscarded: "job.discarded",
    JobCancellation: "job.cancelled",
    JobHeartbeat: "job.heartbeat",
    JobExpired: "job.expired",
    JobProgress: "job.progress",
    JobStaged: "job.staged",
    JobActivated: "job.activated",
    JobUnstaged: "job.unstaged",
    QueuePaused: "queue.paused",
    QueueResumed: "queue.resumed",
    ViewMarked: "view.marked",
    WorkerStarted: "worker.started",
    WorkerStopped: "worker.stopped",
    WorkerQuiet: "worker.quiet",
    WorkerHeartbeat: "worker.heartbeat",
    WorkflowCreated: "workflow.created",
    WorkflowSealed: "workflow.sealed",
    WorkflowPushing: "workflow.pushing",
    WorkflowAbandoned: "workflow.abandoned",
    WorkflowStarted: "workflow.started",
    WorkflowStepCompleted: "workflow.step_completed",
    WorkflowStepFailed: "workflow.step_failed",
    WorkflowJobCompleted: "workflow.job_completed",
    WorkflowJobFailed: "workflow.job_failed",
    WorkflowCallbackFired: "workflow.callback_fired",
    WorkflowCompleted: "workflow.completed",
    WorkflowFailed: "workflow.failed",
    WorkflowCompensated: "workflow.compensated",
    ClaimPushed: "claim.pushed",
    ClaimCopied: "claim.copied",
    ClaimDropped: "claim.dropped",
    ClaimAdmitted: "claim.admitted",
    WorkflowCancelled: "workflow.cancelled",
    WorkflowExpired: "workflow.expired",
    WorkflowRetried: "workflow.retried",
    WorkflowStopped: "workflow.stopped",
    WorkflowRevived: "workflow.revived",
    WorkflowFollowed: "workflow.followed",
    WorkflowForgotten: "workflow.forgotten",
    CronTriggered: "cron.triggered",
    CronSkipped: "cron.skipped",
    CronRegistered: "cron.registered",
    CronToggled: "cron.toggled",
    CronRemoved: "cron.removed",
    CronClaimed: "cron.claimed",
    CronTold: "cron.told",
    **SERVER_EVENT_TYPES,
}


class Event(msgspec.Struct, frozen=True):
    """One event. `time` is RFC 3339, `subject` the id of the job, queue, worker, workflow or schedule."""

    id: str
    type: str
    source: str
    time: str
    subject: str
    data: EventData
    specversion: str = "1.0"


class ReceivedEvent(msgspec.Struct, frozen=True):
    """An event read from the stream; `data` is what the producer wrote."""

    id: str
    type: str
    source: str
    time: str
    subject: str = ""
    data: dict[str, object] = msgspec.field(default_factory=dict)
    specversion: str = "1.0"
    user: str | None = msgspec.field(default=None, name="waybill-user")
    """Who has published it, as the broker says. Whatever the JSON says, `event_fold` sets it."""


_encoder = msgspec.json.Encoder()
_one_decoder = msgspec.json.Decoder(ReceivedEvent)
_many_decoder = msgspec.json.Decoder(list[ReceivedEvent])
_raw_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def event_source(component: Literal["clients", "workers", "coordinators"], instance: str) -> str:
    """Return the URI that an event's `source` is, `ojs://{service}/{component}/{instance}` (ojs-events section 2.4)."""
    return f"ojs://waybill/{component}/{quote(instance, safe='')}"


def make_event(source: str, time: str, subject: str, data: EventData, event_id: str | None = None) -> Event:
    """Wrap event data into its envelope with a unique id, a new one of `evt_` and a UUIDv7 unless it is given."""
    return Event(event_id or "evt_" + new_id(), EVENT_TYPES[type(data)], source, time, subject, data)


def encode_event(event: Event) -> str:
    """Return an event as JSON."""
    return _encoder.encode(event).decode()


def encode_events(events: Sequence[Event]) -> tuple[str, bytes]:
    """Return the `type` property and the body of the message that carries these events."""
    if len(events) == 1:
        return events[0].type, _encoder.encode(events[0])
    return BATCH_TYPE, _encoder.encode(events)


def join_events(event_type: str, events: Sequence[str]) -> tuple[str, bytes]:
    """Do the same for events that are JSON already; `event_type` is that of the first, BATCH_TYPE if it is several."""
    if len(events) == 1 and event_type != BATCH_TYPE:
        return event_type, events[0].encode()
    return BATCH_TYPE, f"[{','.join(events)}]".encode()


def read_events(body: bytes) -> tuple[list[ReceivedEvent], int]:
    """Read the events of any message; also returns how many of them are invalid.

    A message may come from anyone with write access to the events exchange: an invalid event does not hide others.
    """
    if is_too_heavy(body):
        return [], 1
    try:
        events = decode_events(body)
        if not is_nested_deeper(body):
            return events, 0
    except Exception:  # noqa: BLE001 - no body may raise anything
        events = []
    try:
        parts: list[bytes] = [bytes(part) for part in _raw_decoder.decode(body)] if body[:1] == b"[" else [body]
    except Exception:  # noqa: BLE001 - see above
        return [], 1
    events, skipped = [], 0
    for part in parts:
        try:
            event = _one_decoder.decode(part)
        except Exception:  # noqa: BLE001 - see above
            skipped += 1
            continue
        if is_nested_deeper(part):
            skipped += 1
        else:
            events.append(event)
    return events, skipped


def decode_events(body: bytes) -> list[ReceivedEvent]:
    """Decode the message of one event or of many. Raises msgspec.DecodeError if it is neither."""
    return _many_decoder.decode(body) if body[:1] == b"[" else [_one_decoder.decode(body)]
