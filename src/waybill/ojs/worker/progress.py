"""Progress and checkpoints of running jobs, as job.progress events (ojs-progress).

A handler may report a million times a second from a thread. A report is stored in the job's context, and the loop is
notified at most once at a time. Progress is sent once a second, with the latest value, a checkpoint immediately.
"""

from __future__ import annotations

import asyncio
from typing import Final

from waybill.ojs.job_context import JobContext, Reporter
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.events import JobProgress

PROGRESS_SECONDS: Final = 1.0
"""The time between two progress events of one job."""


class _Report:
    """The state of one job's reports."""

    __slots__ = ("closed", "scheduled", "sent", "sent_at", "sent_sequence", "timer")

    def __init__(self) -> None:
        self.scheduled = False
        self.closed = False
        self.sent: tuple[float | None, str | None] = (None, None)
        self.sent_at = float("-inf")
        self.sent_sequence = 0
        self.timer: asyncio.TimerHandle | None = None


class EventReporter(Reporter):
    """Writes the reports of one worker's handlers to its event stream."""

    def __init__(self, events: EventWriter, worker_id: str) -> None:
        self._events = events
        self._worker_id = worker_id
        self._loop = asyncio.get_running_loop()

    def progress(self, job: JobContext) -> None:
        report = _report_of(job)
        if not report.scheduled and not report.closed:
            report.scheduled = True
            self._loop.call_soon_threadsafe(self._look, job, report)

    def checkpoint(self, job: JobContext) -> None:
        report = _report_of(job)
        if not report.closed:
            self._loop.call_soon_threadsafe(self._write, job, report)

    def finish(self, job: JobContext) -> None:
        """Write pending reports; later reports of the handler are refused."""
        report = job.report
        if isinstance(report, _Report) and not report.closed:
            self._write(job, report)
            report.closed = True
            if report.timer is not None:
                report.timer.cancel()

    def _look(self, job: JobContext, report: _Report) -> None:
        wait = report.sent_at + PROGRESS_SECONDS - self._loop.time()
        if wait > 0:
            report.timer = self._loop.call_later(wait, self._look, job, report)
            return
        # In this order: a report from a thread after this line schedules another run.
        report.scheduled = False
        self._write(job, report)

    def _write(self, job: JobContext, report: _Report) -> None:
        checkpoint = job.new_checkpoint
        if checkpoint is not None and checkpoint.sequence <= report.sent_sequence:
            checkpoint = None
        told = (job.progress_percent, job.progress_message)
        if report.closed or (checkpoint is None and told == report.sent):
            return
        report.sent = told
        report.sent_at = self._loop.time()
        if checkpoint is not None:
            report.sent_sequence = checkpoint.sequence
        self._events.record(
            job.id,
            JobProgress(
                job_type=job.type,
                queue=job.queue,
                worker_id=self._worker_id,
                attempt=job.attempt,
                progress_percent=told[0] or 0.0,
                progress_message=told[1],
                checkpoint=checkpoint,
            ),
        )


def _report_of(job: JobContext) -> _Report:
    report = job.report
    if not isinstance(report, _Report):
        job.report = report = _Report()
    return report
