"""The size of the unfinished jobs of queues that are bounded by it (ojs-backpressure section 6.1).

No broker tells it, so it is the size of the jobs as JSON, as far as the view knows them: those pushed over HTTP, and
described ones. It is read once for a queue, and then follows the events.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from waybill.backend.job_form import UNFINISHED
from waybill.backend.job_pages import pages
from waybill.ojs.coordinator.job_fold import ENDS
from waybill.ojs.coordinator.job_store import JobFilter
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.spec.events import ReceivedEvent

PAGE: Final = 500

OnEvents = list[Callable[[Sequence[ReceivedEvent]], None]]


class QueueSizes:
    """The sizes that one server knows."""

    def __init__(self, view: JobView, on_events: OnEvents) -> None:
        """`on_events` gets a function that is called with new events, once a size is asked for."""
        self._view = view
        self._on_events = on_events
        self._jobs: dict[str, dict[str, int]] = {}
        """The sizes of jobs, by queue and job."""
        self._totals: dict[str, int] = {}
        self._ended: set[str] = set()
        """Jobs that ended while queues are being read."""
        self._reading = 0

    async def of(self, queue: str) -> int:
        """Return the size of the jobs of a queue, in octets."""
        if queue not in self._jobs:
            await self._read(queue)
        return self._totals[queue]

    async def _read(self, queue: str) -> None:
        if self._take not in self._on_events:
            self._on_events.append(self._take)
        self._jobs[queue], self._totals[queue] = {}, 0
        self._reading += 1
        try:
            async for found in pages(self._view, JobFilter(queue, UNFINISHED), PAGE, sys.maxsize):
                for one in found:
                    if one.info.id not in self._ended and one.info.id not in self._jobs[queue]:
                        self._add(queue, one.info.id, one.envelope)
        finally:
            self._reading -= 1
            if not self._reading:
                self._ended.clear()

    def _add(self, queue: str, job_id: str, job: object) -> None:
        size = 0 if job is None else len(msgspec.json.encode(job))
        jobs = self._jobs[queue]
        self._totals[queue] += size - jobs.get(job_id, 0)
        jobs[job_id] = size

    def _remove(self, job_id: str) -> None:
        for queue, jobs in self._jobs.items():
            self._totals[queue] -= jobs.pop(job_id, 0)

    def _take(self, events: Sequence[ReceivedEvent]) -> None:
        for event in events:
            if event.type == "job.enqueued":
                # It may come from another queue.
                self._remove(event.subject)
                queue = event.data.get("queue")
                if isinstance(queue, str) and queue in self._jobs:
                    self._add(queue, event.subject, event.data.get("job"))
            elif event.type in ENDS:
                self._remove(event.subject)
                if self._reading:
                    self._ended.add(event.subject)
