"""Response types of the OpenAPI document. Objects may have additional fields."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

Text = str | UnsetType
Number = int | UnsetType


class Error(msgspec.Struct):
    """An error. `code` is specific, `type` is its class; `retryable`: the same request may succeed later."""

    code: str
    type: str
    message: str
    hint: str
    docs_url: str
    request_id: str
    retryable: bool
    details: dict[str, Any]


class ErrorAnswer(msgspec.Struct):
    """An error."""

    error: Error


class Job(msgspec.Struct):
    """A job. `args` is missing if it was pushed over AMQP. `result`, `error` and times are added as they occur."""

    id: str
    type: str
    queue: str
    state: str
    attempt: int
    specversion: Text = UNSET
    args: list[Any] | UnsetType = UNSET
    meta: dict[str, Any] | UnsetType = UNSET
    priority: Number = UNSET
    max_attempts: Number = UNSET
    created_at: Text = UNSET
    enqueued_at: Text = UNSET
    scheduled_at: Text = UNSET
    started_at: Text = UNSET
    completed_at: Text = UNSET
    cancelled_at: Text = UNSET
    discarded_at: Text = UNSET
    next_attempt_at: Text = UNSET
    worker_id: Text = UNSET
    progress: float | UnsetType = UNSET
    result: Any = UNSET
    error: dict[str, Any] | UnsetType = UNSET
    errors: list[dict[str, Any]] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET


class JobAnswer(Job, kw_only=True):
    """A job, flat and under its name."""

    job: Job


class OffsetPagination(msgspec.Struct):
    """The position in a list."""

    limit: int
    has_more: bool
    total: Number = UNSET
    offset: Number = UNSET


class JobList(msgspec.Struct):
    """A page of jobs."""

    jobs: list[Job]
    pagination: OffsetPagination


class JobBatch(msgspec.Struct):
    """The enqueued jobs."""

    jobs: list[Job]
    count: int


class Fetched(msgspec.Struct):
    """The fetched jobs; `job` is the first one."""

    jobs: list[Job]
    job: Job | UnsetType = UNSET


class Ended(msgspec.Struct):
    """The outcome of an attempt."""

    id: str
    job_id: str
    state: str
    attempt: int
    job: dict[str, Any]


class Heard(msgspec.Struct):
    """The directive for a worker, and the jobs whose leases were extended."""

    state: str
    directive: str
    jobs_extended: list[str]
    server_time: str


class QueueState(msgspec.Struct):
    """A queue. `status` is active or paused."""

    name: str
    status: str
    paused: bool


class QueueList(msgspec.Struct):
    """A page of queues."""

    queues: list[QueueState]
    pagination: OffsetPagination


class QueueStats(QueueState, kw_only=True):
    """The number of jobs of a queue, by state."""

    queue: str
    config: dict[str, Any]
    stats: dict[str, Any]
    computed_at: str
    created_at: Text = UNSET


class Latency(msgspec.Struct):
    """How many milliseconds the last completed jobs waited: percentiles."""

    p50: int
    p95: int
    p99: int


class AdminQueue(msgspec.Struct):
    """A queue with counts. `created_at` is missing if no server knows it, `latency_ms` if no job has completed."""

    name: str
    state: str
    paused: bool
    counts: dict[str, int]
    configuration: dict[str, Any]
    throughput: dict[str, float]
    created_at: Text = UNSET
    latency_ms: Latency | UnsetType = UNSET


class AdminQueueDetail(AdminQueue, kw_only=True):
    """A queue with counts, and the time of the oldest job that could start."""

    oldest_available_at: str | None


class AdminQueueList(msgspec.Struct):
    """A page of queues with counts."""

    items: list[AdminQueue]
    pagination: dict[str, Any]


class DeadLetter(msgspec.Struct):
    """A discarded job."""

    id: str
    type: str
    queue: str
    state: str


class DeadLetterList(msgspec.Struct):
    """A page of dead letters."""

    jobs: list[DeadLetter]
    pagination: OffsetPagination


class Deleted(msgspec.Struct):
    """A deleted object."""

    deleted: bool


class Cron(msgspec.Struct):
    """A cron job."""

    name: str
    expression: str
    timezone: str
    enabled: bool
    queue: str
    job_template: dict[str, Any]
    next_run_at: str | UnsetType | None = UNSET
    last_run_at: str | UnsetType | None = UNSET


class CronAnswer(Cron, kw_only=True):
    """A cron job, flat and under its name."""

    cron: Cron


class CronList(msgspec.Struct):
    """Cron jobs."""

    crons: list[Cron]
    count: int


class Manifest(msgspec.Struct):
    """The capabilities of the server."""

    specversion: str
    implementation: dict[str, Any]
    conformance_level: int
    capabilities: dict[str, bool]
    extensions: list[Any]


class Health(msgspec.Struct):
    """The health of the server.

    `status` is ok or degraded. The `status` of `backend`, the broker, is connected, blocked, refused or disconnected;
    that of `database` is connected, unwritable, unreachable or unresponsive.
    """

    status: str
    version: str
    uptime_seconds: int
    backend: dict[str, Any]
    database: dict[str, Any]


class EventList(msgspec.Struct):
    """Events, newest first."""

    events: list[dict[str, Any]]
    count: int
