"""Ends groups whose pusher died before it finished, so their size is unknown.

A program that pushes a streamed group reports every PUSHING_SECONDS that it still does. The leader gives up a group
without a report for SILENT_SECONDS *by its own clock*, from when it first saw the last report: no clock of another
process counts, and a new leader starts waiting again. The event that gives up a group names the last report: if the
stream has a newer report before it, the group is not given up. A pusher that returns, or pushes again under the same
id, continues as long as the workflow has not ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.marked_rows import MarkedRows
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.pushing_events import WorkflowAbandoned
from waybill.ojs.spec.states import TERMINAL, State
from waybill.ojs.workflow.progress import Progress
from waybill.ojs.workflow.rows import UNSEALED, MomentRow, progress_key

SILENT_SECONDS: Final = 600.0
POLL_SECONDS: Final = 5.0
AT_A_TIME: Final = 1000

Write = Callable[[str, EventData, str], None]


class PusherWatch:
    """Watches the groups that are still being pushed, in the leader."""

    def __init__(self, view: JobView, write: Write) -> None:
        """`write` records an event about a workflow, once for each name that it is given."""
        self._view = view
        self._write = write
        self._rows = MarkedRows(view, UNSEALED, MomentRow, AT_A_TIME)
        self._seen: dict[str, tuple[str, float]] = {}
        """The last report of each group, and when it was first seen here, by the loop's clock."""
        self._seen_again: dict[str, tuple[str, float]] = {}
        """Those that this round has found."""
        self._looked_at = float("-inf")

    def forget(self) -> None:
        """Restart the timeouts, as a new leader does."""
        self._seen.clear()
        self._seen_again.clear()

    async def look(self) -> None:
        """Give up the groups that were silent for too long."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at < POLL_SECONDS:
            return
        self._looked_at = now
        for _, row in await self._rows.next():
            progress = await self._view.row(progress_key(row.id), Progress)
            if progress is None:
                continue
            heard_at, since = self._seen.get(row.id, ("", now))
            if heard_at != progress.heard_at or await self._may_push(progress):
                since = now
            self._seen_again[row.id] = progress.heard_at, since
            if now - since >= SILENT_SECONDS:
                data = WorkflowAbandoned(workflow_id=row.id, workflow_name=progress.name, heard_at=progress.heard_at)
                self._write(row.id, data, f"abandoned {progress.heard_at}")
        if self._rows.is_round:
            self._seen, self._seen_again = self._seen_again, {}

    async def _may_push(self, progress: Progress) -> bool:
        """Return whether the job that spawned the group has not ended: its next attempt pushes the missing jobs."""
        job = None if progress.parent_job is None else await self._view.get(progress.parent_job)
        return job is not None and State(job.state) not in TERMINAL
