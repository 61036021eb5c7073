"""Converts a worker's report of a failed attempt to an error record."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from waybill.ojs.errors import InvalidJob, ResponseCode
from waybill.ojs.spec.envelope import ErrorRecord
from waybill.ojs.spec.nesting import clean_text
from waybill.ojs.spec.retry import is_non_retryable
from waybill.ojs.spec.timestamps import parse_timestamp
from waybill.ojs.worker.execution import (
    MAX_BACKTRACE_CHARACTERS,
    MAX_BACKTRACE_LINES,
    MAX_DETAILS_BYTES,
    MAX_ERROR_MESSAGE,
    MAX_ERROR_TYPE,
    Execution,
    Failure,
)

_CLASS_FIELDS: Final = ("error_class", "exception", "type")
"""The keys of the details in which clients send the class of the exception."""


def failure_of(error: dict[str, object], execution: Execution, occurred_at: str) -> Failure:
    """Return the failure. One that is not retryable, by its worker or by the policy, ends the job."""
    details = error.get("details")
    details = details if isinstance(details, dict) else {}
    code = _text(error.get("code")) or "handler_error"
    classes = [_text(error.get("type")), *(_text(details.get(name)) for name in _CLASS_FIELDS), code]
    named = [one for one in classes if one]
    policy = execution.envelope.policy
    kind = next((one for one in named if is_non_retryable(policy, one)), named[0])
    encoded = msgspec.json.encode(details)
    record = ErrorRecord(
        type=kind,
        message=clean_text(str(error.get("message") or kind), MAX_ERROR_MESSAGE),
        code=code,
        attempt=execution.attempt,
        occurred_at=occurred_at,
        backtrace=_backtrace(error.get("backtrace", error.get("stack_trace"))),
        details=details if details and len(encoded) <= MAX_DETAILS_BYTES else None,
    )
    is_final = error.get("retryable") is False or _is_over(execution, occurred_at)
    return Failure(record, ResponseCode.DEAD_LETTER if is_final else ResponseCode.RETRY)


class _Lifetime(msgspec.Struct):
    created_at: str = ""
    total_timeout: int | None = None


def _is_over(execution: Execution, now: str) -> bool:
    """Whether the time of all attempts of a job is over (ojs-timeouts section 5.2)."""
    try:
        found = msgspec.json.decode(execution.delivery.body, type=_Lifetime)
        if found.total_timeout is None:
            return False
        end = parse_timestamp(found.created_at, "created_at") + timedelta(seconds=found.total_timeout)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidJob, OverflowError):
        # A program that pushes over AMQP may give the field another meaning.
        return False
    return end <= parse_timestamp(now, "time")


def _text(value: object) -> str:
    return clean_text(value, MAX_ERROR_TYPE) if isinstance(value, str) else ""


def _backtrace(value: object) -> list[str] | None:
    lines = value.splitlines() if isinstance(value, str) else value
    if not isinstance(lines, list):
        return None
    kept = [clean_text(line, 1000) for line in lines[-MAX_BACKTRACE_LINES:] if isinstance(line, str)]
    while kept and sum(map(len, kept)) > MAX_BACKTRACE_CHARACTERS:
        del kept[0]
    return kept or None
