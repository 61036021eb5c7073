"""The rules of a job envelope on the wire (ojs-json-format section 3, job.schema.json) as a JSON schema of our own."""

from typing import Any, Final

import jsonschema_rs

from tests.ojs.event_rules import ATTEMPT, COUNT, TEXT, TIME

SCHEMA: Final = {
    "type": "object",
    "required": ["specversion", "id", "type", "queue", "args"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", "type": "string"},
        "type": {"pattern": r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$", "maxLength": 255, "type": "string"},
        "queue": {"pattern": r"^[a-z0-9][a-z0-9\-.]*$", "maxLength": 128, "type": "string"},
        "args": {"type": "array"},
        "meta": {"type": "object"},
        "priority": {"type": "integer"},
        "timeout": COUNT,
        "scheduled_at": TIME,
        "expires_at": TIME,
        "retry": {
            "type": "object",
            "properties": {
                "max_attempts": COUNT,
                "initial_interval": {"type": "string", "format": "duration"},
                "max_interval": {"type": "string", "format": "duration"},
                "backoff_coefficient": {"type": "number", "minimum": 1},
                "jitter": {"type": "boolean"},
                "non_retryable_errors": {"type": "array", "items": TEXT},
                "on_exhaustion": {"enum": ["discard", "dead_letter"]},
            },
        },
        "unique": {"type": "object"},
        "schema": {"type": "string", "format": "uri"},
        "state": {
            "enum": [
                "scheduled", "available", "pending", "active", "completed", "retryable", "cancelled", "discarded",
            ],
        },
        "attempt": COUNT,
        "created_at": TIME,
        "enqueued_at": TIME,
        "error": {"type": "object", "required": ["type", "message"], "properties": {"type": TEXT, "message": TEXT}},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["code", "message", "attempt", "occurred_at"],
                "properties": {"code": TEXT, "message": TEXT, "attempt": ATTEMPT, "occurred_at": TIME},
            },
        },
    },
}  # fmt: skip

_VALIDATOR: Final = jsonschema_rs.Draft202012Validator(SCHEMA, validate_formats=True)


def complaints(envelope: dict[str, Any]) -> list[str]:
    """Say what is wrong with an envelope; nothing if it keeps the rules."""
    return [f"{'/'.join(map(str, error.instance_path))}: {error.message}" for error in _VALIDATOR.iter_errors(envelope)]
