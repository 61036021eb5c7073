"""What a handler can know about the job that it is doing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar

from waybill.client import Delivery
from waybill.ojs.envelope import Envelope
from waybill.ojs.errors import JobCancelled
from waybill.ojs.message import trace_context


class JobContext:
    """The job at hand. `attempt` counts from 1."""

    __slots__ = ("_cancelled", "_delivery", "_report_progress", "attempt", "envelope", "queue", "worker_id")

    def __init__(
        self,
        envelope: Envelope,
        queue: str,
        attempt: int,
        worker_id: str,
        delivery: Delivery,
        report_progress: Callable[[JobContext, float, str | None], None],
    ) -> None:
        """Made by the worker, for each attempt."""
        self.envelope = envelope
        self.queue = queue
        self.attempt = attempt
        self.worker_id = worker_id
        self._delivery = delivery
        self._cancelled = threading.Event()
        self._report_progress = report_progress

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

    def trace(self) -> tuple[str | None, str | None]:
        """Return the traceparent and the tracestate that the job came with."""
        return trace_context(self._delivery.properties.headers)

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the job. Handlers in threads should look now and then, and end if so."""
        return self._cancelled.is_set()

    def raise_if_cancelled(self) -> None:
        """End the handler with JobCancelled if its job is cancelled."""
        if self._cancelled.is_set():
            raise JobCancelled(self.id)

    def cancel(self) -> None:
        """Tell the handler. Called by the worker."""
        self._cancelled.set()

    def progress(self, percent: float, message: str | None = None) -> None:
        """Tell how far the job is, 0 to 100, as a job.progress event. From the event loop only."""
        self._report_progress(self, percent, message)


current: ContextVar[JobContext | None] = ContextVar("waybill_job", default=None)


def current_job() -> JobContext:
    """Return the context of the job whose handler calls this, in a thread too. Raises LookupError elsewhere."""
    context = current.get()
    if context is None:
        raise LookupError("no job is being done here")
    return context
