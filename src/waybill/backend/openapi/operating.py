"""The description of the routes for settings of all servers."""

from __future__ import annotations

from typing import Final

from waybill.backend.openapi import requests
from waybill.backend.openapi.operation import Operation, Parameter

_LIMIT: Final = Parameter("limit", "Maximum number of items.", int)
_PAGE: Final = (Parameter("page", "Page number, from 1.", int), Parameter("per_page", "Maximum number of items.", int))
_QUEUE_AND_TYPE: Final = (Parameter("queue", "A queue."), Parameter("type", "A job type."))
_MAINTENANCE: Final = ("/ojs/v1/admin/system/maintenance", "/ojs/v1/admin/maintenance")
_CURSOR: Final = Parameter("cursor", "End of the previous page.")
_JOB_ID: Final = Parameter("job_id", "The id of a job.")
_HISTORY: Final = (
    Parameter("start", "Earliest time."),
    Parameter("end", "Time before which entries lie."),
    Parameter("queues", "Comma-separated names of queues."),
    Parameter("job_types", "Comma-separated job types."),
)
_TENANTS: Final = "/ojs/v1/admin/tenants"
_POOLS: Final = "/ojs/v1/admin/pools"
_CODEC_ERRORS: Final = ("unsupported", "validation_error", "permission_denied")
_ROUTING: Final = "/ojs/v1/admin/routing"
_SET_ERRORS: Final = ("unsupported", "conflict")

OPERATING: Final[dict[tuple[str, str], Operation]] = {
    ("GET", _TENANTS): Operation("List tenants that have settings", "tenants", parameters=_PAGE),
    ("GET", f"{_TENANTS}/{{id}}"): Operation("Get a tenant", "tenants"),
    ("PUT", f"{_TENANTS}/{{id}}"): Operation(
        "Set limits of a tenant", "tenants", {200: dict}, requests.NewTenant, errors=_SET_ERRORS
    ),
    ("PUT", f"{_TENANTS}/{{id}}/limits"): Operation(
        "Change limits of a tenant", "tenants", {200: dict}, requests.TenantLimits, errors=_SET_ERRORS
    ),
    ("DELETE", f"{_TENANTS}/{{id}}"): Operation("Delete the settings of a tenant", "tenants"),
    ("GET", f"{_TENANTS}/{{id}}/stats"): Operation("Count the jobs of a tenant", "tenants"),
    ("GET", f"{_TENANTS}/{{id}}/jobs"): Operation(
        "List the jobs of a tenant", "tenants", parameters=(Parameter("state", "Comma-separated states."), _LIMIT)
    ),
    ("GET", _POOLS): Operation("List the pools of workers", "scheduling", parameters=_PAGE),
    ("GET", f"{_POOLS}/{{name}}"): Operation("Get a pool of workers", "scheduling"),
    ("PUT", f"{_POOLS}/{{name}}"): Operation(
        "Define a pool of workers", "scheduling", {200: dict}, requests.NewPool, errors=_SET_ERRORS
    ),
    ("DELETE", f"{_POOLS}/{{name}}"): Operation("Remove a pool of workers", "scheduling"),
    ("GET", "/ojs/v1/admin/scheduling/stats"): Operation(
        "Count the jobs fetched in the last minute, by queue", "scheduling"
    ),
    **{
        ("POST", f"{base}/{name}"): Operation(text, "codec", {200: dict}, requests.Payloads, errors=_CODEC_ERRORS)
        for base in ("/codec", "/ojs/v1/codec")
        for name, text in (("encode", "Encrypt payloads"), ("decode", "Decrypt payloads"))
    },
    ("GET", "/metrics"): Operation("Get metrics for Prometheus", "system", media_type="text/plain"),
    ("GET", "/ojs/v1/metrics"): Operation("Get metrics for Prometheus", "system", media_type="text/plain"),
    ("POST", "/ojs/v1/jobs/{id}/logs"): Operation(
        "Append log records to a job", "jobs", {201: dict}, requests.NewLogs, errors=("payload_too_large",)
    ),
    ("GET", "/ojs/v1/jobs/{id}/logs"): Operation(
        "List the log records of a job, oldest first",
        "jobs",
        parameters=(
            Parameter("level", "Minimum severity: trace, debug, info, warn, error or fatal."),
            _CURSOR,
            _LIMIT,
        ),
    ),
    **{("GET", path): Operation("Get the maintenance state", "admin") for path in _MAINTENANCE},
    **{
        (method, path): Operation(
            "Begin or end maintenance, during which workers get no jobs",
            "admin",
            {200: dict},
            requests.Maintenance,
            errors=_SET_ERRORS,
        )
        for method in ("POST", "PUT")
        for path in _MAINTENANCE
    },
    **{
        ("GET", f"{base}/{name}"): Operation(text, tag, parameters=parameters)
        for base in ("/ojs/v1", "/ojs/v1/admin")
        for name, text, tag, parameters in (
            ("unique-jobs", "List unique jobs that have not ended", "jobs", (*_QUEUE_AND_TYPE, *_PAGE)),
            ("middleware", "List the middleware of the server, which has none", "admin", _PAGE),
        )
    },
    ("GET", "/ojs/v1/debug/status"): Operation("Get the internal state of the server", "debug"),
    ("GET", "/ojs/v1/debug/failures"): Operation(
        "List jobs whose last attempt failed", "debug", parameters=(_LIMIT, _CURSOR)
    ),
    ("GET", "/ojs/v1/debug/jobs/{id}/traces"): Operation("List the attempts of a job", "debug"),
    ("GET", "/ojs/v1/debug/jobs/{id}/traces/{attempt}"): Operation("Get an attempt of a job", "debug"),
    ("DELETE", "/ojs/v1/queues/{name}"): Operation(
        "Delete a queue",
        "queues",
        {200: dict, 202: dict},
        requests.QueueDeletion,
        is_body_required=False,
        parameters=(Parameter("strategy", "The same as in the body."),),
        errors=("conflict", "validation_error"),
    ),
    ("PATCH", "/ojs/v1/jobs/{id}"): Operation(
        "Change the priority of a waiting job", "jobs", {200: dict}, requests.NewPriority, errors=_SET_ERRORS
    ),
    ("PATCH", "/ojs/v1/jobs"): Operation(
        "Change the priority of waiting jobs",
        "bulk",
        {200: dict, 207: dict, 422: dict},
        requests.NewPriorities,
        errors=(*_SET_ERRORS, "payload_too_large"),
    ),
    ("GET", "/ojs/v1/jobs/{id}/history"): Operation(
        "List what happened to a job, oldest first", "history", parameters=(_LIMIT, _CURSOR)
    ),
    ("DELETE", "/ojs/v1/jobs/{id}/history"): Operation("Delete the history of a job", "history", {200: dict}),
    ("GET", "/ojs/v1/jobs/{id}/lineage"): Operation("Get the parent and the children of a job", "history"),
    ("GET", "/ojs/v1/history"): Operation(
        "Search what happened to jobs, newest first",
        "history",
        parameters=(
            *_HISTORY,
            Parameter("query", "A text in the entry."),
            Parameter("event_types", "Comma-separated types of entries."),
            Parameter("actor_type", "worker, client or system."),
            _LIMIT,
            _CURSOR,
        ),
    ),
    ("DELETE", "/ojs/v1/history"): Operation(
        "Delete what happened to jobs before a time",
        "history",
        {200: dict},
        parameters=(
            Parameter("before", "Time before which entries are deleted."),
            Parameter("queues", "Comma-separated names of queues."),
            Parameter("event_types", "Comma-separated types of entries."),
        ),
        errors=_SET_ERRORS,
    ),
    ("GET", "/ojs/v1/history/stats"): Operation(
        "Count what happened to jobs",
        "history",
        parameters=(*_HISTORY, Parameter("group_by", "minute, hour or day.")),
    ),
    ("POST", "/ojs/v1/history/rebuild"): Operation(
        "Tell which part of a job's history is reconstructed", "history", {200: dict}, parameters=(_JOB_ID,)
    ),
    ("GET", "/ojs/v1/ws"): Operation(
        "Follow events over a WebSocket",
        "streams",
        {101: None},
        errors=("upgrade_required", "overloaded", "not_implemented"),
    ),
    ("GET", _ROUTING): Operation("List the rules for versions of job types", "versions", parameters=_PAGE),
    ("GET", f"{_ROUTING}/{{type}}"): Operation("Get the rules for versions of a job type", "versions"),
    ("PUT", f"{_ROUTING}/{{type}}"): Operation(
        "Set the rules for versions of a job type", "versions", {200: dict}, requests.VersionRules, errors=_SET_ERRORS
    ),
    ("DELETE", f"{_ROUTING}/{{type}}"): Operation("Remove the rules for versions of a job type", "versions"),
    ("GET", "/ojs/v1/admin/config"): Operation("Get the version and the build of the server", "admin"),
    ("GET", "/ojs/v1/admin/stats/stream"): Operation(
        "Stream the numbers of admin/stats", "admin", media_type="text/event-stream"
    ),
    ("POST", "/ojs/v1/admin/workers/directive"): Operation(
        "Quiet, resume or end workers", "admin", {200: dict}, requests.WorkerDirective, errors=("conflict",)
    ),
}
