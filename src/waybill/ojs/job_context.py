"""The context of a running job: what a handler can read, and what it can report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

from waybill.client import BasicProperties
from waybill.ojs.errors import JobCancelled
from waybill.ojs.spec.checkpoint import Checkpoint, make_checkpoint, read_checkpoint
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.headers import trace_context
from waybill.ojs.spec.nesting import clean_text

MAX_PROGRESS_MESSAGE: Final = 10_000
CALLBACK: Final = "workflow_callback"
"""The metadata key with the name of a batch's callback."""


class Origin(Protocol):
    """The delivery of a job."""

    @property
    def properties(self) -> BasicProperties:
        """The properties of its message."""
        ...


class Reporter:
    """Receives the reports of handlers. Called in the handler's thread."""

    def progress(self, job: JobContext) -> None:
        """`job.progress_percent` or `job.progress_message` has changed."""
        raise NotImplementedError

    def checkpoint(self, job: JobContext) -> None:
        """`job.new_checkpoint` was set."""
        raise NotImplementedError


class JobContext:
    """The running job. `attempt` counts from 1."""

    __slots__ = (
        "_origin", "_reporter", "attempt", "envelope", "is_cancelled", "new_checkpoint", "next_headers",
        "progress_message", "progress_percent", "queue", "report", "spawned_count", "worker_id",
    )  # fmt: skip

    def __init__(
        self, envelope: Envelope, queue: str, attempt: int, worker_id: str, origin: Origin, reporter: Reporter
    ) -> None:
        """Made by the worker, for each attempt."""
        self.envelope = envelope
        self.queue = queue
        self.attempt = attempt
        self.worker_id = worker_id
        self.is_cancelled = False
        """Whether the job is cancelled or past its time limit: handlers in threads should check it regularly."""
        self.progress_percent: float | None = None
        self.progress_message: str | None = None
        self.new_checkpoint: Checkpoint | None = None
        self.report: object = None
        """Data of the reporter."""
        self.next_headers: dict[str, object] = {}
        """Headers for the message of the next attempt, if there is one: for middleware."""
        self.spawned_count = 0
        """The number of workflows spawned by this attempt."""
        self._origin = origin
        self._reporter = reporter

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
    def workflow_id(self) -> str | None:
        """The id of the job's workflow, None if it has none."""
        return self.envelope.workflow_id

    @property
    def parent_results(self) -> dict[str, Any]:
        """The results of the previous steps, as JSON values (ojs-workflows section 7). See `parent_result`."""
        return self.envelope.parent_results or {}

    @property
    def is_callback(self) -> bool:
        """Whether the job is a callback of a batch: its parents are the jobs of the batch."""
        return CALLBACK in self.envelope.meta

    @property
    def properties(self) -> BasicProperties:
        """The properties of the job's message."""
        return self._origin.properties

    @property
    def headers(self) -> Mapping[str, object]:
        """The headers of the job's message."""
        return self._origin.properties.headers or {}

    @property
    def traceparent(self) -> str | None:
        """The W3C traceparent of the job."""
        return self.trace()[0]

    def trace(self) -> tuple[str | None, str | None]:
        """Return the traceparent and the tracestate of the job, from its headers or its metadata."""
        traceparent, tracestate = trace_context(self._origin.properties.headers)
        if traceparent is None and isinstance(noted := self.meta.get("traceparent"), str):
            traceparent, tracestate = noted, None
            if isinstance(noted := self.meta.get("tracestate"), str):
                tracestate = noted
        return traceparent, tracestate

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelled if the job is cancelled or past its time limit."""
        if self.is_cancelled:
            raise JobCancelled(self.id)

    def cancel(self) -> None:
        """Tell the handler. Called by the worker."""
        self.is_cancelled = True

    def progress(self, done: float, total: float = 1.0, message: str | None = None) -> None:
        """Report progress in a job.progress event: `progress(0.5)`, or `progress(done=3, total=8)`.

        May be called from any thread, as often as needed: at most one event per second is published, with the latest
        values. Values are clamped to the range, and progress never decreases (ojs-progress section 5.1).
        """
        fraction = done / total if total > 0 else 0.0
        percent = 100 * min(max(fraction, 0.0), 1.0) if math.isfinite(fraction) else 0.0
        self.progress_percent = max(percent, self.progress_percent or 0.0)
        if message is not None:
            self.progress_message = clean_text(str(message), MAX_PROGRESS_MESSAGE)
        self._reporter.progress(self)

    @property
    def last_checkpoint(self) -> Any:  # noqa: ANN401 - JSON, of a shape that the handler knows
        """The state last stored with `checkpoint`, in this or an earlier attempt; None if there is none."""
        found = self.current_checkpoint
        return None if found is None else found.state

    @property
    def current_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint with its number and time."""
        return self.new_checkpoint or read_checkpoint(self.envelope.checkpoint)

    def checkpoint(self, state: object) -> None:
        """Store `state`, any JSON value, for the next attempt, which finds it in `last_checkpoint`.

        A retry has it in its message. After a crash it comes from a coordinator, if one runs, which has read it from
        the job.progress event of this call. If the worker crashes before that event is confirmed, some milliseconds
        later, the previous checkpoint counts. Raises TypeError for values that are not JSON, ValueError above 1 MiB.
        """
        self.keep(make_checkpoint(state, self.current_checkpoint))

    def keep(self, checkpoint: Checkpoint) -> None:
        """Set an existing checkpoint. Called by the worker."""
        self.new_checkpoint = checkpoint
        self._reporter.checkpoint(self)


current: ContextVar[JobContext | None] = ContextVar("waybill_job", default=None)


def current_job() -> JobContext:
    """Return the context of the current job, also in a handler's thread. Raises LookupError outside of jobs."""
    context = current.get()
    if context is None:
        raise LookupError("no job is running here")
    return context
