"""A handle for one job, for callers without an event loop."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from waybill.ojs.job import Job
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.sync.caller import Caller

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class SyncJob(Generic[R_co]):
    """A job that was pushed, here or elsewhere, with the blocking methods of `Job`.

    `R_co` is what its handler returns. Any thread may use it.
    """

    __slots__ = ("_call", "_job", "id")

    def __init__(self, job: Job[R_co], call: Caller[Job[Any]]) -> None:
        self.id = job.id
        self._job = job
        self._call = call

    @property
    def envelope(self) -> Envelope:
        """The job as it was pushed. Raises LookupError for a handle made from an id."""
        return self._job.envelope

    @property
    def type(self) -> str:
        """The type of the job. Raises LookupError for a handle made from an id."""
        return self._job.type

    @property
    def queue(self) -> str:
        """The queue of the job. Raises LookupError for a handle made from an id."""
        return self._job.queue

    @property
    def is_duplicate(self) -> bool:
        """Whether the unique job existed already; this is the handle of the existing job."""
        return self._job.is_duplicate

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job to end and return the result of its handler; see `Job.result` for errors."""
        found: R_co = self._call(lambda job: job.result(timeout), "job.result(...)")
        return found

    def wait(self, timeout: float | None = None) -> str:
        """Wait for the end of the job; return its final state. Raises ResultTimeout."""
        return self._call(lambda job: job.wait(timeout), "job.wait(...)")

    def state(self) -> str:
        """Return the current state of the job; see `Job.state`."""
        return self._call(lambda job: job.state(), "job.state()")

    def info(self) -> JobInfo | None:
        """Return everything that a coordinator knows about the job."""
        return self._call(lambda job: job.info(), "job.info()")

    def cancel(self) -> None:
        """Cancel the job; see `Jobs.cancel`."""
        self._call(lambda job: job.cancel(), "job.cancel()")

    def __repr__(self) -> str:
        return f"<SyncJob {self.id}>"
