"""The descriptions of routes. A missing one is described by its path."""

from __future__ import annotations

from typing import Final

from waybill.backend.openapi import answers, requests
from waybill.backend.openapi.dashboard import DASHBOARD
from waybill.backend.openapi.operating import OPERATING
from waybill.backend.openapi.operation import JSON_OBJECT, Operation, Parameter, described_by_itself

_LIMIT: Final = Parameter("limit", "Maximum number of items.", int)
_OFFSET: Final = Parameter("offset", "Number of items to skip.", int)
_CONFLICT: Final = ("conflict",)
_PUSH_ERRORS: Final = (
    *(
        "duplicate",
        "unsupported",
        "validation_error",
        "schema_validation",
        "payload_too_large",
        "QUEUE_FULL",
        "JOB_TYPE_NOT_ALLOWED",
        "TENANT_LIMIT_EXCEEDED",
    ),
)

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/ojs/manifest"): Operation("Get the capabilities of the server", "system", {200: answers.Manifest}),
    ("GET", "/ojs/v1/health"): Operation(
        "Check the health of the server", "system", {200: answers.Health, 503: answers.Health}
    ),
    ("GET", "/ojs/v1/events"): Operation(
        "List the newest events",
        "system",
        {200: answers.EventList},
        parameters=(
            Parameter("types", "Comma-separated event types."),
            Parameter("queues", "Comma-separated queues."),
            Parameter("subject", "Id of a job, worker or workflow."),
            _LIMIT,
            _OFFSET,
        ),
    ),
    ("GET", "/ojs/v1/openapi.json"): Operation("Get this document", "system", media_type="application/json"),
    ("GET", "/ojs/v1/docs"): Operation("Get this document as an HTML page", "system", media_type="text/html"),
    ("POST", "/ojs/v1/jobs"): Operation(
        "Enqueue a job",
        "jobs",
        {201: answers.JobAnswer, 200: answers.JobAnswer},
        requests.NewJob,
        errors=_PUSH_ERRORS,
    ),
    ("POST", "/ojs/v1/jobs/batch"): Operation(
        "Enqueue a batch of jobs, all or none", "jobs", {201: answers.JobBatch}, requests.NewJobs, errors=_PUSH_ERRORS
    ),
    ("GET", "/ojs/v1/jobs"): Operation(
        "List jobs, newest first",
        "jobs",
        {200: answers.JobList},
        parameters=(
            Parameter("queue", "A queue."),
            Parameter("state", "Comma-separated states."),
            Parameter("type", "Job type."),
            _LIMIT,
        ),
    ),
    ("POST", "/ojs/v1/jobs/{id}/cancel"): Operation("Cancel a job", "jobs", {200: answers.JobAnswer}, errors=_CONFLICT),
    ("POST", "/ojs/v1/jobs/{id}/activate"): Operation(
        "Activate a pending job", "jobs", {200: answers.JobAnswer}, errors=_CONFLICT
    ),
    ("GET", "/ojs/v1/jobs/{id}/retries"): Operation("List the failed attempts of a job", "jobs"),
    ("GET", "/ojs/v1/jobs/{id}"): Operation("Get a job", "jobs", {200: answers.JobAnswer}),
    ("DELETE", "/ojs/v1/jobs/{id}"): Operation("Cancel a job", "jobs", {200: answers.JobAnswer}, errors=_CONFLICT),
    ("POST", "/ojs/v1/workers/fetch"): Operation(
        "Fetch and lease jobs",
        "workers",
        {200: answers.Fetched},
        requests.Fetch,
        errors=("not_found", "permission_denied"),
        is_body_required=False,
    ),
    ("POST", "/ojs/v1/workers/ack"): Operation(
        "Acknowledge a completed job", "workers", {200: answers.Ended}, requests.Ack, errors=_CONFLICT
    ),
    ("POST", "/ojs/v1/workers/nack"): Operation(
        "Report a failed attempt", "workers", {200: answers.Ended}, requests.Nack, errors=_CONFLICT
    ),
    **{
        ("POST", f"/ojs/v1/jobs/{{id}}/{name}"): Operation(
            text, "workers", {200: answers.Ended}, JSON_OBJECT, is_body_required=False, errors=_CONFLICT
        )
        for name, text in (("ack", "Acknowledge this job"), ("nack", "Report a failed attempt of this job"))
    },
    ("POST", "/ojs/v1/workers/heartbeat"): Operation(
        "Send a heartbeat, which extends the leases of a worker", "workers", {200: answers.Heard}, requests.Beat
    ),
    ("GET", "/ojs/v1/queues"): Operation(
        "List queues", "queues", {200: answers.QueueList}, parameters=(_LIMIT, _OFFSET)
    ),
    ("GET", "/ojs/v1/queues/{name}"): Operation("Count the jobs of a queue", "queues", {200: answers.QueueStats}),
    ("GET", "/ojs/v1/queues/{name}/stats"): Operation("Count the jobs of a queue", "queues", {200: answers.QueueStats}),
    ("POST", "/ojs/v1/queues/{name}/pause"): Operation("Pause a queue", "queues", {200: answers.QueueState}),
    ("POST", "/ojs/v1/queues/{name}/resume"): Operation("Resume a queue", "queues", {200: answers.QueueState}),
    ("GET", "/ojs/v1/dead-letter"): Operation(
        "List dead letters",
        "dead letters",
        {200: answers.DeadLetterList},
        parameters=(Parameter("queue", "A queue."), _LIMIT, _OFFSET),
    ),
    ("GET", "/ojs/v1/dead-letter/{id}"): Operation("Get a dead letter", "dead letters", {200: answers.DeadLetter}),
    ("POST", "/ojs/v1/dead-letter/{id}/retry"): Operation("Retry a dead letter", "dead letters", errors=_CONFLICT),
    ("DELETE", "/ojs/v1/dead-letter/{id}"): Operation("Discard a dead letter", "dead letters", {200: answers.Deleted}),
    ("GET", "/ojs/v1/cron"): Operation("List cron jobs", "cron", {200: answers.CronList}),
    ("POST", "/ojs/v1/cron"): Operation(
        "Register or change a cron job",
        "cron",
        {200: answers.CronAnswer, 201: answers.CronAnswer},
        requests.NewCron,
        errors=("conflict", "unsupported", "validation_error"),
    ),
    ("GET", "/ojs/v1/cron/{name}"): Operation("Get a cron job", "cron", {200: answers.CronAnswer}),
    ("DELETE", "/ojs/v1/cron/{name}"): Operation("Remove a cron job", "cron", {200: answers.Deleted}),
    ("POST", "/ojs/v1/cron/{name}/pause"): Operation("Pause a cron job", "cron", {200: answers.CronAnswer}),
    ("POST", "/ojs/v1/cron/{name}/resume"): Operation("Resume a cron job", "cron", {200: answers.CronAnswer}),
    ("POST", "/ojs/v1/cron/{name}/trigger"): Operation("Run a cron job now", "cron", {201: dict}),
    ("GET", "/ojs/v1/cron/{name}/history"): Operation("List the runs of a cron job", "cron"),
    ("GET", "/ojs/v1/workflows"): Operation(
        "List workflows, newest first",
        "workflows",
        parameters=(
            Parameter("state", "A state of workflows."),
            Parameter("name", "A name of workflows."),
            Parameter("cursor", "The `next_cursor` of the page before."),
            _LIMIT,
            _OFFSET,
        ),
    ),
    ("GET", "/ojs/v1/workflows/{id}"): Operation("Get a workflow", "workflows"),
    ("GET", "/ojs/v1/workflows/{id}/progress"): Operation("Get the progress of a workflow", "workflows"),
    ("DELETE", "/ojs/v1/workflows/{id}"): Operation("Cancel a workflow", "workflows", errors=_CONFLICT),
    ("POST", "/ojs/v1/workflows/{id}/cancel"): Operation("Cancel a workflow", "workflows", errors=_CONFLICT),
    ("POST", "/ojs/v1/workflows/{id}/retry"): Operation("Retry a failed workflow", "workflows", errors=_CONFLICT),
}

_PAGE: Final = (Parameter("page", "Page number, from 1.", int), Parameter("per_page", "Maximum number of items.", int))
_FILTERS: Final = tuple(
    Parameter(name, text)
    for name, text in (
        ("queue", "A queue."),
        ("state", "Comma-separated states."),
        ("type", "Job type, or a prefix of job types followed by *."),
        ("since", "RFC 3339: jobs enqueued from then on."),
        ("until", "RFC 3339: jobs enqueued before."),
    )
)
_STREAM: Final = "text/event-stream"
_CONFIG_ERRORS: Final = ("unsupported", "conflict")
_BULK_ERRORS: Final = ("payload_too_large", "validation_error")
_BULK_ANSWERS: Final[dict[int, object]] = {200: dict, 207: dict, 422: dict}
_SUBSCRIPTIONS: Final = "/ojs/v1/webhooks/subscriptions"

_TELL_PROGRESS: Final = Operation("Report the progress of a job", "progress", {200: dict}, requests.Progress)
_KEEP_CHECKPOINT: Final = Operation(
    "Save a checkpoint for the next attempt", "progress", {200: dict}, requests.NewCheckpoint, errors=_CONFLICT
)
_CHANGE_SUBSCRIPTION: Final = Operation("Change a subscription", "webhooks", {200: dict}, requests.Subscription)

_EXTENSIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/ojs/v1/jobs/{id}/result"): Operation(
        "Get the result of a job",
        "jobs",
        parameters=(
            Parameter("wait", "Wait until the job has ended."),
            Parameter("timeout", "Seconds to wait, at most 60.", int),
        ),
        errors=("wait_timeout", "result_pruned"),
    ),
    ("POST", "/ojs/v1/jobs/results"): Operation("Get the results of many jobs", "jobs", {200: dict}, requests.JobIds),
    ("POST", "/ojs/v1/jobs/bulk"): Operation(
        "Enqueue jobs independently of each other",
        "bulk",
        {201: dict, 207: dict, 422: dict},
        requests.NewBulk,
        errors=(*_PUSH_ERRORS, "conflict"),
    ),
    ("POST", "/ojs/v1/jobs/bulk/cancel"): Operation(
        "Cancel jobs", "bulk", _BULK_ANSWERS, requests.Bulk, errors=_BULK_ERRORS
    ),
    ("POST", "/ojs/v1/jobs/bulk/retry"): Operation(
        "Retry jobs", "bulk", _BULK_ANSWERS, requests.Bulk, errors=_BULK_ERRORS
    ),
    ("POST", "/ojs/v1/jobs/bulk/delete"): Operation(
        "Delete jobs that have ended", "bulk", _BULK_ANSWERS, requests.Bulk, errors=_BULK_ERRORS
    ),
    ("POST", "/ojs/v1/admin/jobs/bulk/cancel"): Operation(
        "Cancel jobs", "admin", {200: dict}, requests.Bulk, errors=_BULK_ERRORS
    ),
    ("POST", "/ojs/v1/admin/jobs/bulk/retry"): Operation(
        "Retry jobs", "admin", {200: dict}, requests.Bulk, errors=_BULK_ERRORS
    ),
    ("POST", "/ojs/v1/admin/jobs/bulk/delete"): Operation(
        "Delete jobs that have ended", "admin", {200: dict}, requests.Bulk, errors=_BULK_ERRORS
    ),
    ("DELETE", "/ojs/v1/admin/queues/{name}/jobs"): Operation(
        "Remove jobs of a queue by their states", "admin", {200: dict}, requests.QueuePurge
    ),
    ("GET", "/ojs/v1/admin/stats"): Operation("Count everything", "admin"),
    ("GET", "/ojs/v1/admin/stats/history"): Operation(
        "Get counts of jobs over time",
        "admin",
        parameters=(
            Parameter("period", "1m, 5m, 1h or 1d."),
            Parameter("since", "RFC 3339."),
            Parameter("until", "RFC 3339."),
            Parameter("queue", "A queue."),
        ),
    ),
    ("GET", "/ojs/v1/admin/queues"): Operation(
        "List queues with counts", "admin", {200: answers.AdminQueueList}, parameters=_PAGE
    ),
    ("GET", "/ojs/v1/admin/queues/{name}"): Operation("Get a queue", "admin", {200: answers.AdminQueueDetail}),
    **{
        ("GET", f"{base}/queues/{{name}}/config"): Operation("Get the settings of a queue", "queues")
        for base in ("/ojs/v1", "/ojs/v1/admin")
    },
    **{
        ("PUT", f"{base}/queues/{{name}}/config"): Operation(
            "Change the settings of a queue", "queues", {200: dict}, requests.QueueConfig, errors=_CONFIG_ERRORS
        )
        for base in ("/ojs/v1", "/ojs/v1/admin")
    },
    ("POST", "/ojs/v1/admin/queues/{name}/pause"): Operation("Pause a queue", "admin"),
    ("POST", "/ojs/v1/admin/queues/{name}/resume"): Operation("Resume a queue", "admin"),
    ("GET", "/ojs/v1/admin/jobs"): Operation(
        "Search jobs",
        "admin",
        parameters=(
            *_FILTERS,
            *_PAGE,
            Parameter("sort", "created_at, scheduled_at or priority."),
            Parameter("order", "asc or desc."),
        ),
    ),
    ("GET", "/ojs/v1/admin/jobs/{id}"): Operation("Get a job with all its data", "admin"),
    ("POST", "/ojs/v1/admin/jobs/{id}/cancel"): Operation("Cancel a job", "admin", errors=_CONFLICT),
    ("POST", "/ojs/v1/admin/jobs/{id}/retry"): Operation("Retry a job", "admin", errors=_CONFLICT),
    ("GET", "/ojs/v1/admin/workers"): Operation(
        "List workers",
        "admin",
        parameters=(*_PAGE, Parameter("jobs", "true includes the running jobs of each worker.")),
    ),
    ("GET", "/ojs/v1/admin/workers/{id}"): Operation("Get a worker", "admin"),
    ("POST", "/ojs/v1/admin/workers/{id}/quiet"): Operation(
        "Quiet a worker: it takes no more jobs", "admin", errors=_CONFLICT
    ),
    ("POST", "/ojs/v1/admin/workers/{id}/resume"): Operation("Resume a worker", "admin"),
    ("DELETE", "/ojs/v1/admin/workers/{id}"): Operation(
        "Delete a silent worker; other workers get its jobs", "admin", errors=_CONFLICT
    ),
    ("GET", "/ojs/v1/admin/system/config"): Operation("Get the version and the build of the server", "admin"),
    ("GET", "/ojs/v1/admin/audit"): Operation(
        "List the audit log",
        "admin",
        parameters=(_LIMIT, Parameter("after", "Id of an entry: return older entries.")),
    ),
    ("PUT", "/ojs/v1/jobs/{id}/progress"): _TELL_PROGRESS,
    ("POST", "/ojs/v1/jobs/{id}/progress"): _TELL_PROGRESS,
    ("GET", "/ojs/v1/jobs/{id}/progress"): Operation("Get the progress of a job", "progress"),
    ("POST", "/ojs/v1/jobs/{id}/checkpoint"): _KEEP_CHECKPOINT,
    ("PUT", "/ojs/v1/jobs/{id}/checkpoint"): _KEEP_CHECKPOINT,
    ("GET", "/ojs/v1/jobs/{id}/checkpoint"): Operation("Get the checkpoint of a job", "progress"),
    ("DELETE", "/ojs/v1/jobs/{id}/checkpoint"): Operation("Delete the checkpoint of a job", "progress"),
    ("GET", "/ojs/v1/jobs/{id}/progress/stream"): Operation(
        "Stream the progress of a job", "streams", media_type=_STREAM
    ),
    ("GET", "/ojs/v1/jobs/{id}/result/stream"): Operation(
        "Stream the progress of a job and its result", "streams", media_type=_STREAM
    ),
    ("GET", "/ojs/v1/jobs/{id}/events"): Operation("Stream the states of a job", "streams", media_type=_STREAM),
    ("GET", "/ojs/v1/queues/{name}/events"): Operation("Stream the events of a queue", "streams", media_type=_STREAM),
    ("GET", "/ojs/v1/events/stream"): Operation("Stream all events", "streams", media_type=_STREAM),
    ("POST", "/ojs/v1/schemas"): Operation(
        "Register a schema",
        "schemas",
        {201: dict},
        requests.NewSchema,
        errors=("conflict", "validation_error", "unsupported", "payload_too_large"),
    ),
    ("GET", "/ojs/v1/schemas"): Operation("List all schemas", "schemas", parameters=_PAGE),
    ("GET", "/ojs/v1/schemas/{type}"): Operation("Get the newest schema of a job type, or one by its URI", "schemas"),
    ("DELETE", "/ojs/v1/schemas/{type}"): Operation("Remove a schema by its URI", "schemas"),
    ("GET", "/ojs/v1/schemas/{type}/versions"): Operation("List the versions of a schema", "schemas"),
    ("GET", "/ojs/v1/schemas/{type}/mode"): Operation("Get the validation mode of a job type", "schemas"),
    ("PUT", "/ojs/v1/schemas/{type}/mode"): Operation(
        "Set the validation mode of a job type", "schemas", {200: dict}, requests.SchemaMode, errors=_CONFLICT
    ),
    ("GET", "/ojs/v1/schemas/{type}/{version}"): Operation("Get a version of a schema", "schemas"),
    ("DELETE", "/ojs/v1/schemas/{type}/{version}"): Operation("Remove a version of a schema", "schemas"),
    ("POST", _SUBSCRIPTIONS): Operation(
        "Subscribe to events", "webhooks", {201: dict}, requests.NewSubscription, errors=_CONFLICT
    ),
    ("GET", _SUBSCRIPTIONS): Operation("List subscriptions", "webhooks", parameters=_PAGE),
    ("GET", f"{_SUBSCRIPTIONS}/{{id}}"): Operation("Get a subscription", "webhooks"),
    ("PATCH", f"{_SUBSCRIPTIONS}/{{id}}"): _CHANGE_SUBSCRIPTION,
    ("PUT", f"{_SUBSCRIPTIONS}/{{id}}"): _CHANGE_SUBSCRIPTION,
    ("DELETE", f"{_SUBSCRIPTIONS}/{{id}}"): Operation("Delete a subscription", "webhooks"),
    ("POST", f"{_SUBSCRIPTIONS}/{{id}}/test"): Operation("Send a test event", "webhooks"),
    ("POST", f"{_SUBSCRIPTIONS}/{{id}}/rotate-secret"): Operation("Rotate the secret of a subscription", "webhooks"),
    ("GET", "/ojs/v1/webhooks/deliveries"): Operation(
        "List deliveries",
        "webhooks",
        parameters=(
            Parameter("subscription_id", "Id of a subscription."),
            Parameter("state", "pending, delivered or dead."),
            *_PAGE,
        ),
    ),
    ("GET", "/ojs/v1/webhooks/deliveries/{id}"): Operation("Get a delivery", "webhooks"),
    ("POST", "/ojs/v1/webhooks/deliveries/{id}/retry"): Operation(
        "Retry a delivery", "webhooks", {202: dict}, errors=_CONFLICT
    ),
}

OPERATIONS.update(_EXTENSIONS)
OPERATIONS.update(OPERATING)
OPERATIONS.update(DASHBOARD)
_ALIASES: Final = {"/ojs/v1/crons": "/ojs/v1/cron"}


def operation_of(method: str, path: str) -> Operation:
    """Return the description of a route."""
    for alias, name in _ALIASES.items():
        if path == alias or path.startswith(f"{alias}/"):
            path = name + path.removeprefix(alias)
    return OPERATIONS.get((method, path)) or described_by_itself(method, path)
