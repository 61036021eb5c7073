"""Converts a worker's report of a failed attempt to an error record."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from waybill.ojs.errors import ResponseCode
from waybill.ojs.spec.envelope import MAX_DELAY_SECONDS, ErrorRecord
from waybill.ojs.spec.nesting import clean_text
from waybill.ojs.spec.retry import is_non_retryable, retry_delay_seconds
from waybill.ojs.spec.timeouts import total_end
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


def _is_over(execution: Execution, now: str) -> bool:
    """Whether another attempt could not end within the time of all attempts (ojs-timeouts sections 5.2 and 9.1)."""
    envelope = execution.envelope
    end = total_end(envelope)
    if end is None:
        return False
    has_timeout = envelope.timeout is not None or envelope.timeout_ms is not None
    least = retry_delay_seconds(envelope.policy, execution.attempt, 0.0) + envelope.timeout_seconds * has_timeout
    return parse_timestamp(now, "time") + timedelta(seconds=min(least, MAX_DELAY_SECONDS)) >= end


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
