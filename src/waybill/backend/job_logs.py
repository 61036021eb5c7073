"""Logs of jobs, written by workers and kept for some days (records of ojs-logging).

The specification defines the form of a log record, but not how to store it. Here, a worker appends log records to its
job, and each append is one record of the server: `job-log/JOB/ID`, in the order of the ids.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form
from waybill.ojs.coordinator.records import Records
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.timestamps import format_timestamp, parse_timestamp

KIND: Final = "job-log/"
RETENTION: Final = timedelta(days=7)
MOST_APPENDS: Final = 200
"""The maximum for each job."""
MOST_ENTRIES: Final = 100
"""The maximum for each append."""
MAX_APPEND_BYTES: Final = 128 * 1024
MAX_MESSAGE: Final = 8 * 1024
SEVERITIES: Final = {"TRACE": 1, "DEBUG": 5, "INFO": 9, "WARN": 13, "ERROR": 17, "FATAL": 21}
_ALIASES: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_KEPT_FIELDS: Final = ("category", "trace", "error", "attributes")


class Append(msgspec.Struct):
    """Log records that were appended together."""

    entries: list[Form]


class JobLogs:
    """The logs that one server reads and writes."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def append(self, job_id: str, entries: list[Form]) -> list[Form]:
        """Store log records of a job; returns them. Raises RequestRefused if there are too many."""
        before = await self._records.list(_prefix(job_id), MOST_APPENDS)
        if len(before) >= MOST_APPENDS or len(msgspec.json.encode(entries)) > MAX_APPEND_BYTES:
            details: Form = {"max_appends": MOST_APPENDS, "max_bytes": MAX_APPEND_BYTES}
            raise RequestRefused("payload_too_large", "The job has reached the limit of log records.", details=details)
        append_id = new_id()
        made: list[Form] = [{"id": f"{append_id}.{index:03}", **entry} for index, entry in enumerate(entries)]
        expires_at = format_timestamp(datetime.now(UTC) + RETENTION)
        await self._records.put(_prefix(job_id) + append_id, Append(made), expires_at=expires_at)
        return made

    async def read(self, job_id: str, least: int, after: str, limit: int) -> tuple[list[Form], bool]:
        """Return up to `limit` records of at least a severity, oldest first, and whether there are more."""
        found: list[Form] = []
        begin = _prefix(job_id) + after.partition(".")[0] if after else ""
        # The append at the end of the last page may have more.
        records = [
            *([one] if begin and (one := await self._records.get(begin)) is not None else []),
            *await self._records.list(_prefix(job_id), MOST_APPENDS, begin),
        ]
        for record in records:
            for entry in record.read(Append).entries:
                number = entry.get("severity_number")
                if str(entry["id"]) > after and isinstance(number, int) and number >= least:
                    found.append(entry)
                    if len(found) > limit:
                        return found[:limit], True
        return found, False


def read_entry(given: object, job: Form, now: str, index: int) -> Form:
    """Return a worker's log record in its stored form. Raises RequestRefused."""
    field = f"entries[{index}]"
    if not isinstance(given, dict):
        raise invalid(field, "must be an object")
    name = given.get("severity", given.get("level", "INFO"))
    severity = severity_of(name, f"{field}.severity")
    message = given.get("message")
    if not isinstance(message, str) or len(message) > MAX_MESSAGE:
        raise invalid(f"{field}.message", f"must be a string of at most {MAX_MESSAGE} characters")
    time = given.get("timestamp", now)
    try:
        timestamp = format_timestamp(parse_timestamp(time if isinstance(time, str) else "", "time").astimezone(UTC))
    except (InvalidJob, OverflowError):
        raise invalid(f"{field}.timestamp", "must be an RFC 3339 time") from None
    entry: Form = {
        "timestamp": timestamp,
        "severity": severity,
        "severity_number": SEVERITIES[severity],
        "level": severity.lower(),
        "message": message,
        "component": "worker",
        "ojs": job,
    }
    return entry | {one: given[one] for one in _KEPT_FIELDS if given.get(one) is not None}


def severity_of(value: object, field: str) -> str:
    """Return a severity by its name. Raises RequestRefused."""
    name = value.upper() if isinstance(value, str) else ""
    name = _ALIASES.get(name, name)
    if name not in SEVERITIES:
        raise invalid(field, f"must be one of {', '.join(SEVERITIES)}")
    return name


def _prefix(job_id: str) -> str:
    return f"{KIND}{job_id}/"
