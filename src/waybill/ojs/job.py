"""A handle for one job: what `push` returns, and what `Jobs.job` makes of an id."""

from __future__ import annotations

from typing import Generic, TypeVar

from waybill.ojs.spec.envelope import Envelope

R_co = TypeVar("R_co", covariant=True)


class Job(Generic[R_co]):
    """A job that was pushed, here or elsewhere. `R_co` is what its handler returns."""

    __slots__ = ("__weakref__", "_envelope", "id")

    def __init__(self, job_id: str, envelope: Envelope | None = None) -> None:
        """Made by a push, and by `Jobs.job`."""
        self.id = job_id
        self._envelope = envelope

    @property
    def envelope(self) -> Envelope:
        """The job as it was pushed. Raises LookupError for a handle that was made of an id."""
        if self._envelope is None:
            raise LookupError(f"only the id of job {self.id} is known here: ask for its info")
        return self._envelope

    @property
    def type(self) -> str:
        """The type of the job. Raises LookupError for a handle that was made of an id."""
        return self.envelope.type

    @property
    def queue(self) -> str:
        """The queue that the job was pushed to. Raises LookupError for a handle that was made of an id."""
        return self.envelope.queue

    @property
    def is_duplicate(self) -> bool:
        """Whether a unique job was there already, and this is the handle of that one."""
        return self._envelope is not None and self._envelope.is_duplicate

    def __repr__(self) -> str:
        """Name the job."""
        return f"<Job {self.id}>"
