"""The errors of `job.result()`: jobs that ended without success, and unavailable results."""

from __future__ import annotations

from typing import Final

from waybill.ojs.errors import JobsError
from waybill.ojs.results.outcome import JOB_EXPIRED, RESULT_PRUNED, RESULT_TOO_LARGE, Outcome
from waybill.ojs.spec.states import State


class HandlerTraceback(Exception):
    """The cause of a `JobFailed`: the traceback of the handler's exception, maybe on another machine."""

    def __init__(self, text: str) -> None:
        """`text` has one line per frame, the innermost last."""
        super().__init__(f"in the worker\n{text}")
        self.text = text


class JobFailed(JobsError):
    """A job ended without success; the error of its last attempt is here as text.

    `type` is the exception's class or the name that the handler has set, `message` its text, `traceback` one line per
    frame or None, `code` the OJS error code, `attempts` the number of attempts.
    """

    how = "failed"

    def __init__(self, outcome: Outcome) -> None:
        error = outcome.error
        self.job_id = outcome.id
        self.state = outcome.state
        self.attempts = outcome.attempts
        self.code = "" if error is None else error.code
        self.type = "" if error is None else error.type or error.code
        self.message = "" if error is None else error.message
        self.traceback = None if error is None else error.stack_trace
        text = f"job {self.job_id} {self.how}"
        super().__init__(text if error is None else f"{text}: {self.type}: {self.message}")
        if self.traceback is not None:
            self.__cause__ = HandlerTraceback(self.traceback)


class DiscardedJob(JobFailed):
    """A job was discarded: it has no attempts left, or its handler has discarded it."""

    how = "was discarded"


class DeadLetteredJob(DiscardedJob):
    """A job became a dead letter, and can be retried from the dead letter queue."""

    how = "became a dead letter"


class ExpiredJob(JobFailed):
    """A job could not start before its `expires_at`."""

    how = "expired"


class CancelledJob(JobFailed):
    """A job was cancelled, before it started or while it ran."""

    how = "was cancelled"


class ResultTimeout(JobsError, TimeoutError):
    """A job has not ended in time, or its end was not reported; the job continues."""

    def __init__(self, job_id: str, message: str) -> None:
        """`message` describes the missing result."""
        super().__init__(f"job {job_id}: {message}")
        self.job_id = job_id


class NoResult(JobsError):
    """A job has completed, but its result is not available."""

    def __init__(self, job_id: str, code: str, message: str) -> None:
        """`code` is RESULT_TOO_LARGE, RESULT_NOT_JSON or RESULT_PRUNED."""
        super().__init__(f"job {job_id}: {message} ({code})")
        self.job_id = job_id
        self.code = code


class ResultTooLarge(NoResult):
    """The result of a job has more bytes than its `result_size_limit`."""


class ResultExpired(NoResult):
    """The result of a job has expired."""


_UNAVAILABLE: Final[dict[str, type[NoResult]]] = {RESULT_TOO_LARGE: ResultTooLarge, RESULT_PRUNED: ResultExpired}


def error_of(outcome: Outcome) -> JobFailed | NoResult | None:
    """Return the error for an outcome, None for a result."""
    error = outcome.error
    if outcome.state == State.COMPLETED.value:
        if error is None:
            return None
        return _UNAVAILABLE.get(error.code, NoResult)(outcome.id, error.code, error.message)
    if outcome.state == State.CANCELLED.value:
        return CancelledJob(outcome)
    if error is not None and error.code == JOB_EXPIRED:
        return ExpiredJob(outcome)
    if outcome.state == State.DISCARDED.value:
        return DeadLetteredJob(outcome) if outcome.is_dead_letter else DiscardedJob(outcome)
    return JobFailed(outcome)
