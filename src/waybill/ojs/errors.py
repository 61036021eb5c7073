"""Errors of jobs: those that callers get, and those that handlers raise to decide what happens next.

The codes are those of the OJS error catalogue (ojs-errors.md section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from traceback import StackSummary
from typing import Final

MAX_CHARACTERS: Final = 1000
"""Of the field and of the message of an invalid job."""


class JobsError(Exception):
    """Base of all errors of this package."""


class DatabaseUnusable(JobsError):
    """The database for the state of jobs is unusable: it is damaged, unreachable, or belongs to another program."""


class InvalidJob(JobsError, ValueError):
    """An envelope, a retry policy or an option violates the specification.

    `field` is the path of the offending field (`retry.max_attempts`, `args[2]`), `code` the OJS error code.
    """

    def __init__(self, field: str, message: str, *, code: str = "INVALID_PAYLOAD") -> None:
        """`message` describes the error of `field`, `code` is the OJS code.

        Both may quote what was wrong, which has any size: of a long one, the middle is left out.
        """
        self.field = _shortened(field)
        self.message = _shortened(message)
        super().__init__(f"{self.field}: {self.message}")
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, to pass it between processes."""
        return _again, (type(self), self.field, self.message, self.code)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS // 2]}...{text[-MAX_CHARACTERS // 2 :]}"


def _again(kind: type[InvalidJob], field: str, message: str, code: str) -> InvalidJob:
    return kind(field, message, code=code)


class JobTooLarge(InvalidJob):
    """A part of an envelope is larger than it may be; `actual_bytes` and `max_bytes` say how much."""

    def __init__(self, field: str, actual_bytes: int, max_bytes: int, *, code: str) -> None:
        """`field` is `meta`, or `envelope` for all of it."""
        super().__init__(field, f"has {actual_bytes} bytes, {max_bytes} are allowed", code=code)
        self.actual_bytes = actual_bytes
        self.max_bytes = max_bytes

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling, as above."""
        return _again_too_large, (self.field, self.actual_bytes, self.max_bytes, self.code)


def _again_too_large(field: str, actual_bytes: int, max_bytes: int, code: str) -> JobTooLarge:
    return JobTooLarge(field, actual_bytes, max_bytes, code=code)


class InvalidArguments(InvalidJob):
    """The arguments of a job do not fit its handler; `field` names the parameter. No attempt could ever succeed."""

    def __init__(self, field: str, message: str, *, code: str = "INVALID_ARGS") -> None:
        """`message` describes the error of the parameter."""
        super().__init__(field, message, code=code)


class InvalidTransition(JobsError):
    """An event that the current state of the job does not allow (ojs-core section 6.3)."""

    code = "INVALID_STATE_TRANSITION"

    def __init__(self, state: str | None, operation: str) -> None:
        """`state` is None for a job that does not exist yet."""
        super().__init__(f"{operation} is not allowed for a job that is {state or 'not enqueued yet'}")
        self.state = state
        self.operation = operation


class PushFailed(JobsError):
    """The broker did not accept a job: no queue is bound for it, its queue is full, or the broker is unreachable."""

    def __init__(self, job_id: str, code: str, message: str) -> None:
        """`code` is NOT_FOUND, QUEUE_FULL or BACKEND_UNAVAILABLE."""
        super().__init__(f"job {job_id} was not enqueued: {message} ({code})")
        self.job_id = job_id
        self.code = code


class DuplicateJob(PushFailed):
    """A unique job was not enqueued: `existing_id` exists already, in the state `existing_state`.

    The state is "unknown" without a coordinator: then the job has not ended. `unique_key` is the fingerprint that both
    have, empty if it is unknown.
    """

    def __init__(self, job_id: str, existing_id: str, existing_state: str, unique_key: str = "") -> None:
        """The code is DUPLICATE."""
        state = "has not ended" if existing_state == "unknown" else f"is {existing_state}"
        super().__init__(job_id, "DUPLICATE", f"it is a duplicate of {existing_id}, which {state}")
        self.existing_id = existing_id
        self.existing_state = existing_state
        self.unique_key = unique_key


class CronNotFound(JobsError):
    """There is no cron job of this name."""


class ControlFailed(JobsError):
    """A request to the coordinator was refused or not answered in time. Perhaps no coordinator is running."""


class TopologyConflict(JobsError):
    """A queue or exchange exists with other properties; it is not changed (binding section 10.1)."""


class DeclarationRefused(TopologyConflict):
    """The broker keeps no further queues, exchanges or bindings: a limit is reached, or its disk is low."""


class UnknownQueue(JobsError):
    """The queue does not exist: its name may be a typo. `nearest` are the known queues with the most similar names."""

    code = "NOT_FOUND"

    def __init__(self, queue: str, nearest: Sequence[str] = ()) -> None:
        """Name the queue and similar ones."""
        meant = f"; did you mean {' or '.join(nearest)}?" if nearest else "."
        super().__init__(
            f"nobody has declared queue {queue}{meant} If it is new: `waybill queue declare {queue}`, --create, or"
            " Jobs(create_queues=True)"
        )
        self.queue = queue
        self.nearest = list(nearest)


class UnknownContext(JobsError, ValueError):
    """The context named by an argument or by WAYBILL_CONTEXT does not exist for this user."""


class UnusableContexts(JobsError):
    """The contexts file cannot be read, or is invalid."""


class ResponseCode(Enum):
    """How a failed job is handled (ojs-retry section 7.1)."""

    RETRY = "RETRY"
    DISCARD = "DISCARD"
    DEAD_LETTER = "DEAD_LETTER"
    FAIL = "FAIL"


class JobError(Exception):
    """Raised by a handler that wants to name its error, or to decide what happens next.

    `type` is dot-separated (`external.stripe.card_declined`) and matched against `non_retryable_errors`;
    without it, the class name is used. `response` overrides the retry policy unless it is RETRY.
    """

    response = ResponseCode.RETRY

    def __init__(self, message: str, *, type: str | None = None, details: dict[str, object] | None = None) -> None:  # noqa: A002 - the name that the specification gives to the field
        """`details` is any JSON object, which is stored with the error."""
        super().__init__(message)
        self.type = type
        self.details = details


class DiscardJob(JobError):
    """Discard the job: it is not retried, regardless of its retry policy."""

    response = ResponseCode.DISCARD


class DeadLetterJob(JobError):
    """Move the job to the dead letter queue immediately, regardless of its retry policy."""

    response = ResponseCode.DEAD_LETTER


class JobCancelled(Exception):
    """Raised by `JobContext.raise_if_cancelled` if the job is cancelled or past its time limit.

    In a handler that runs in a process, it interrupts the handler at any point.
    """


class ProcessLost(Exception):
    """The process of a job died: killed by the kernel for lack of memory, or crashed."""


class PostponeJob(Exception):
    """Raised by a handler or a middleware to postpone the job by `seconds`. No attempt is used."""

    def __init__(self, seconds: float) -> None:
        """`seconds` are rounded up to a step of the delay ladder."""
        super().__init__(f"postponed by {seconds:g} s")
        self.seconds = seconds


class FailJob(JobError):
    """A permanent failure that the handler has recognised."""

    response = ResponseCode.FAIL


class RemoteTraceback(Exception):
    """The cause of an exception from a process, with its traceback there."""

    def __init__(self, frames: StackSummary) -> None:
        super().__init__("".join(frames.format()))
        self.frames = frames


def text_of(error: BaseException) -> str:
    """Return the text of an exception; its `__str__` is the handler's code, and may fail."""
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001 - see above
        return f"an exception without a text: its __str__ raises {type(second).__name__}"
