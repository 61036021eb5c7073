"""Messages between a worker and the processes of its CPU-bound jobs, pickled over a pipe."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Final

from waybill.ojs.errors import JobError, RemoteTraceback, ResponseCode, text_of
from waybill.ojs.spec.checkpoint import Checkpoint
from waybill.ojs.spec.envelope import Envelope

MAX_TEXT: Final = 10_000
MAX_FRAMES: Final = 50


@dataclass(frozen=True)
class FunctionPath:
    """How the child finds a handler: it imports `module` and follows `name`."""

    module: str
    name: str


@dataclass(frozen=True)
class JobRequest:
    """To the child: run this job."""

    function: FunctionPath
    envelope: Envelope
    queue: str
    attempt: int
    worker_id: str
    encoded_properties: bytes


@dataclass(frozen=True)
class Begun:
    """To the worker: the job has arrived. A process that dies before this has not started it."""


@dataclass(frozen=True)
class ProgressReport:
    """To the worker: the job's progress."""

    percent: float | None
    message: str | None


@dataclass(frozen=True)
class SavedCheckpoint:
    """To the worker: a checkpoint."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class Logged:
    """To the worker: a log record, pickled."""

    record: bytes


@dataclass(frozen=True)
class Returned:
    """To the worker: the job is done, with this pickled result; None if it cannot be pickled."""

    result: bytes | None


@dataclass(frozen=True)
class Raised:
    """To the worker: the job has failed. `error` is pickled, None if that is impossible."""

    error: bytes | None
    type: str
    text: str
    response: ResponseCode
    details: dict[str, object] | None
    frames: traceback.StackSummary


Answer = Returned | Raised


class RemoteFailure(JobError):
    """Stands for an exception of a handler in a process that could not be pickled; `type` has its name."""


def returned(result: object) -> Returned:
    try:
        return Returned(pickle.dumps(result))
    except Exception:  # noqa: BLE001 - pickle runs methods of the object, which may raise anything
        return Returned(None)


def raised(error: BaseException) -> Raised:
    try:
        packed = pickle.dumps(error)
        # An exception with custom arguments can often be pickled, but not unpickled.
        pickle.loads(packed)  # noqa: S301 - our own
    except BaseException:  # noqa: BLE001 - see above; this one may have raised a SystemExit of its own
        packed = None
    return Raised(
        packed,
        (error.type if isinstance(error, JobError) else None) or type(error).__name__,
        text_of(error)[:MAX_TEXT],
        error.response if isinstance(error, JobError) else ResponseCode.RETRY,
        _details_of(error),
        traceback.extract_tb(error.__traceback__, limit=-MAX_FRAMES),
    )


def _details_of(error: BaseException) -> dict[str, object] | None:
    """Return the details that a handler has set, None if they cannot be sent over the pipe."""
    if not isinstance(error, JobError) or error.details is None:
        return None
    try:
        pickle.dumps(error.details)
    except Exception:  # noqa: BLE001 - pickle runs methods of the objects
        return None
    return error.details


def result_of(answer: Answer) -> object:
    """Return the handler's result, or raise its error."""
    if isinstance(answer, Returned):
        return None if answer.result is None else pickle.loads(answer.result)  # noqa: S301 - from our own child
    raise _error_of(answer) from RemoteTraceback(answer.frames)


def _error_of(answer: Raised) -> BaseException:
    if answer.error is not None:
        try:
            found = pickle.loads(answer.error)  # noqa: S301 - from our own child
        except BaseException:  # noqa: BLE001 - the class may be known to the child only
            found = None
        if isinstance(found, BaseException):
            return found
    error = RemoteFailure(answer.text, type=answer.type, details=answer.details)
    error.response = answer.response
    return error
