"""The rules of lifecycle events (ojs-events sections 2 to 4, event.schema.json) as a JSON schema of our own."""

from typing import Any, Final

import jsonschema_rs

TEXT: Final = {"type": "string", "minLength": 1}
COUNT: Final = {"type": "integer", "minimum": 0}
ATTEMPT: Final = {"type": "integer", "minimum": 1}
TIME: Final = {"type": "string", "format": "date-time"}
NAMES: Final = {"type": "array", "items": TEXT}
JOB: Final = {"job_type": TEXT, "queue": TEXT}
HOLDER: Final = {**JOB, "worker_id": TEXT, "attempt": ATTEMPT}
WORKFLOW: Final = {"workflow_id": TEXT, "workflow_name": TEXT}
STEP: Final = {**WORKFLOW, "step_id": TEXT, "step_type": TEXT}
CRON: Final = {"cron_name": TEXT, "cron_expr": TEXT, "job_type": TEXT}

# ojs-cron section 9 has names of its own for what ojs-events calls otherwise.
CRON_ONCE_MORE: Final = {"cron_expression": TEXT, "timezone": TEXT, "scheduled_time": TIME}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "required": sorted(required), "properties": {**required, **(optional or {})}}


_ERROR_OPTIONAL: Final = {"stack_trace": TEXT, "type": TEXT, "retryable": {"type": "boolean"}}
ERROR: Final = _object({"code": TEXT, "message": {"type": "string"}}, _ERROR_OPTIONAL)
FAILURE: Final = _object(
    {"code": TEXT, "message": {"type": "string"}, "retryable": {"type": "boolean"}}, _ERROR_OPTIONAL
)

DATA: Final[dict[str, dict[str, Any]]] = {
    "job.enqueued": _object(JOB, {"priority": {"type": "integer"}, "scheduled_at": TIME, "unique_key": TEXT}),
    "job.scheduled": _object({**JOB, "scheduled_at": TIME}),
    "job.started": _object(HOLDER),
    "job.completed": _object({**JOB, "duration_ms": COUNT, "attempt": ATTEMPT}),
    "job.failed": _object({**JOB, "attempt": ATTEMPT, "error": FAILURE}, {"duration_ms": COUNT}),
    "job.retrying": _object({**JOB, "attempt": ATTEMPT, "max_attempts": COUNT, "next_retry_at": TIME, "error": ERROR}),
    "job.discarded": _object({**JOB, "total_attempts": COUNT, "last_error": ERROR}),
    "job.cancelled": _object(JOB, {"cancelled_by": TEXT, "reason": {"type": "string"}, "waited": {"const": True}}),
    "job.heartbeat": _object({**HOLDER, "visible_until": TIME}),
    "job.expired": _object({**JOB, "created_at": TIME, "expired_at": TIME, "ttl_ms": {"type": "integer"}}),
    "job.progress": _object(
        {**HOLDER, "progress_percent": {"type": "number", "minimum": 0, "maximum": 100}}, {"progress_message": TEXT}
    ),
    "queue.paused": _object({"queue": TEXT}, {"paused_by": TEXT}),
    "queue.resumed": _object({"queue": TEXT}, {"resumed_by": TEXT}),
    "worker.started": _object({"worker_id": TEXT, "queues": NAMES, "concurrency": ATTEMPT}),
    "worker.stopped": _object(
        {"worker_id": TEXT, "reason": {"enum": ["shutdown", "signal", "error"]}},
        {"jobs_completed": COUNT, "uptime_ms": COUNT},
    ),
    "worker.quiet": _object({"worker_id": TEXT, "active_jobs": COUNT}),
    "worker.heartbeat": _object({"worker_id": TEXT, "active_jobs": COUNT, "queues": NAMES}),
    "workflow.created": _object({**WORKFLOW, "workflow_type": TEXT, "total_steps": COUNT}),
    "workflow.started": _object({**WORKFLOW, "total_steps": COUNT}),
    "workflow.step_completed": _object({**STEP, "duration_ms": COUNT, "steps_remaining": COUNT}),
    "workflow.step_failed": _object({**STEP, "error": ERROR}),
    "workflow.job_completed": _object({**STEP, "duration_ms": COUNT, "steps_remaining": COUNT}),
    "workflow.job_failed": _object({**STEP, "error": ERROR}),
    "workflow.callback_fired": _object({**WORKFLOW, "callback": TEXT, "job_id": TEXT}),
    "workflow.cancelled": _object(WORKFLOW, {"reason": {"type": "string"}}),
    "workflow.completed": _object({**WORKFLOW, "total_steps": COUNT, "duration_ms": COUNT}),
    "workflow.failed": _object({**WORKFLOW, "failed_step_id": TEXT, "failed_step_type": TEXT, "error": ERROR}),
    "cron.triggered": _object(
        {**CRON, **CRON_ONCE_MORE, "job_id": TEXT, "scheduled_at": TIME, "run_count": ATTEMPT, "actual_time": TIME}
    ),
    "cron.skipped": _object(
        {**CRON, **CRON_ONCE_MORE, "reason": {"enum": ["overlap_skip", "disabled", "dst_skip"]}},
        {"existing_job_id": TEXT, "active_job_id": TEXT},
    ),
}

OURS: Final = frozenset(
    {
        "view.marked", "job.reserved", "job.released", "claim.pushed", "claim.copied",
        "claim.dropped", "claim.admitted",
        "workflow.sealed", "workflow.expired", "workflow.retried", "workflow.stopped", "workflow.revived",
        "workflow.forgotten", "workflow.followed", "workflow.pushing", "workflow.abandoned", "workflow.compensated",
        "job.staged", "job.activated", "job.unstaged", "job.deleted", "dead_letter.pruned", "dead_letter.retried",
        "dead_letter.deleted", "rate_limit.exceeded", "rate_limit.released",
        "rate_limit.dropped", "rate_limit.dynamic_adjusted",
        "cron.registered", "cron.toggled", "cron.removed", "cron.claimed", "cron.told",
        "record.put", "record.removed", "job.timeout", "job.stalled", "job.ttl_expired", "job.total_timeout",
    }
)  # fmt: skip
"""The types beside the catalogue: how coordinators agree (docs/reference/events.md)."""

SCHEMA: Final = {
    **_object(
        {
            "specversion": {"const": "1.0"},
            "id": {"type": "string", "pattern": "^evt_[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
            "type": {"enum": sorted(DATA)},
            "source": {"type": "string", "format": "uri", "pattern": "^ojs://[^/]+/[^/]+/[^/]+$"},
            "time": TIME,
            "subject": TEXT,
            "data": {"type": "object"},
        }
    ),
    "allOf": [
        {"if": {"properties": {"type": {"const": kind}}}, "then": {"properties": {"data": data}}}
        for kind, data in DATA.items()
    ],
}

_VALIDATOR: Final = jsonschema_rs.Draft202012Validator(SCHEMA, validate_formats=True)


def complaints(event: dict[str, Any]) -> list[str]:
    """Say what is wrong with an event of the catalogue; nothing if it keeps the rules."""
    return [f"{'/'.join(map(str, error.instance_path))}: {error.message}" for error in _VALIDATOR.iter_errors(event)]
