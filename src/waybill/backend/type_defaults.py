"""Defaults of job types, set by operators: attempts and a timeout.

They apply to jobs pushed over HTTP. Programs that push over AMQP set them in their handlers.
"""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form
from waybill.backend.settings import Settings

MOST_ATTEMPTS: Final = 1000
MOST_SECONDS: Final = 7 * 86_400


class TypeDefault(msgspec.Struct, omit_defaults=True):
    """The defaults of one type; None for no default. `evidence` is the reason, for later readers."""

    max_attempts: int | None = None
    timeout_seconds: int | None = None
    evidence: str = ""


class TypeDefaults:
    """The defaults of one server."""

    def __init__(self, settings: Settings) -> None:
        self.table = settings.table("type-default", TypeDefault)

    def __len__(self) -> int:
        return len(self.table)

    def fill(self, job: Form) -> bool:
        """Add missing options to a job of a request; returns whether anything was added."""
        kind = job.get("type")
        found = self.table.get(kind.partition("@")[0]) if isinstance(kind, str) else None
        if found is None:
            return False
        options = job.get("options")
        told = {**job, **(options if isinstance(options, dict) else {})}
        before = len(job)
        if found.max_attempts is not None and told.get("retry") is None and told.get("max_attempts") is None:
            job["retry"] = {"max_attempts": found.max_attempts}
        if found.timeout_seconds is not None and told.get("timeout") is None and told.get("timeout_ms") is None:
            job["timeout_ms"] = found.timeout_seconds * 1000
        return len(job) > before


def read_default(body: Form) -> TypeDefault:
    """Read the defaults of a request. Raises RequestRefused."""
    unknown = sorted(set(body) - {"max_attempts", "timeout_seconds", "evidence"})
    if unknown:
        raise RequestRefused("unsupported", f"{unknown[0]} cannot be set.", details={"field": unknown[0]})
    evidence = body.get("evidence", "")
    if not isinstance(evidence, str) or len(evidence) > 1000:
        raise invalid("evidence", "must be a string of at most 1000 characters")
    attempts = read_integer(body, "max_attempts", MOST_ATTEMPTS)
    timeout = read_integer(body, "timeout_seconds", MOST_SECONDS)
    if attempts is None and timeout is None:
        raise invalid("max_attempts", "either this or timeout_seconds is required")
    return TypeDefault(attempts, timeout, evidence)


def read_integer(body: Form, name: str, most: int) -> int | None:
    """Return a positive integer; None for None. Raises RequestRefused."""
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most):
        raise invalid(name, f"must be an integer from 1 to {most}")
    return value
