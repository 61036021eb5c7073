"""Pushes many jobs from one thread: while a batch is in flight, the next one is made."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from waybill.ojs.handler import MadeJob, NewJob
from waybill.ojs.spec.envelope import Envelope

BATCH: Final = 1000
"""The number of jobs per batch."""

AnyJob = NewJob | MadeJob | Envelope | dict[str, object]
Pushed = Callable[[], list[Envelope]]
"""Waits for jobs in flight."""
Start = Callable[[list[AnyJob]], Pushed]
"""Starts to push jobs."""


class SyncPipeline:
    """Pushes any number of jobs in order, without pauses.

        with jobs.sync.pipeline() as pipeline:
            for address in addresses:
                pipeline.push(send_email.job(address, "Hello"))

    Leaving the block waits until the broker has confirmed all jobs. An error ends the pipeline: `push`, or the end of
    the block, raises InvalidJob or BatchFailed, as `Jobs.push_many`, for an earlier job; later jobs may not have been
    pushed. If an exception leaves the block, only jobs in flight are pushed.
    """

    def __init__(self, start: Start) -> None:
        self.pushed_count = 0
        """The number of confirmed jobs."""
        self._start = start
        self._made: list[AnyJob] = []
        self._on_the_way: Pushed | None = None

    def push(self, job: AnyJob) -> None:
        """Enqueue a job soon. Waits while BATCH jobs are in flight and as many are buffered."""
        made = self._made
        made.append(job)
        if len(made) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Send buffered jobs. Waits for the jobs sent before, and raises their errors."""
        self._wait()
        made, self._made = self._made, []
        if made:
            self._on_the_way = self._start(made)

    def _wait(self) -> None:
        before, self._on_the_way = self._on_the_way, None
        if before is not None:
            self.pushed_count += len(before())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all jobs."""
        if error is None:
            self.flush()
        self._wait()
