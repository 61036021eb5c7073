"""Error responses (ojs-http-binding section 16, ojs-errors sections 3 and 5).

The codes on the wire are those of the HTTP binding, in lower case; `type` is the class that clients branch on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from waybill.ojs.errors import DuplicateJob, PushFailed

MAX_QUEUE_LENGTH: Final = 128
DOCS: Final = "https://openjobspec.org/errors/"


class Kind(NamedTuple):
    """The properties of an error code."""

    status: int
    hint: str
    type: str = ""
    is_retryable: bool = False
    shows_details: bool = False
    """Whether the details are also shown beside the code, as some extensions expect."""


KINDS: Final[dict[str, Kind]] = {
    "invalid_request": Kind(400, "Correct the field that the message names."),
    "invalid_payload": Kind(400, "Send one JSON object, encoded in UTF-8."),
    "validation_error": Kind(422, "Correct the field that the message names."),
    "unauthenticated": Kind(401, "Send the header Authorization: Bearer KEY."),
    "permission_denied": Kind(403, "Use a key whose role allows this."),
    "not_found": Kind(404, "Check the id or the name. Jobs that have ended are deleted after a while."),
    "method_not_allowed": Kind(405, "The header Allow lists the methods of this path."),
    "wait_timeout": Kind(408, "Repeat the request to wait longer.", is_retryable=True),
    "result_pruned": Kind(410, "Fetch results before they expire, or push with a longer result_ttl."),
    "conflict": Kind(409, "Read the current state with GET.", "invalid_state_transition"),
    "duplicate": Kind(409, "Use the job in details.existing_job_id, or another unique key."),
    "request_timeout": Kind(408, "Send the whole request without pauses.", is_retryable=True),
    "payload_too_large": Kind(413, "Store large data elsewhere and send a reference to it.", shows_details=True),
    "RESULT_TOO_LARGE": Kind(
        413, "Store the result elsewhere, and acknowledge the job with a reference to it.", shows_details=True
    ),
    "uri_too_long": Kind(414, "Send a shorter path and query."),
    "UNSUPPORTED_COMPRESSION": Kind(415, "Send the body as it is, or compressed with gzip or zstd."),
    "expectation_failed": Kind(417, "Leave out the header Expect, or send 100-continue."),
    "schema_validation": Kind(400, "Correct the arguments, or name another schema."),
    "unsupported": Kind(422, "The manifest lists what this server supports."),
    "JOB_TYPE_NOT_ALLOWED": Kind(422, "Use a queue whose configuration allows this type."),
    "EXTENSION_NOT_SUPPORTED": Kind(422, "The manifest lists the extensions of this server.", shows_details=True),
    "QUEUE_FULL": Kind(
        429, "Try again after the time in the header Retry-After.", is_retryable=True, shows_details=True
    ),
    "TENANT_LIMIT_EXCEEDED": Kind(
        429, "Try again when the tenant has fewer waiting jobs.", is_retryable=True, shows_details=True
    ),
    "rate_limited": Kind(429, "Try again after the time in the header Retry-After.", is_retryable=True),
    "upgrade_required": Kind(426, "Open the path with a WebSocket client."),
    "headers_too_large": Kind(431, "Send shorter headers."),
    "backend_error": Kind(500, "Try again. If it fails again, see the log of the server.", is_retryable=True),
    "not_implemented": Kind(501, "Send a Content-Length, or a chunked body."),
    "overloaded": Kind(503, "Try again after the time in the header Retry-After.", is_retryable=True),
    "backend_unavailable": Kind(
        503, "Try again: the server cannot reach its broker or its database.", is_retryable=True
    ),
    "backend_timeout": Kind(
        504, "Read the state with GET, then try again if the request had no effect.", is_retryable=True
    ),
    "version_not_supported": Kind(505, "Use HTTP/1.1."),
}

CODES_OF_JOB_ERRORS: Final = {
    "DUPLICATE": "duplicate",
    "QUEUE_FULL": "QUEUE_FULL",
    "NOT_FOUND": "not_found",
    "BACKEND_UNAVAILABLE": "backend_unavailable",
    "PAYLOAD_TOO_LARGE": "payload_too_large",
    "METADATA_TOO_LARGE": "payload_too_large",
    "INVALID_RETRY_POLICY": "validation_error",
    "UNKNOWN_QUEUE": "not_found",
}
"""The HTTP codes for codes of the error catalogue; all others are invalid requests."""

RETRY_AFTER_SECONDS: Final = 1


class RequestRefused(Exception):
    """A request that is answered with an error. `code` is one of KINDS."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        details: dict[str, object] | None = None,
        hint: str | None = None,
        headers: list[tuple[str, str]] | None = None,
    ) -> None:
        """`message` describes the error in full sentences, for the client's log."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or {}
        self.hint = hint
        self.headers = headers or []

    @property
    def kind(self) -> Kind:
        """The properties of the code."""
        return KINDS[self.code]

    def body(self, request_id: str) -> dict[str, object]:
        """Return the body of the response."""
        kind = self.kind
        return {
            "error": (self.details if kind.shows_details else {})
            | {
                "code": self.code,
                "type": kind.type or self.code.lower(),
                "message": self.message,
                "hint": self.hint or kind.hint,
                "docs_url": DOCS + self.code.upper(),
                "request_id": request_id,
                "retryable": kind.is_retryable,
                "details": self.details,
            }
        }


def is_valid_queue_name(queue: str) -> bool:
    """Whether this is a valid queue name. A broker cannot be asked for invalid ones."""
    return len(queue.encode(errors="replace")) <= MAX_QUEUE_LENGTH and queue.isprintable()


def invalid(field: str, what: str) -> RequestRefused:
    """Return the error for an invalid field."""
    return RequestRefused("invalid_request", f"{field}: {what}.", details={"field": field})


def not_found(what: str, name: str) -> RequestRefused:
    """Return the error for a missing object."""
    details: dict[str, object] = {"resource_type": what, "resource_id": name[:300]}
    return RequestRefused("not_found", f"{what.capitalize()} {name[:300]!r} does not exist.", details=details)


def ended_since(job_id: str, state: object) -> RequestRefused:
    """Return the error for a change of a job that has ended while it was asked for."""
    details: dict[str, object] = {"job_id": job_id, "current_state": state}
    return RequestRefused("conflict", f"The job has ended since: it is {state}.", details=details)


def not_seen_yet(job_id: str, state: object) -> RequestRefused:
    """Return the error for a change that is safe in the broker, but not in the job view in time."""
    details: dict[str, object] = {"job_id": job_id, "current_state": state}
    text = f"The change has been sent, but the job is still {state} in the job database: look again."
    return RequestRefused("backend_timeout", text, details=details)


def duplicate_of(error: DuplicateJob) -> RequestRefused:
    """Return the error for a duplicate of a unique job."""
    details: dict[str, object] = {
        "existing_job_id": error.existing_id,
        "existing_state": error.existing_state,
        "existing_job_state": error.existing_state,
        "job_id": error.job_id,
    }
    if error.unique_key:
        details["uniqueness_key"] = error.unique_key
    return RequestRefused("duplicate", "A job with the same unique key already exists.", details=details)


def partial_failure(failures: Sequence[PushFailed], pushed: Sequence[str]) -> Exception:
    """Return the error for a batch that the broker accepted in part: AMQP has no atomic batches."""
    if not pushed:
        return failures[0]
    details: dict[str, object] = {
        "failed": [{"job_id": one.job_id, "code": one.code} for one in failures],
        "enqueued": list(pushed),
    }
    return RequestRefused("backend_error", f"{len(failures)} jobs were not enqueued.", details=details)
