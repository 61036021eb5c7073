"""Request types of the OpenAPI document.

The routes also accept other forms that clients send; this is the form of the specification.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

JobType = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$", max_length=255)]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=256)]
Queue = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=128)]
JobId = Annotated[str, Meta(description="A lower-case UUIDv7.", max_length=255)]
WorkerId = Annotated[str, Meta(max_length=255)]
Priority = Annotated[int, Meta(ge=-100, le=100)]
Milliseconds = Annotated[int, Meta(ge=1)]
Seconds = Annotated[int, Meta(ge=1, le=315_360_000)]
Time = Annotated[str, Meta(description="RFC 3339, or a duration from now such as +PT30S.")]
Duration = Annotated[str, Meta(description="ISO 8601, such as PT1M30S.")]
Weight = Annotated[float, Meta(gt=0, le=1000)]
Strategy = Literal["strict", "round-robin", "weighted", "least-loaded"]


class RetryPolicy(msgspec.Struct):
    """When a failed job is retried."""

    max_attempts: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    initial_interval: Duration | UnsetType = UNSET
    backoff_coefficient: Annotated[float, Meta(ge=1)] | UnsetType = UNSET
    max_interval: Duration | UnsetType = UNSET
    jitter: bool | UnsetType = UNSET
    non_retryable_errors: list[str] | UnsetType = UNSET


class UniquePolicy(msgspec.Struct):
    """Which jobs are duplicates, and how they are handled."""

    keys: list[str] | UnsetType = UNSET
    period: Duration | UnsetType = UNSET
    states: list[str] | UnsetType = UNSET
    on_conflict: str | UnsetType = UNSET


class JobOptions(msgspec.Struct):
    """Where and when a job runs."""

    queue: Queue | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    timeout_ms: Milliseconds | UnsetType = UNSET
    visibility_timeout_ms: Milliseconds | UnsetType = UNSET
    scheduled_at: Time | UnsetType = UNSET
    delay_until: Time | UnsetType = UNSET
    expires_at: Time | UnsetType = UNSET
    retry: RetryPolicy | UnsetType = UNSET
    unique: UniquePolicy | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    total_timeout: Seconds | UnsetType = UNSET
    enqueue_ttl: Seconds | UnsetType = UNSET
    heartbeat_timeout: Seconds | UnsetType = UNSET
    grace_period: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class NewJob(msgspec.Struct):
    """A job to enqueue. Options may also be top-level fields."""

    type: JobType
    args: list[Any]
    id: JobId | UnsetType = UNSET
    meta: dict[str, Any] | UnsetType = UNSET
    schema: str | UnsetType = UNSET
    options: JobOptions | UnsetType = UNSET


class NewJobs(msgspec.Struct):
    """A batch of jobs to enqueue."""

    jobs: Annotated[list[NewJob], Meta(min_length=1, max_length=1000)]


class NewBulk(NewJobs):
    """Jobs to enqueue independently of each other. `idempotency_key` is used without the header Idempotency-Key."""

    atomicity: Literal["atomic", "partial"] | UnsetType = UNSET
    idempotency_key: IdempotencyKey | UnsetType = UNSET


class EnqueueRate(msgspec.Struct):
    """The maximum number of jobs to enqueue in a period."""

    limit: Annotated[int, Meta(ge=0)]
    period: Duration


class TenantLimits(msgspec.Struct):
    """Limits of a tenant; null means no limit."""

    max_concurrency: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_queue_depth: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_scheduled: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    max_enqueue_rate: EnqueueRate | UnsetType | None = UNSET
    reason: str | UnsetType = UNSET


class NewTenant(msgspec.Struct):
    """The settings of a tenant."""

    limits: TenantLimits | UnsetType = UNSET
    fairness_weight: Weight | UnsetType = UNSET


class StarvationPrevention(msgspec.Struct):
    """The guaranteed share of each queue of a pool."""

    enabled: bool | UnsetType = UNSET
    rotation_interval: Duration | UnsetType = UNSET
    min_dispatch_ratio: Annotated[float, Meta(gt=0, le=1)] | UnsetType = UNSET


class NewPool(msgspec.Struct):
    """A pool of workers: its queues, and how they share its fetches."""

    queues: Annotated[list[Queue], Meta(min_length=1, max_length=100)]
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType | None = UNSET
    strategy: Strategy | UnsetType = UNSET
    weights: dict[str, Weight] | UnsetType | None = UNSET
    isolated: bool | UnsetType = UNSET
    starvation_prevention: StarvationPrevention | UnsetType | None = UNSET


class Maintenance(msgspec.Struct):
    """The maintenance state to set."""

    enabled: bool
    reason: Annotated[str, Meta(max_length=1000)] | UnsetType = UNSET
    estimated_duration: Duration | UnsetType = UNSET


class LogRecord(msgspec.Struct):
    """A log record of a worker (ojs-logging section 5)."""

    message: Annotated[str, Meta(max_length=8192)]
    severity: str | UnsetType = UNSET
    timestamp: Annotated[str, Meta(description="RFC 3339.")] | UnsetType = UNSET
    category: str | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET


class NewLogs(msgspec.Struct):
    """Log records of a job."""

    entries: Annotated[list[LogRecord], Meta(min_length=1, max_length=100)]


class Payload(msgspec.Struct):
    """Encoded data in base64, and its metadata."""

    data: str
    metadata: dict[str, str] | UnsetType = UNSET


class Payloads(msgspec.Struct):
    """Payloads to encode or decode."""

    payloads: Annotated[list[Payload], Meta(max_length=1000)]


class Handled(msgspec.Struct):
    """The versions of a job type that a worker supports: "*", "2.0" or ">=1.0 <3.0"."""

    type: JobType
    versions: str | UnsetType = UNSET


class Fetch(msgspec.Struct):
    """A worker's request for jobs."""

    queues: Annotated[list[Queue], Meta(min_length=1, max_length=100)] | UnsetType = UNSET
    pool: Annotated[str, Meta(min_length=1, max_length=128)] | UnsetType = UNSET
    strategy: Strategy | UnsetType = UNSET
    weights: dict[str, Weight] | UnsetType = UNSET
    handlers: list[Handled] | UnsetType = UNSET
    count: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    worker_id: WorkerId | UnsetType = UNSET
    visibility_timeout_ms: Milliseconds | UnsetType = UNSET
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] | UnsetType = UNSET


class Ack(msgspec.Struct):
    """A completed job."""

    job_id: JobId
    worker_id: WorkerId | UnsetType = UNSET
    result: Any = None


class FailureReport(msgspec.Struct):
    """The error of an attempt."""

    message: str
    code: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    details: dict[str, Any] | UnsetType = UNSET
    backtrace: list[str] | UnsetType = UNSET


class Nack(msgspec.Struct):
    """A failed job, or, with `requeue`, one that its worker returns."""

    job_id: JobId
    error: FailureReport | UnsetType = UNSET
    worker_id: WorkerId | UnsetType = UNSET
    requeue: bool | UnsetType = UNSET


class Beat(msgspec.Struct):
    """A heartbeat of a worker with its running jobs."""

    worker_id: WorkerId
    active_jobs: list[JobId] | UnsetType = UNSET
    visibility_timeout_ms: Milliseconds | UnsetType = UNSET


class JobTemplate(msgspec.Struct):
    """The template of a cron job's jobs."""

    type: JobType
    args: list[Any] | UnsetType = UNSET
    meta: dict[str, Any] | UnsetType = UNSET
    options: JobOptions | UnsetType = UNSET


class NewCron(msgspec.Struct):
    """A cron job to register."""

    name: Annotated[str, Meta(max_length=255)]
    expression: str
    job_template: JobTemplate
    timezone: str | UnsetType = UNSET
    overlap_policy: str | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    description: str | UnsetType = UNSET


class JobIds(msgspec.Struct):
    """Jobs by their ids."""

    ids: Annotated[list[JobId], Meta(max_length=1000)]


class Filter(msgspec.Struct):
    """A filter of jobs."""

    queue: Queue | UnsetType = UNSET
    state: list[str] | str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    since: Time | UnsetType = UNSET
    until: Time | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    meta: dict[str, Any] | UnsetType = UNSET


class Bulk(msgspec.Struct):
    """Jobs by ids or by a filter."""

    job_ids: Annotated[list[JobId], Meta(min_length=1, max_length=1000)] | UnsetType = UNSET
    filter: Filter | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET
    confirm: bool | UnsetType = UNSET
    atomicity: Literal["atomic", "partial"] | UnsetType = UNSET
    idempotency_key: IdempotencyKey | UnsetType = UNSET


class Backpressure(msgspec.Struct):
    """The maximum number and size of jobs; 0 means no limit."""

    max_depth: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    max_size_bytes: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    strategy: Literal["reject", "block", "drop_oldest"] | UnsetType = UNSET
    warning_threshold: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


class QueuePurge(msgspec.Struct):
    """The states of the jobs to remove, and the latest time of their end."""

    states: Annotated[list[str], Meta(min_length=1)]
    confirm: bool | UnsetType = UNSET
    older_than: Time | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


class QueueConfig(msgspec.Struct):
    """The settings of a queue; those that are not given stay, and null removes one."""

    backpressure: Backpressure | UnsetType = UNSET
    max_size: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    max_size_bytes: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    overflow_policy: Literal["reject", "block", "drop_oldest"] | UnsetType = UNSET
    concurrency: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    rate_limit: dict[str, Any] | UnsetType | None = UNSET
    retention: dict[str, str] | UnsetType | None = UNSET
    visibility_timeout: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    default_timeout: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    default_retry: RetryPolicy | UnsetType | None = UNSET
    allowed_job_types: list[str] | UnsetType | None = UNSET
    dead_letter_ttl: str | UnsetType | None = UNSET
    dead_letter_max_size: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    dead_letter_queue: Queue | UnsetType | None = UNSET
    producers: list[str] | UnsetType | None = UNSET


class VersionRule(msgspec.Struct):
    """The share of a version among the jobs of a type."""

    version: Annotated[str, Meta(pattern=r"^[0-9]{1,6}(\.[0-9]{1,6}){0,2}$")]
    weight: Annotated[int, Meta(ge=0, le=1_000_000)] | UnsetType = UNSET


class VersionRules(msgspec.Struct):
    """The versions to which the jobs of a type go."""

    rules: Annotated[list[VersionRule], Meta(min_length=1, max_length=100)]


class QueueDeletion(msgspec.Struct):
    """What becomes of the jobs of a queue that is deleted; `move` needs a `target_queue`."""

    strategy: Literal["reject", "discard", "move"] | UnsetType = UNSET
    target_queue: Queue | UnsetType = UNSET


class NewPriority(msgspec.Struct):
    """The priority of a job."""

    priority: Priority


class NewPriorities(msgspec.Struct):
    """The priority of jobs, by ids or by a filter."""

    priority: Priority
    job_ids: Annotated[list[JobId], Meta(min_length=1, max_length=1000)] | UnsetType = UNSET
    filter: Filter | UnsetType = UNSET


class WorkerDirective(msgspec.Struct):
    """A directive for one worker, for several, or for all that the server knows."""

    directive: Literal["quiet", "terminate", "running", "resume", "continue"]
    worker_id: str | UnsetType = UNSET
    worker_ids: list[str] | UnsetType = UNSET


class Progress(msgspec.Struct):
    """The progress of a job: at least one of `progress` and `data`."""

    progress: float | UnsetType = UNSET
    message: str | UnsetType = UNSET
    data: dict[str, Any] | UnsetType = UNSET
    checkpoint: Any = UNSET
    worker_id: WorkerId | UnsetType = UNSET


class NewCheckpoint(msgspec.Struct):
    """The checkpoint for the next attempt. A `sequence` must be above that of the last checkpoint."""

    state: Any
    sequence: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    worker_id: WorkerId | UnsetType = UNSET


class NewSchema(msgspec.Struct):
    """A version of a schema to register. Jobs can name it by its `uri`."""

    job_type: JobType
    version: (
        Annotated[str, Meta(pattern=r"^[0-9]{1,5}\.[0-9]{1,5}(\.[0-9]{1,5})?(-[0-9A-Za-z.-]{1,64})?$")]
        | Annotated[int, Meta(ge=0, le=99999)]
    )
    schema: dict[str, Any]
    uri: (
        Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9+.-]{0,31}:[A-Za-z0-9._~:?#@!$&'()*+,;=%\[\]-]{1,255}$")]
        | UnsetType
    ) = UNSET
    mode: Literal["strict", "warn", "off"] | UnsetType = UNSET


class SchemaMode(msgspec.Struct):
    """How strictly arguments are validated."""

    mode: Literal["strict", "warn", "off"]


class EventFilter(msgspec.Struct):
    """A filter of events."""

    queues: list[str] | UnsetType = UNSET
    job_types: list[str] | UnsetType = UNSET


class Subscription(msgspec.Struct):
    """A changed subscription."""

    url: str | UnsetType = UNSET
    events: Annotated[list[str], Meta(min_length=1, max_length=100)] | UnsetType = UNSET
    filter: EventFilter | UnsetType = UNSET
    active: bool | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class NewSubscription(msgspec.Struct):
    """A new subscription."""

    url: str
    events: Annotated[list[str], Meta(min_length=1, max_length=100)]
    filter: EventFilter | UnsetType = UNSET
    active: bool | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class NewOperation(msgspec.Struct):
    """A bulk operation: a filter, the action, and the maximum rate per second."""

    action: Literal["cancel", "retry", "discard"]
    filter: dict[str, Any]
    rate_per_second: Annotated[float, Meta(ge=0, le=100_000)] | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


class TypeDefaults(msgspec.Struct):
    """The defaults for jobs of a type that are pushed over HTTP."""

    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    timeout_seconds: Annotated[int, Meta(ge=1, le=604_800)] | UnsetType = UNSET
    evidence: Annotated[str, Meta(max_length=1000)] | UnsetType = UNSET
