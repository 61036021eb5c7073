"""What the routes take and answer that the dashboard stands on."""

from __future__ import annotations

from typing import Final

from waybill.backend.openapi import requests
from waybill.backend.openapi.operation import Operation, Parameter

_LIMIT: Final = Parameter("limit", "How many at most.", int)

DASHBOARD: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/ojs/v1/admin/overview"): Operation(
        "Counts, rates, the fullest queues, who works",
        "dashboard",
        parameters=(Parameter("window", "Seconds that the series are of, from 300 to 3600.", int),),
    ),
    ("GET", "/ojs/v1/admin/queue-summaries"): Operation(
        "List queues with ages, rates and percentiles of times",
        "dashboard",
        parameters=(
            Parameter("search", "A part of their names."),
            Parameter("name", "The name of one: with what was done in it in the last hour."),
            Parameter("sort", "name, or waiting for the fullest first."),
            _LIMIT,
            Parameter("offset", "How many to leave out.", int),
        ),
    ),
    ("GET", "/ojs/v1/admin/search"): Operation(
        "Find jobs, the newest first",
        "dashboard",
        parameters=(
            Parameter("text", "A part of arguments, tags, metadata or errors."),
            Parameter("id", "The beginning of an id."),
            Parameter("queue", "A queue."),
            Parameter("state", "States, with commas."),
            Parameter("type", "A job type."),
            Parameter("fingerprint", "That of a group of failures."),
            Parameter("since", "RFC 3339: jobs enqueued from then on."),
            Parameter("until", "RFC 3339: jobs enqueued before."),
            _LIMIT,
            Parameter("cursor", "The next_cursor of the page before."),
        ),
    ),
    ("GET", "/ojs/v1/admin/failures"): Operation(
        "List jobs that have failed for good, as groups of like errors",
        "dashboard",
        parameters=(Parameter("all", "true shows those that were dismissed, too."), _LIMIT),
    ),
    ("POST", "/ojs/v1/admin/failures/{fingerprint}/dismiss"): Operation(
        "Show a group of failures no more until it grows", "dashboard", {200: dict}
    ),
    ("GET", "/ojs/v1/admin/jobs/{id}/why"): Operation("Why a job does not run", "dashboard"),
    ("POST", "/ojs/v1/admin/workers/{id}/terminate"): Operation(
        "Have a worker finish its jobs and end", "dashboard", {200: dict}
    ),
    ("GET", "/ojs/v1/admin/changes"): Operation(
        "Follow whether anything has changed, once a second at most", "streams", media_type="text/event-stream"
    ),
    ("GET", "/ojs/v1/admin/pipeline/report"): Operation("The last report of the pipeline", "dashboard"),
    ("POST", "/ojs/v1/admin/pipeline/report"): Operation(
        "Send the report that `waybill pipeline report --json` has made",
        "dashboard",
        {201: dict},
        dict,
        errors=("payload_too_large",),
    ),
    ("GET", "/ojs/v1/admin/job-types"): Operation("List what is set for job types", "dashboard"),
    ("PUT", "/ojs/v1/admin/job-types/{type}/defaults"): Operation(
        "Set what holds for jobs of a type that say nothing of it",
        "dashboard",
        {200: dict},
        requests.TypeDefaults,
        errors=("unsupported", "conflict"),
    ),
    ("DELETE", "/ojs/v1/admin/job-types/{type}/defaults"): Operation("Forget what is set for a job type", "dashboard"),
    ("GET", "/ojs/v1/admin/operations"): Operation("List operations on many jobs, the newest first", "dashboard"),
    ("POST", "/ojs/v1/admin/operations"): Operation(
        "Cancel, retry or discard all jobs that a filter finds, in the background and at a rate",
        "dashboard",
        {200: dict, 202: dict},
        requests.NewOperation,
        errors=("conflict",),
    ),
    ("GET", "/ojs/v1/admin/operations/{id}"): Operation("How far an operation is", "dashboard"),
    ("POST", "/ojs/v1/admin/operations/{id}/stop"): Operation(
        "Have an operation change no more jobs", "dashboard", {200: dict}
    ),
    ("GET", "/ojs/v1/admin/session"): Operation("Who you are, and what you may do", "dashboard"),
}
