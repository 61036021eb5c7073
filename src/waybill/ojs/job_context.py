"""What a handler can know about the job that it is doing."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from waybill.ojs.envelope import Envelope


@dataclass(frozen=True, slots=True)
class JobContext:
    """The job at hand. `attempt` counts from 1."""

    envelope: Envelope
    queue: str
    attempt: int
    worker_id: str
    redelivered: bool
    trace: Callable[[], tuple[str | None, str | None]]
    report_progress: Callable[[JobContext, float, str | None], None]

    @property
    def id(self) -> str:
        """The job's UUIDv7."""
        return self.envelope.id

    @property
    def type(self) -> str:
        """The job's type."""
        return self.envelope.type

    @property
    def meta(self) -> dict[str, object]:
        """The job's metadata."""
        return self.envelope.meta

    @property
    def traceparent(self) -> str | None:
        """The W3C traceparent that the job came with."""
        return self.trace()[0]

    def progress(self, percent: float, message: str | None = None) -> None:
        """Tell how far the job is, 0 to 100, as a job.progress event. From the event loop only."""
        self.report_progress(self, percent, message)


current: ContextVar[JobContext | None] = ContextVar("waybill_job", default=None)


def current_job() -> JobContext:
    """Return the context of the job whose handler calls this, in a thread too. Raises LookupError elsewhere."""
    context = current.get()
    if context is None:
        raise LookupError("no job is being done here")
    return context
