"""Many jobs from one thread: while some are on their way, the next are made."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from waybill.ojs.handler import MadeJob, NewJob
from waybill.ojs.spec.envelope import Envelope

BATCH: Final = 1000
"""How many jobs are made while as many are on their way."""

AnyJob = NewJob | MadeJob | Envelope | dict[str, object]
Pushed = Callable[[], list[Envelope]]
"""Waits for jobs that are on their way."""
Start = Callable[[list[AnyJob]], Pushed]
"""Starts to push jobs."""


class SyncPipeline:
    """A push of any number of jobs in their order, without a pause between them.

        with jobs.sync.pipeline() as pipeline:
            for address in addresses:
                pipeline.push(send_email.job(address, "Hello"))

    Leaving the block waits until the broker has confirmed all of them. An error ends the pipeline: `push`, or the end
    of the block, raises the InvalidJob or BatchFailed that `Jobs.push_many` raises, for a job given before; those after
    it may not have been pushed. A block that is left by an exception pushes no more than is on its way.
    """

    def __init__(self, start: Start) -> None:
        """Made by `SyncJobs.pipeline`."""
        self.pushed_count = 0
        """How many jobs are confirmed."""
        self._start = start
        self._made: list[AnyJob] = []
        self._on_the_way: Pushed | None = None

    def push(self, job: AnyJob) -> None:
        """Enqueue a job soon. Waits while BATCH jobs are on their way and as many wait for them."""
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
        """Nothing happens yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all jobs."""
        if error is None:
            self.flush()
        self._wait()
