"""A handle for one job, for callers without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from waybill.ojs.job import Job
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Caller(Protocol):
    """Runs a coroutine where the job's connection lives, and waits for it."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, T]], instead: str, /) -> T:
        """`instead` is what somebody has to write who calls from inside an event loop."""
        ...


class SyncJob(Generic[R_co]):
    """A job that was pushed, here or elsewhere. Its methods are those of `Job`, and wait for their ends.

    `R_co` is what its handler returns. Any thread may use it.
    """

    __slots__ = ("_call", "_job", "id")

    def __init__(self, job: Job[R_co], call: Caller) -> None:
        """Made by `SyncJobs`."""
        self.id = job.id
        self._job = job
        self._call = call

    @property
    def envelope(self) -> Envelope:
        """The job as it was pushed. Raises LookupError for a handle that was made of an id."""
        return self._job.envelope

    @property
    def type(self) -> str:
        """The type of the job. Raises LookupError for a handle that was made of an id."""
        return self._job.type

    @property
    def queue(self) -> str:
        """The queue that the job was pushed to. Raises LookupError for a handle that was made of an id."""
        return self._job.queue

    @property
    def is_duplicate(self) -> bool:
        """Whether a unique job was there already, and this is the handle of that one."""
        return self._job.is_duplicate

    def result(self, timeout: float | None = None) -> R_co:
        """As `Job.result`."""
        return self._call(lambda: self._job.result(timeout), "job.result(...)")

    def wait(self, timeout: float | None = None) -> str:
        """As `Job.wait`."""
        return self._call(lambda: self._job.wait(timeout), "job.wait(...)")

    def state(self) -> str:
        """As `Job.state`."""
        return self._call(self._job.state, "job.state()")

    def info(self) -> JobInfo | None:
        """As `Job.info`."""
        return self._call(self._job.info, "job.info()")

    def cancel(self) -> None:
        """As `Job.cancel`."""
        self._call(self._job.cancel, "job.cancel()")

    def __repr__(self) -> str:
        """Name the job."""
        return f"<SyncJob {self.id}>"
