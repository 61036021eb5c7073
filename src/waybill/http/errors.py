"""Converts refusals and missing answers of servers to the errors that programs know from AMQP."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from waybill.http.answer import Answer
from waybill.ojs.errors import ControlFailed, DuplicateJob, InvalidJob, PushFailed

OF_PUSHES: Final = {
    "not_found": "NOT_FOUND",
    "queue_full": "QUEUE_FULL",
    "backend_error": "BACKEND_UNAVAILABLE",
    "backend_timeout": "BACKEND_UNAVAILABLE",
    "backend_unavailable": "BACKEND_UNAVAILABLE",
}
"""The codes of `PushFailed` for those of the HTTP binding; others are the same in upper case."""
INVALID: Final = frozenset({400, 413, 422})
TRY_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_TEXT: Final = 500


class NoAnswer(ControlFailed):
    """A server cannot be reached, does not respond in time, or sends an invalid response."""


class RequestRefused(ControlFailed):
    """A server has answered with an error; `code` is one of the error catalogue, in lower case."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: dict[str, Any],
        is_retryable: bool,
        request_id: str,
        retry_after: float = 0.0,
    ) -> None:
        """`retry_after` is in seconds."""
        super().__init__(f"{message} ({code}, request {request_id})" if request_id else f"{message} ({code})")
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.is_retryable = is_retryable
        self.request_id = request_id
        self.retry_after = retry_after


def json_of(answer: Answer) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises NoAnswer for anything else."""
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise NoAnswer(f"the server answered {answer.status} without a JSON object") from None


def refusal_of(answer: Answer) -> RequestRefused:
    """Return the error of a response, for any body."""
    try:
        error = json_of(answer).get("error")
    except NoAnswer:
        error = None
    if not isinstance(error, dict):
        error = {"message": error if isinstance(error, str) else f"the server answered {answer.status}"}
    details = error.get("details")
    code = error.get("code") or error.get("type")
    retryable = error.get("retryable")
    return RequestRefused(
        answer.status,
        str(code or f"http_{answer.status}").lower()[:100],
        str(error.get("message") or "the request was refused")[:MAX_TEXT],
        details=details if isinstance(details, dict) else {},
        is_retryable=retryable if isinstance(retryable, bool) else answer.status in TRY_AGAIN,
        request_id=str(error.get("request_id") or "")[:100],
        retry_after=answer.retry_after or 0.0,
    )


def push_error(refusal: RequestRefused, job_id: str) -> PushFailed | InvalidJob:
    """Return the error of a refused push."""
    details = refusal.details
    if refusal.code == "duplicate":
        existing = str(details.get("existing_job_id") or job_id)
        return DuplicateJob(job_id, existing, str(details.get("existing_state") or "unknown"))
    if refusal.status in INVALID:
        return InvalidJob(str(details.get("field") or "job"), refusal.message, code=refusal.code.upper())
    return PushFailed(job_id, OF_PUSHES.get(refusal.code, refusal.code.upper()), refusal.message)
