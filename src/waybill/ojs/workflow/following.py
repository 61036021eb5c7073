"""Steps that take the outcome of other jobs.

If the job of a step is unique with `on_conflict` "ignore", and another job has its place, that job does the work. The
leader looks when it has ended, and writes its outcome as that of the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.marked_rows import MarkedRows
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.spec.workflow_events import WorkflowFollowed
from waybill.ojs.workflow.flow_state import MAX_RESULT_BYTES
from waybill.ojs.workflow.progress import Progress, StepState
from waybill.ojs.workflow.rows import FOLLOWING, MomentRow, progress_key

POLL_SECONDS: Final = 0.5
AT_A_TIME: Final = 1000

_ENDED: Final = {
    State.COMPLETED.value: "job.completed",
    State.DISCARDED.value: "job.discarded",
    State.CANCELLED.value: "job.cancelled",
}

Write = Callable[[str, EventData, str], None]


class FollowedJobs:
    """Watches the jobs that steps follow, in the leader."""

    def __init__(self, view: JobView, write: Write) -> None:
        """`write` records an event about a workflow, once for each name that it is given."""
        self._view = view
        self._write = write
        self._rows = MarkedRows(view, FOLLOWING, MomentRow, AT_A_TIME)
        self._looked_at = float("-inf")

    async def look(self) -> None:
        """Write the outcomes of followed jobs that have ended."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < POLL_SECONDS:
            return
        self._looked_at = now
        for _, row in await self._rows.next():
            progress = await self._view.row(progress_key(row.id), Progress)
            if progress is not None:
                await self._look_at(progress)

    async def _look_at(self, progress: Progress) -> None:
        waiting = {
            number: job_id
            for number, job_id in progress.followed.items()
            if progress.states[number] == StepState.PENDING
        }
        found = {job.id: job for job in await self._view.many(sorted(set(waiting.values())))}
        now = format_timestamp(datetime.now(UTC))
        for number, job_id in waiting.items():
            job = found.get(job_id)
            if job is not None and job.state not in _ENDED and not _is_void(job, now):
                continue
            run = progress.runs.get(number, 0)
            data = WorkflowFollowed(
                workflow_id=progress.id,
                workflow_name=progress.name,
                number=number,
                run=run,
                job_id=job_id,
                ended="" if job is None else _ENDED.get(job.state, ""),
                result=None if job is None else _result(job),
                last_error=None if job is None else job.error,
                total_attempts=0 if job is None else job.attempt,
            )
            self._write(progress.id, data, f"followed {number} {run} {job_id}")


def _is_void(job: JobInfo, now: str) -> bool:
    """Return whether a job has only reserved its place, and was not enqueued in time."""
    return job.state == State.PENDING.value and job.visible_until is not None and job.visible_until < now


def _result(job: JobInfo) -> object:
    """Return the result of a job, or a reference if it is too large for an event."""
    size = len(msgspec.json.encode(job.result))
    if size <= MAX_RESULT_BYTES:
        return job.result
    return {"result_ref": f"ojs:job/{job.id}", "result_size_bytes": size}
