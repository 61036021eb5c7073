"""A handle for one job, as returned by `push` and by `Jobs.job`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, cast

import msgspec

from waybill.ojs.results.errors import NoResult, error_of
from waybill.ojs.results.outcome import RESULT_MISMATCH, Outcome
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope

R_co = TypeVar("R_co", covariant=True)


class Waiter(Protocol):
    """Waits for the ends of jobs: an `Inbox`, for example."""

    async def outcome(self, handle: Job[object], timeout_seconds: float | None) -> Outcome:
        """Wait for the end of a job."""
        ...


class Asker(Protocol):
    """Answers the queries of a handle: `Jobs`, for example."""

    async def inbox(self) -> Waiter:
        """Return the receiver of outcomes."""
        ...

    async def info(self, job_id: str, queue: str | None = None, *, timeout: float = 10.0) -> JobInfo | None:  # noqa: ASYNC109 - see `Jobs`
        """Ask a coordinator for a job."""
        ...

    async def cancel(self, job_id: str, queue: str | None = None) -> None:
        """Cancel a job."""
        ...


class Job(Generic[R_co]):
    """A job that was pushed, here or elsewhere. `R_co` is what its handler returns.

    Its methods must be called in the loop of its `Jobs` object.
    """

    __slots__ = ("__weakref__", "_asker", "_decode", "_envelope", "id", "outcome")

    def __init__(
        self,
        job_id: str,
        asker: Asker,
        envelope: Envelope | None = None,
        decode: Callable[[bytes], object] = msgspec.json.decode,
    ) -> None:
        """Made by a push, and by `Jobs.job`. `decode` converts the JSON of the result."""
        self.id = job_id
        self.outcome: Outcome | None = None
        self._asker = asker
        self._envelope = envelope
        self._decode = decode

    @property
    def envelope(self) -> Envelope:
        """The job as it was pushed. Raises LookupError for a handle made from an id."""
        if self._envelope is None:
            raise LookupError(f"this object only has the id of job {self.id}: await info() first")
        return self._envelope

    @property
    def type(self) -> str:
        """The type of the job. Raises LookupError for a handle made from an id."""
        return self.envelope.type

    @property
    def queue(self) -> str:
        """The queue of the job. Raises LookupError for a handle made from an id."""
        return self.envelope.queue

    @property
    def is_duplicate(self) -> bool:
        """Whether the unique job existed already; this is the handle of the existing job."""
        return self._envelope is not None and self._envelope.is_duplicate

    async def result(self, timeout: float | None = None) -> R_co:  # noqa: ASYNC109 - as `wait`
        """Wait for the job to end and return what its handler returned.

        Raises ResultTimeout after `timeout` seconds; the job continues. Raises JobFailed if the job ended without
        success: DiscardedJob, DeadLetteredJob, ExpiredJob or CancelledJob. Raises NoResult if it completed but its
        result is not available: ResultTooLarge, ResultExpired.

        If the job was pushed through its handler, the result is converted to the handler's return annotation. Results
        of jobs that were pushed elsewhere, or before a restart, need a coordinator.
        """
        outcome = await self._ended(timeout)
        error = error_of(outcome)
        if error is not None:
            raise error
        try:
            return cast("R_co", self._decode(bytes(outcome.result)))
        except (msgspec.DecodeError, ValueError) as mismatch:
            text = f"the result does not match the return annotation of the handler: {mismatch}"
            raise NoResult(self.id, RESULT_MISMATCH, text) from mismatch

    async def wait(self, timeout: float | None = None) -> str:  # noqa: ASYNC109 - the wait ends, not what it is for
        """Wait for the end of the job; return its final state: completed, discarded or cancelled.

        Raises ResultTimeout.
        """
        return (await self._ended(timeout)).state

    async def state(self) -> str:
        """Return the current state of the job: from its outcome if that has arrived, else from a coordinator.

        Raises ControlFailed if no coordinator answers, LookupError if none knows the job.
        """
        if self.outcome is not None:
            return self.outcome.state
        job = await self._asker.info(self.id)
        if job is None:
            raise LookupError(f"no coordinator knows job {self.id}")
        return job.state

    async def info(self) -> JobInfo | None:
        """Return everything that a coordinator knows about the job; see `Jobs.info`."""
        return await self._asker.info(self.id)

    async def cancel(self) -> None:
        """Cancel the job; see `Jobs.cancel`."""
        await self._asker.cancel(self.id)

    def pushed_as(self, envelope: Envelope) -> None:
        """Set the envelope with which the job was pushed."""
        self._envelope = envelope

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    async def _ended(self, timeout_seconds: float | None) -> Outcome:
        if self.outcome is not None:
            return self.outcome
        inbox = await self._asker.inbox()
        return await inbox.outcome(self, timeout_seconds)
