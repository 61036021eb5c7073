"""The description of the dashboard's routes."""

from __future__ import annotations

from typing import Final

from waybill.backend.openapi import requests
from waybill.backend.openapi.operation import Operation, Parameter

_LIMIT: Final = Parameter("limit", "Maximum number of items.", int)

DASHBOARD: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/ojs/v1/admin/overview"): Operation(
        "Counts, rates, the longest queues and the workers",
        "dashboard",
        parameters=(Parameter("window", "Length of the series in seconds, from 300 to 3600.", int),),
    ),
    ("GET", "/ojs/v1/admin/queue-summaries"): Operation(
        "List queues with ages, rates and latency percentiles",
        "dashboard",
        parameters=(
            Parameter("search", "Text that the names contain."),
            Parameter("name", "Name of a queue; adds its counts of the last hour."),
            Parameter("sort", "name, or waiting (longest queue first)."),
            _LIMIT,
            Parameter("offset", "Number of items to skip.", int),
        ),
    ),
    ("GET", "/ojs/v1/admin/search"): Operation(
        "Find jobs, newest first",
        "dashboard",
        parameters=(
            Parameter("text", "Text that arguments, tags, metadata or errors contain."),
            Parameter("id", "Prefix of an id."),
            Parameter("queue", "A queue."),
            Parameter("state", "Comma-separated states."),
            Parameter("type", "Job type."),
            Parameter("fingerprint", "Fingerprint of a failure group."),
            Parameter("since", "RFC 3339: jobs enqueued from then on."),
            Parameter("until", "RFC 3339: jobs enqueued before."),
            _LIMIT,
            Parameter("cursor", "next_cursor of the previous page."),
        ),
    ),
    ("GET", "/ojs/v1/admin/failures"): Operation(
        "List discarded jobs, grouped by error",
        "dashboard",
        parameters=(Parameter("all", "true includes dismissed groups."), _LIMIT),
    ),
    ("POST", "/ojs/v1/admin/failures/{fingerprint}/dismiss"): Operation(
        "Dismiss a failure group until it grows", "dashboard", {200: dict}
    ),
    ("GET", "/ojs/v1/admin/jobs/{id}/why"): Operation("Explain why a job is not running", "dashboard"),
    ("POST", "/ojs/v1/admin/workers/{id}/terminate"): Operation(
        "Terminate a worker after its running jobs", "dashboard", {200: dict}
    ),
    ("GET", "/ojs/v1/admin/changes"): Operation(
        "Stream change notifications, at most one per second", "streams", media_type="text/event-stream"
    ),
    ("GET", "/ojs/v1/admin/pipeline/report"): Operation("Get the latest report of the pipeline", "dashboard"),
    ("POST", "/ojs/v1/admin/pipeline/report"): Operation(
        "Upload the output of `waybill pipeline report --json`",
        "dashboard",
        {201: dict},
        dict,
        errors=("payload_too_large",),
    ),
    ("GET", "/ojs/v1/admin/job-types"): Operation("List the defaults of job types", "dashboard"),
    ("PUT", "/ojs/v1/admin/job-types/{type}/defaults"): Operation(
        "Set the defaults of a job type",
        "dashboard",
        {200: dict},
        requests.TypeDefaults,
        errors=("unsupported", "conflict"),
    ),
    ("DELETE", "/ojs/v1/admin/job-types/{type}/defaults"): Operation("Delete the defaults of a job type", "dashboard"),
    ("GET", "/ojs/v1/admin/operations"): Operation("List bulk operations, newest first", "dashboard"),
    ("POST", "/ojs/v1/admin/operations"): Operation(
        "Cancel, retry or discard all jobs that match a filter, in the background and at a limited rate",
        "dashboard",
        {200: dict, 202: dict},
        requests.NewOperation,
        errors=("conflict",),
    ),
    ("GET", "/ojs/v1/admin/operations/{id}"): Operation("Get the progress of a bulk operation", "dashboard"),
    ("POST", "/ojs/v1/admin/operations/{id}/stop"): Operation("Stop a bulk operation", "dashboard", {200: dict}),
    ("GET", "/ojs/v1/admin/session"): Operation("Get your identity and permissions", "dashboard"),
}
