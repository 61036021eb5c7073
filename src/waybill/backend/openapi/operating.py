"""The description of the routes for settings of all servers."""

from __future__ import annotations

from typing import Final

from waybill.backend.openapi import requests
from waybill.backend.openapi.operation import Operation, Parameter

_LIMIT: Final = Parameter("limit", "Maximum number of items.", int)
_PAGE: Final = (Parameter("page", "Page number, from 1.", int), Parameter("per_page", "Maximum number of items.", int))
_TENANTS: Final = "/ojs/v1/admin/tenants"
_POOLS: Final = "/ojs/v1/admin/pools"
_CODEC_ERRORS: Final = ("unsupported", "validation_error", "permission_denied")
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
            Parameter("cursor", "End of the previous page."),
            _LIMIT,
        ),
    ),
    ("GET", "/ojs/v1/admin/system/maintenance"): Operation("Get the maintenance state", "admin"),
    ("POST", "/ojs/v1/admin/system/maintenance"): Operation(
        "Begin or end maintenance, during which workers get no jobs",
        "admin",
        {200: dict},
        requests.Maintenance,
        errors=_SET_ERRORS,
    ),
}
