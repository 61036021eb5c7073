"""What each route takes and answers. A route that is not here is described by what its path says."""

from __future__ import annotations

from typing import Final

from waybill.backend.openapi import answers, requests
from waybill.backend.openapi.operation import Operation, Parameter, described_by_itself

_LIMIT: Final = Parameter("limit", "How many at most.", int)
_OFFSET: Final = Parameter("offset", "How many to leave out.", int)
_CONFLICT: Final = ("conflict",)
_PUSH_ERRORS: Final = ("duplicate", "unsupported", "validation_error", "payload_too_large", "QUEUE_FULL")

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
        "Fetch jobs: a lease of each", "workers", {200: answers.Fetched}, requests.Fetch, is_body_required=False
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

_ALIASES: Final = {"/ojs/v1/crons": "/ojs/v1/cron"}


def operation_of(method: str, path: str) -> Operation:
    """Return what is said of a route."""
    for alias, name in _ALIASES.items():
        if path == alias or path.startswith(f"{alias}/"):
            path = name + path.removeprefix(alias)
    return OPERATIONS.get((method, path)) or described_by_itself(method, path)
