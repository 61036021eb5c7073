"""Reports of workers over HTTP about attempts: progress (ojs-progress) and checkpoints (ojs-durable-execution).

Both are job.progress events, as from workers over AMQP. Progress is published once a second per job, with the latest
value; a checkpoint is published immediately and is durable when the request is answered. Both count as heartbeats.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form
from waybill.backend.leases import Leases
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.checkpoint import Checkpoint
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import JobProgress
from waybill.ojs.spec.identifiers import new_id

EVERY_SECONDS: Final = 1.0
FOLD_SECONDS: Final = 2.0
MAX_DATA_BYTES: Final = 64 * 1024
MAX_MESSAGE: Final = 500


class Report(msgspec.Struct):
    """A worker's report: progress from 0 to 1, a text, details."""

    progress: float | None = None
    message: str | None = None
    data: msgspec.Raw | None = None


class _Reported:
    """The latest reports of a job."""

    __slots__ = ("attempt", "folded", "pending", "percent", "sent_at", "timer")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.percent = 0.0
        self.sent_at = float("-inf")
        self.pending: tuple[JobInfo, Report] | None = None
        self.folded: asyncio.Future[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class ProgressWriter:
    """Writes reports to the event stream."""

    def __init__(self, events: EventWriter, view: JobView, leases: Leases, backend_id: str) -> None:
        """`backend_id` stands for workers without a name."""
        self._events = events
        self._view = view
        self._leases = leases
        self._backend_id = backend_id
        self._reported: dict[str, _Reported] = {}
        self._loop = asyncio.get_running_loop()

    def report(self, job: JobInfo, report: Report) -> float | None:
        """Publish the progress of a job within a second; returns it, which never decreases, None if none is known."""
        reported = self._reported_of(job)
        self._leases.extend(job.id, job.worker_id or "", None)
        reported.pending = (job, _later(reported.pending, report))
        if reported.timer is None:
            reported.timer = self._loop.call_at(
                max(self._loop.time(), reported.sent_at + EVERY_SECONDS), self._send, job.id
            )
        pending = reported.pending[1].progress
        return job.progress if pending is None else max(pending, reported.percent / 100)

    def checkpoint(self, job: JobInfo, checkpoint: Checkpoint | None, event_id: str | None = None) -> None:
        """Publish a checkpoint for the next attempt immediately, None to delete it; `event_id` is optional."""
        reported = self._reported_of(job)
        self._leases.extend(job.id, job.worker_id or "", None)
        lease = self._leases.get(job.id)
        if lease is not None and lease.execution.attempt == job.attempt:
            lease.execution.checkpoint = checkpoint
            lease.execution.has_told_checkpoint = True
        _, report = reported.pending or (job, Report())
        self._write(job, reported, report, checkpoint, event_id, is_removed=checkpoint is None)

    def end(self, job_id: str) -> None:
        """Publish pending reports of a job whose lease ends. The next one may be of the same attempt."""
        reported = self._reported.pop(job_id, None)
        if reported is not None:
            if reported.timer is not None:
                reported.timer.cancel()
            self._flush(reported)

    async def wait_until_applied(self, job_id: str) -> None:
        """Wait until the view has applied the reports of a job, at most FOLD_SECONDS."""
        reported = self._reported.get(job_id)
        if reported is not None:
            self._flush(reported)
            if reported.folded is not None:
                await asyncio.wait([reported.folded], timeout=FOLD_SECONDS)

    def _flush(self, reported: _Reported) -> None:
        if reported.pending is not None:
            self._write(reported.pending[0], reported, reported.pending[1])

    def _reported_of(self, job: JobInfo) -> _Reported:
        reported = self._reported.get(job.id)
        if reported is None or reported.attempt != job.attempt:
            if reported is not None and reported.timer is not None:
                reported.timer.cancel()
            reported = self._reported[job.id] = _Reported(job.attempt)
            reported.percent = (job.progress or 0.0) * 100
        return reported

    def _send(self, job_id: str) -> None:
        reported = self._reported.get(job_id)
        if reported is None:
            return
        reported.timer = None
        if reported.pending is None:
            # Nothing was reported for a while.
            del self._reported[job_id]
            return
        job, report = reported.pending
        self._write(job, reported, report)
        reported.timer = self._loop.call_later(EVERY_SECONDS, self._send, job_id)

    def _write(
        self,
        job: JobInfo,
        reported: _Reported,
        report: Report,
        checkpoint: Checkpoint | None = None,
        event_id: str | None = None,
        *,
        is_removed: bool = False,
    ) -> None:
        reported.pending = None
        # The previous event may still be in flight: wait for this one by its id.
        event_id = event_id or f"evt_{new_id()}"
        reported.folded = self._view.expect("job.progress", event_id)
        reported.sent_at = self._loop.time()
        if report.progress is not None:
            reported.percent = max(reported.percent, report.progress * 100)
        data = JobProgress(
            job_type=job.type,
            queue=job.queue,
            worker_id=job.worker_id or self._backend_id,
            attempt=job.attempt,
            progress_percent=round(reported.percent, 4),
            progress_message=report.message,
            progress_data=report.data,
            checkpoint=checkpoint,
            checkpoint_removed=True if is_removed else None,
        )
        self._events.record(job.id, data, event_id=event_id)


def read_report(body: Form) -> Report:
    """Read a worker's report. Raises RequestRefused."""
    progress = body.get("progress")
    if progress is None and body.get("percentage") is not None:
        progress = body["percentage"]
        if isinstance(progress, int | float):
            progress /= 100
    data, message = body.get("data"), body.get("message")
    if progress is not None and (not isinstance(progress, int | float) or isinstance(progress, bool)):
        raise invalid("progress", "must be a number from 0 to 1")
    if data is not None and not isinstance(data, dict):
        raise invalid("data", "must be an object")
    if message is not None and not isinstance(message, str):
        raise invalid("message", "must be a string")
    if progress is None and data is None and message is None and body.get("checkpoint") is None:
        raise invalid("progress", "either this or data is required")
    raw = None if data is None else msgspec.Raw(msgspec.json.encode(data))
    if raw is not None and len(bytes(raw)) > MAX_DATA_BYTES:
        raise RequestRefused("payload_too_large", f"data: at most {MAX_DATA_BYTES} bytes are allowed.")
    clamped = None if progress is None else min(max(float(min(max(progress, -1), 2)), 0.0), 1.0)
    return Report(clamped, None if message is None else message[:MAX_MESSAGE], raw)


def _later(before: tuple[JobInfo, Report] | None, report: Report) -> Report:
    """Merge two reports: the later value of each kind, and progress that never decreases."""
    if before is None:
        return report
    earlier = before[1]
    known = [one for one in (earlier.progress, report.progress) if one is not None]
    return Report(max(known, default=None), report.message or earlier.message, report.data or earlier.data)
