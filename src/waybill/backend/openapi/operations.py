"""What each route takes and answers. A route that is not here is described by what its path says."""

from __future__ import annotations

from typing import Final

from waybill.backend.openapi import answers, requests
from waybill.backend.openapi.dashboard import DASHBOARD
from waybill.backend.openapi.operating import OPERATING
from waybill.backend.openapi.operation import Operation, Parameter, described_by_itself

_LIMIT: Final = Parameter("limit", "How many at most.", int)
_OFFSET: Final = Parameter("offset", "How many to leave out.", int)
_CONFLICT: Final = ("conflict",)
_PUSH_ERRORS: Final = (
    *("duplicate", "unsupported", "validation_error", "payload_too_large", "QUEUE_FULL", "TENANT_LIMIT_EXCEEDED"),
)

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/ojs/manifest"): Operation("What this server can do", "system", {200: answers.Manifest}),
    ("GET", "/ojs/v1/health"): Operation("How the server does", "system", {200: answers.Health, 503: answers.Health}),
    ("GET", "/ojs/v1/events"): Operation(
        "The newest events",
        "system",
        {200: answers.EventList},
        parameters=(
            Parameter("types", "Event types, with commas."),
            Parameter("queues", "Queues, with commas."),
            Parameter("subject", "The id of a job, a worker or a workflow."),
            _LIMIT,
        ),
    ),
    ("GET", "/ojs/v1/openapi.json"): Operation("This document", "system", media_type="application/json"),
    ("GET", "/ojs/v1/docs"): Operation("This document as a page", "system", media_type="text/html"),
    ("POST", "/ojs/v1/jobs"): Operation(
        "Enqueue a job",
        "jobs",
        {201: answers.JobAnswer, 200: answers.JobAnswer},
        requests.NewJob,
        errors=_PUSH_ERRORS,
    ),
    ("POST", "/ojs/v1/jobs/batch"): Operation(
        "Enqueue jobs, all or none", "jobs", {201: answers.JobBatch}, requests.NewJobs, errors=_PUSH_ERRORS
    ),
    ("GET", "/ojs/v1/jobs"): Operation(
        "List jobs, the newest first",
        "jobs",
        {200: answers.JobList},
        parameters=(
            Parameter("queue", "A queue."),
            Parameter("state", "States, with commas."),
            Parameter("type", "A job type."),
            _LIMIT,
        ),
    ),
    ("POST", "/ojs/v1/jobs/{id}/cancel"): Operation("Cancel a job", "jobs", {200: answers.JobAnswer}, errors=_CONFLICT),
    ("POST", "/ojs/v1/jobs/{id}/activate"): Operation(
        "Put a pending job into its queue", "jobs", {200: answers.JobAnswer}, errors=_CONFLICT
    ),
    ("GET", "/ojs/v1/jobs/{id}/retries"): Operation("The failed attempts of a job", "jobs"),
    ("GET", "/ojs/v1/jobs/{id}"): Operation("Look at a job", "jobs", {200: answers.JobAnswer}),
    ("DELETE", "/ojs/v1/jobs/{id}"): Operation("Cancel a job", "jobs", {200: answers.JobAnswer}, errors=_CONFLICT),
    ("POST", "/ojs/v1/workers/fetch"): Operation(
        "Fetch jobs: a lease of each",
        "workers",
        {200: answers.Fetched},
        requests.Fetch,
        errors=("not_found", "permission_denied"),
        is_body_required=False,
    ),
    ("POST", "/ojs/v1/workers/ack"): Operation(
        "Say that a job is done", "workers", {200: answers.Ended}, requests.Ack, errors=_CONFLICT
    ),
    ("POST", "/ojs/v1/workers/nack"): Operation(
        "Say that a job has failed", "workers", {200: answers.Ended}, requests.Nack, errors=_CONFLICT
    ),
    ("POST", "/ojs/v1/workers/heartbeat"): Operation(
        "Say that a worker is alive; extend its leases", "workers", {200: answers.Heard}, requests.Beat
    ),
    ("GET", "/ojs/v1/queues"): Operation(
        "List queues", "queues", {200: answers.QueueList}, parameters=(_LIMIT, _OFFSET)
    ),
    ("GET", "/ojs/v1/queues/{name}"): Operation("Count the jobs of a queue", "queues", {200: answers.QueueStats}),
    ("GET", "/ojs/v1/queues/{name}/stats"): Operation("Count the jobs of a queue", "queues", {200: answers.QueueStats}),
    ("POST", "/ojs/v1/queues/{name}/pause"): Operation(
        "Give out no more jobs of a queue", "queues", {200: answers.QueueState}
    ),
    ("POST", "/ojs/v1/queues/{name}/resume"): Operation(
        "Give out jobs of a queue again", "queues", {200: answers.QueueState}
    ),
    ("GET", "/ojs/v1/dead-letter"): Operation(
        "List dead letters",
        "dead letters",
        {200: answers.DeadLetterList},
        parameters=(Parameter("queue", "A queue."), _LIMIT, _OFFSET),
    ),
    ("GET", "/ojs/v1/dead-letter/{id}"): Operation("Look at a dead letter", "dead letters", {200: answers.DeadLetter}),
    ("POST", "/ojs/v1/dead-letter/{id}/retry"): Operation(
        "Put a dead letter back into its queue", "dead letters", errors=_CONFLICT
    ),
    ("DELETE", "/ojs/v1/dead-letter/{id}"): Operation(
        "Throw a dead letter away", "dead letters", {200: answers.Deleted}
    ),
    ("GET", "/ojs/v1/cron"): Operation("List cron jobs", "cron", {200: answers.CronList}),
    ("POST", "/ojs/v1/cron"): Operation(
        "Register a cron job, or change it",
        "cron",
        {201: answers.CronAnswer},
        requests.NewCron,
        errors=("conflict", "unsupported", "validation_error"),
    ),
    ("GET", "/ojs/v1/cron/{name}"): Operation("Look at a cron job", "cron", {200: answers.CronAnswer}),
    ("DELETE", "/ojs/v1/cron/{name}"): Operation("Remove a cron job", "cron", {200: answers.Deleted}),
    ("POST", "/ojs/v1/cron/{name}/pause"): Operation("Pause a cron job", "cron", {200: answers.CronAnswer}),
    ("POST", "/ojs/v1/cron/{name}/resume"): Operation("Resume a cron job", "cron", {200: answers.CronAnswer}),
    ("POST", "/ojs/v1/cron/{name}/trigger"): Operation("Push the job of a cron job now", "cron", {201: dict}),
    ("GET", "/ojs/v1/cron/{name}/history"): Operation("When a cron job has fired", "cron"),
    ("GET", "/ojs/v1/workflows"): Operation("List workflows", "workflows"),
    ("GET", "/ojs/v1/workflows/{id}"): Operation("Look at a workflow", "workflows"),
    ("DELETE", "/ojs/v1/workflows/{id}"): Operation("Cancel a workflow", "workflows", errors=_CONFLICT),
    ("POST", "/ojs/v1/workflows/{id}/cancel"): Operation("Cancel a workflow", "workflows", errors=_CONFLICT),
    ("POST", "/ojs/v1/workflows/{id}/retry"): Operation("Go on with a failed workflow", "workflows", errors=_CONFLICT),
}

_PAGE: Final = (Parameter("page", "Which page, from 1.", int), Parameter("per_page", "How many at most.", int))
_FILTERS: Final = tuple(
    Parameter(name, text)
    for name, text in (
        ("queue", "A queue."),
        ("state", "States, with commas."),
        ("type", "A job type, or the beginning of some, with * at its end."),
        ("since", "RFC 3339: jobs enqueued from then on."),
        ("until", "RFC 3339: jobs enqueued before."),
    )
)
_STREAM: Final = "text/event-stream"
_BULK_ERRORS: Final = ("payload_too_large", "validation_error")
_BULK_ANSWERS: Final[dict[int, object]] = {200: dict, 207: dict, 422: dict}
_SUBSCRIPTIONS: Final = "/ojs/v1/webhooks/subscriptions"

_TELL_PROGRESS: Final = Operation("Tell how far a job is", "progress", {200: dict}, requests.Progress)
_KEEP_CHECKPOINT: Final = Operation(
    "Keep a state for the next attempt", "progress", {200: dict}, requests.NewCheckpoint, errors=_CONFLICT
)
_CHANGE_SUBSCRIPTION: Final = Operation("Change a subscription", "webhooks", {200: dict}, requests.Subscription)

_EXTENSIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/ojs/v1/jobs/{id}/result"): Operation(
        "How a job has ended",
        "jobs",
        parameters=(
            Parameter("wait", "Wait until it has."),
            Parameter("timeout", "Seconds, 60 at most.", int),
        ),
        errors=("wait_timeout", "result_pruned"),
    ),
    ("POST", "/ojs/v1/jobs/results"): Operation("How many jobs have ended", "jobs", {200: dict}, requests.JobIds),
    ("POST", "/ojs/v1/jobs/bulk"): Operation(
        "Enqueue jobs, each by itself",
        "bulk",
        {201: dict, 207: dict, 422: dict},
        requests.NewJobs,
        errors=(*_PUSH_ERRORS, "conflict"),
    ),
    ("POST", "/ojs/v1/jobs/bulk/cancel"): Operation(
        "Cancel jobs", "bulk", _BULK_ANSWERS, requests.Bulk, errors=_BULK_ERRORS
    ),
    ("POST", "/ojs/v1/jobs/bulk/retry"): Operation(
        "Put jobs back into their queues", "bulk", _BULK_ANSWERS, requests.Bulk, errors=_BULK_ERRORS
    ),
    ("POST", "/ojs/v1/admin/jobs/bulk/cancel"): Operation(
        "Cancel jobs", "admin", {200: dict}, requests.Bulk, errors=_BULK_ERRORS
    ),
    ("POST", "/ojs/v1/admin/jobs/bulk/retry"): Operation(
        "Put jobs back into their queues", "admin", {200: dict}, requests.Bulk, errors=_BULK_ERRORS
    ),
    ("GET", "/ojs/v1/admin/stats"): Operation("Count everything", "admin"),
    ("GET", "/ojs/v1/admin/stats/history"): Operation(
        "What was done when",
        "admin",
        parameters=(
            Parameter("period", "1m, 5m, 1h or 1d."),
            Parameter("since", "RFC 3339."),
            Parameter("until", "RFC 3339."),
            Parameter("queue", "A queue."),
        ),
    ),
    ("GET", "/ojs/v1/admin/queues"): Operation("List queues with counts", "admin", parameters=_PAGE),
    ("GET", "/ojs/v1/admin/queues/{name}"): Operation("Look at a queue", "admin"),
    ("GET", "/ojs/v1/admin/queues/{name}/config"): Operation("What is set for a queue", "admin"),
    ("PUT", "/ojs/v1/admin/queues/{name}/config"): Operation(
        "Bound a queue", "admin", {200: dict}, requests.QueueConfig, errors=("unsupported", "conflict")
    ),
    ("POST", "/ojs/v1/admin/queues/{name}/pause"): Operation("Give out no more jobs of a queue", "admin"),
    ("POST", "/ojs/v1/admin/queues/{name}/resume"): Operation("Give out jobs of a queue again", "admin"),
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
    ("GET", "/ojs/v1/admin/jobs/{id}"): Operation("Look at a job, whole", "admin"),
    ("POST", "/ojs/v1/admin/jobs/{id}/cancel"): Operation("Cancel a job", "admin", errors=_CONFLICT),
    ("POST", "/ojs/v1/admin/jobs/{id}/retry"): Operation("Put a job back into its queue", "admin", errors=_CONFLICT),
    ("GET", "/ojs/v1/admin/workers"): Operation(
        "List workers", "admin", parameters=(*_PAGE, Parameter("jobs", "With true, the jobs that each runs."))
    ),
    ("GET", "/ojs/v1/admin/workers/{id}"): Operation("Look at a worker", "admin"),
    ("POST", "/ojs/v1/admin/workers/{id}/quiet"): Operation(
        "Have a worker take no more jobs", "admin", errors=_CONFLICT
    ),
    ("POST", "/ojs/v1/admin/workers/{id}/resume"): Operation("Have a worker take jobs again", "admin"),
    ("DELETE", "/ojs/v1/admin/workers/{id}"): Operation(
        "Forget a silent worker; others get its jobs", "admin", errors=_CONFLICT
    ),
    ("GET", "/ojs/v1/admin/system/config"): Operation("What this server is", "admin"),
    ("GET", "/ojs/v1/admin/audit"): Operation(
        "Who has changed what",
        "admin",
        parameters=(_LIMIT, Parameter("after", "The id of an entry: those before it.")),
    ),
    ("PUT", "/ojs/v1/jobs/{id}/progress"): _TELL_PROGRESS,
    ("POST", "/ojs/v1/jobs/{id}/progress"): _TELL_PROGRESS,
    ("GET", "/ojs/v1/jobs/{id}/progress"): Operation("How far a job is", "progress"),
    ("POST", "/ojs/v1/jobs/{id}/checkpoint"): _KEEP_CHECKPOINT,
    ("PUT", "/ojs/v1/jobs/{id}/checkpoint"): _KEEP_CHECKPOINT,
    ("GET", "/ojs/v1/jobs/{id}/checkpoint"): Operation("The state that was kept", "progress"),
    ("DELETE", "/ojs/v1/jobs/{id}/checkpoint"): Operation("Forget the state that was kept", "progress"),
    ("GET", "/ojs/v1/jobs/{id}/progress/stream"): Operation("Follow a job's progress", "streams", media_type=_STREAM),
    ("GET", "/ojs/v1/jobs/{id}/result/stream"): Operation(
        "Follow a job's progress to its result", "streams", media_type=_STREAM
    ),
    ("GET", "/ojs/v1/jobs/{id}/events"): Operation("Follow the states of a job", "streams", media_type=_STREAM),
    ("GET", "/ojs/v1/queues/{name}/events"): Operation("Follow the jobs of a queue", "streams", media_type=_STREAM),
    ("GET", "/ojs/v1/events/stream"): Operation("Follow all events", "streams", media_type=_STREAM),
    ("POST", "/ojs/v1/schemas"): Operation(
        "Register a schema",
        "schemas",
        {201: dict},
        requests.NewSchema,
        errors=("conflict", "validation_error", "unsupported", "payload_too_large"),
    ),
    ("GET", "/ojs/v1/schemas"): Operation("List the schemas of all job types", "schemas", parameters=_PAGE),
    ("GET", "/ojs/v1/schemas/{type}"): Operation("The newest schema of a job type", "schemas"),
    ("GET", "/ojs/v1/schemas/{type}/versions"): Operation("The versions of a schema", "schemas"),
    ("GET", "/ojs/v1/schemas/{type}/mode"): Operation("How strictly a job type is validated", "schemas"),
    ("PUT", "/ojs/v1/schemas/{type}/mode"): Operation(
        "Set how strictly a job type is validated", "schemas", {200: dict}, requests.SchemaMode, errors=_CONFLICT
    ),
    ("GET", "/ojs/v1/schemas/{type}/{version}"): Operation("A version of a schema", "schemas"),
    ("DELETE", "/ojs/v1/schemas/{type}/{version}"): Operation("Remove a version of a schema", "schemas"),
    ("POST", _SUBSCRIPTIONS): Operation(
        "Subscribe to events", "webhooks", {201: dict}, requests.NewSubscription, errors=_CONFLICT
    ),
    ("GET", _SUBSCRIPTIONS): Operation("List subscriptions", "webhooks", parameters=_PAGE),
    ("GET", f"{_SUBSCRIPTIONS}/{{id}}"): Operation("Look at a subscription", "webhooks"),
    ("PATCH", f"{_SUBSCRIPTIONS}/{{id}}"): _CHANGE_SUBSCRIPTION,
    ("PUT", f"{_SUBSCRIPTIONS}/{{id}}"): _CHANGE_SUBSCRIPTION,
    ("DELETE", f"{_SUBSCRIPTIONS}/{{id}}"): Operation("End a subscription", "webhooks"),
    ("POST", f"{_SUBSCRIPTIONS}/{{id}}/test"): Operation("Send a test event", "webhooks"),
    ("POST", f"{_SUBSCRIPTIONS}/{{id}}/rotate-secret"): Operation("Make a new secret", "webhooks"),
    ("GET", "/ojs/v1/webhooks/deliveries"): Operation(
        "List deliveries",
        "webhooks",
        parameters=(
            Parameter("subscription_id", "Of one subscription."),
            Parameter("state", "pending, delivered or dead."),
            *_PAGE,
        ),
    ),
    ("GET", "/ojs/v1/webhooks/deliveries/{id}"): Operation("Look at a delivery", "webhooks"),
    ("POST", "/ojs/v1/webhooks/deliveries/{id}/retry"): Operation(
        "Send a delivery again", "webhooks", {202: dict}, errors=_CONFLICT
    ),
}

OPERATIONS.update(_EXTENSIONS)
OPERATIONS.update(OPERATING)
OPERATIONS.update(DASHBOARD)
_ALIASES: Final = {"/ojs/v1/crons": "/ojs/v1/cron"}


def operation_of(method: str, path: str) -> Operation:
    """Return what is said of a route."""
    for alias, name in _ALIASES.items():
        if path == alias or path.startswith(f"{alias}/"):
            path = name + path.removeprefix(alias)
    return OPERATIONS.get((method, path)) or described_by_itself(method, path)
