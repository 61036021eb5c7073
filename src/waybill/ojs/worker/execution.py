"""One attempt at one job: what the worker knows while it runs."""

from __future__ import annotations

import asyncio
import traceback
from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from waybill.client import Delivery
from waybill.ojs.errors import InvalidJob, JobError, ProcessLost, RemoteTraceback, ResponseCode, text_of
from waybill.ojs.handler import AnyHandler
from waybill.ojs.job_context import JobContext
from waybill.ojs.spec.checkpoint import Checkpoint
from waybill.ojs.spec.envelope import MAX_ARGS_DEPTH, Envelope, ErrorRecord
from waybill.ojs.spec.headers import run_number
from waybill.ojs.spec.nesting import clean_text, is_nested_deeper
from waybill.ojs.spec.timeouts import EXECUTION, VISIBILITY_TYPE, Overrun, exceeded_total, total_end

MAX_BACKTRACE_LINES: Final = 50
MAX_BACKTRACE_CHARACTERS: Final = 10_000
MAX_ERROR_MESSAGE: Final = 10_000
MAX_ERROR_TYPE: Final = 255
MAX_DETAILS_BYTES: Final = 64 * 1024

LOST: Final = "WorkerLost"
"""The error type of an attempt whose worker vanished."""
SHUTDOWN: Final = "ShutdownError"
TIMEOUT: Final = "timeout"


AttemptKey = tuple[str, int, str | None]
"""Job id, attempt, and time of enqueueing: a dead letter that is retried counts its attempts anew."""


class Ending(Enum):
    """Why the worker, not the handler, ended an attempt."""

    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    CANCELLED = "cancelled"
    REPLACED = "replaced"


class Execution:
    """An attempt. `attempt` counts from 1; `started` and `deadline` are seconds of the loop's clock."""

    def __init__(self, delivery: Delivery, queue: str, envelope: Envelope, attempt: int) -> None:
        self.delivery = delivery
        self.queue = queue
        self.envelope = envelope
        self.attempt = attempt
        self.handler: AnyHandler | None = None
        self.context: JobContext | None = None
        self.future: asyncio.Future[object] | None = None
        self.started = 0.0
        self.began_at = ""
        """When its start was recorded, RFC 3339."""
        self.deadline = 0.0
        self.ending: Ending | None = None
        self.settled = False
        self.checkpoint: Checkpoint | None = None
        self.has_told_checkpoint = False
        """Whether code outside this process's context has set the checkpoint for the next attempt."""

    @property
    def key(self) -> AttemptKey:
        """Identifies the attempt, to recognize its second delivery."""
        return self.envelope.id, self.attempt, self.envelope.enqueued_at

    @property
    def run(self) -> int | None:
        """How often the dead letter of the job was retried, None for never."""
        return run_number(self.delivery.encoded_properties)

    @property
    def seconds_left(self) -> float:
        """How long the attempt may take if it starts now: its timeout, or what is left of the job's total timeout."""
        envelope = self.envelope
        ends_at = None if envelope.total_timeout is None else total_end(envelope)
        if ends_at is None:
            return envelope.timeout_seconds
        return min(envelope.timeout_seconds, (ends_at - datetime.now(UTC)).total_seconds())

    @property
    def runs_in_thread(self) -> bool:
        """Whether its handler is a plain function in a thread, which cannot be stopped."""
        handler = self.handler
        return handler is not None and not handler.is_async and not handler.runs_in_process


class Failure(NamedTuple):
    """Why an attempt failed, and what the handler asked for."""

    record: ErrorRecord
    response: ResponseCode = ResponseCode.RETRY


def failure_of(error: BaseException, execution: Execution, occurred_at: str) -> Failure:
    """Describe what a handler raised (ojs-errors sections 4.5 and 6)."""
    if isinstance(error, ProcessLost):
        return _plain(LOST, str(error), "HANDLER_PANIC", execution.attempt, occurred_at)
    response = error.response if isinstance(error, JobError) else ResponseCode.RETRY
    named = error.type if isinstance(error, JobError) else None
    kind = clean_text(named if isinstance(named, str) and named else type(error).__name__, MAX_ERROR_TYPE)
    record = ErrorRecord(
        type=kind,
        message=clean_text(text_of(error), MAX_ERROR_MESSAGE) or kind,
        code="HANDLER_ERROR",
        attempt=execution.attempt,
        occurred_at=occurred_at,
        backtrace=_backtrace(error),
        details=_details_of(error),
    )
    return Failure(record, response if isinstance(response, ResponseCode) else ResponseCode.RETRY)


def timeout_failure(execution: Execution, occurred_at: str, seconds: float) -> Failure:
    """Describe an attempt that has exceeded its time limit, after so many seconds."""
    limit = exceeded_total(execution.envelope, datetime.now(UTC))
    if limit is not None:
        return Failure(limit.error(execution.attempt, occurred_at), ResponseCode.DEAD_LETTER)
    limit = Overrun(EXECUTION, execution.envelope.timeout_seconds, seconds)
    return Failure(limit.error(execution.attempt, occurred_at))


def shutdown_failure(execution: Execution, occurred_at: str) -> Failure:
    """Describe an attempt that was still running when the worker shut down."""
    text = "the worker shut down before the job was done"
    return _plain(SHUTDOWN, text, "HANDLER_ERROR", execution.attempt, occurred_at)


def early_failure(execution: Execution, occurred_at: str, seconds: float) -> Failure:
    """Describe an attempt that the worker has ended after so many seconds."""
    if execution.ending is Ending.TIMEOUT:
        return timeout_failure(execution, occurred_at, seconds)
    return shutdown_failure(execution, occurred_at)


def lost_failure(attempt: int, occurred_at: str, limit: Overrun | None = None) -> Failure:
    """Describe an attempt of which only the delivery is known, and for how long its worker was silent."""
    text = "the worker of the job stopped sending heartbeats"
    kind = LOST if limit is None else VISIBILITY_TYPE
    failure = _plain(kind, text, "HANDLER_PANIC", attempt, occurred_at)
    if limit is not None:
        failure.record.timeout_kind = limit.kind
        failure.record.limit_seconds, failure.record.elapsed_seconds = limit.in_whole
    return failure


def arguments_failure(execution: Execution, error: TypeError | InvalidJob, occurred_at: str) -> Failure:
    """Describe a job whose arguments do not fit its handler: no attempt can ever succeed."""
    record = ErrorRecord(
        type="InvalidArguments",
        message=clean_text(text_of(error), MAX_ERROR_MESSAGE),
        code="INVALID_ARGS",
        attempt=execution.attempt,
        occurred_at=occurred_at,
    )
    return Failure(record, ResponseCode.DEAD_LETTER)


def _plain(kind: str, message: str, code: str, attempt: int, occurred_at: str) -> Failure:
    return Failure(ErrorRecord(type=kind, message=message, code=code, attempt=attempt, occurred_at=occurred_at))


def _details_of(error: BaseException) -> dict[str, object] | None:
    """Return the details that a handler has set, None if they cannot be written as a JSON object."""
    if not isinstance(error, JobError) or error.details is None:
        return None
    try:
        encoded = msgspec.json.encode(error.details)
        if len(encoded) > MAX_DETAILS_BYTES or is_nested_deeper(encoded, MAX_ARGS_DEPTH):
            return None
        return msgspec.json.decode(encoded, type=dict[str, object])
    except Exception:  # noqa: BLE001 - whatever it is, the failure itself is what counts
        return None


def _backtrace(error: BaseException) -> list[str] | None:
    """Return the innermost frames, one string each, within the limits of ojs-core section 8."""
    cause = error.__cause__
    try:
        if isinstance(cause, RemoteTraceback):
            frames = cause.frames
        else:
            frames = traceback.extract_tb(error.__traceback__, limit=-MAX_BACKTRACE_LINES)
    except Exception:  # noqa: BLE001 - the source of a frame comes from whatever has loaded its module
        return None
    lines = [
        clean_text(f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}", MAX_BACKTRACE_CHARACTERS)
        for frame in frames[-MAX_BACKTRACE_LINES:]
    ]
    while lines and sum(map(len, lines)) > MAX_BACKTRACE_CHARACTERS:
        del lines[0]
    return lines or None
