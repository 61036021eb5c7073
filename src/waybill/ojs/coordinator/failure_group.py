"""Groups of similar failures: jobs of one type and queue that failed with errors that differ only in details."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.ojs.coordinator.job_record import JobRecord
from waybill.ojs.spec.nesting import clean_text
from waybill.ojs.spec.states import State

MAX_MESSAGE: Final = 500
RETENTION_HOURS: Final = 24
"""The number of hours for which failures are counted by hour."""
HOUR_SECONDS: Final = 3600
_DISCARDED: Final = State.DISCARDED.value
_DETAIL: Final = re.compile(
    r"'[^']*'|\"[^\"]*\"|0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|\d+"
)
"""What may differ between errors with one cause: quoted values, addresses, ids, numbers."""


class FailureGroup(msgspec.Struct):
    """Similar failures, with the last of them. Times are RFC 3339."""

    fingerprint: str
    type: str
    queue: str
    error_type: str
    message: str
    count: int
    first_at: str
    last_at: str
    last_job: str


def group_of(job: JobRecord) -> FailureGroup:
    """Return the group of a discarded job, with only this job in it."""
    error = job.error or {}
    kind = clean_text(str(error.get("type") or error.get("code") or "unknown"), MAX_MESSAGE)
    message = clean_text(str(error.get("message") or ""), MAX_MESSAGE)
    text = "\0".join((job.type, job.queue, kind, _DETAIL.sub("*", message)))
    fingerprint = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
    at = job.ended_at or ""
    return FailureGroup(fingerprint, job.type, job.queue, kind, message, 1, at, at, job.id)


def fingerprint_of(job: JobRecord) -> str | None:
    """Return the fingerprint of a job's group, None for a job that was not discarded."""
    return group_of(job).fingerprint if job.state == _DISCARDED else None


Hours = Counter[int]
"""The number of failed jobs by hour since 1970 (UTC)."""


def hour_of(job: JobRecord) -> int | None:
    """Return the hour in which a job ended, None if its event has no valid time."""
    try:
        ended = datetime.fromisoformat(job.ended_at or "")
        return int(ended.astimezone(UTC).timestamp()) // HOUR_SECONDS if ended.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def series_of(hours: Mapping[int, int], now: float) -> list[int]:
    """Return the failures of the last RETENTION_HOURS hours, oldest first; `now` is Unix time."""
    last = int(now) // HOUR_SECONDS
    return [hours.get(hour, 0) for hour in range(last - RETENTION_HOURS + 1, last + 1)]
