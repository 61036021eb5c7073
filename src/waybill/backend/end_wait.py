"""Waits for the end of a job, for requests for its result."""

from __future__ import annotations

import asyncio
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused
from waybill.backend.listeners import HEARTBEAT_SECONDS, ShuttingDown
from waybill.ojs.coordinator.job_fold import ENDS, has_ended
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import ReceivedEvent

FOLD_SECONDS: Final = 2.0


async def wait_for_end(backend: Backend, job_id: str, seconds: float) -> None:
    """Wait until a job has ended. Raises RequestRefused if that takes too long."""

    def is_end(event: ReceivedEvent) -> bool:
        return event.subject == job_id and event.type in ENDS

    with backend.events.listeners.listening(is_end) as listener:
        if _is_over(await backend.view.get(job_id)):
            return
        ends_at = asyncio.get_running_loop().time() + seconds
        while (left := ends_at - asyncio.get_running_loop().time()) > 0:
            try:
                event = await listener.next(min(left, HEARTBEAT_SECONDS))
            except ShuttingDown:
                break
            # The end may be among lost events.
            may_be = event is not None or listener.dropped_count > 0
            listener.dropped_count = 0
            if may_be and _is_over(await backend.view.settled(job_id, _is_over, FOLD_SECONDS)):
                return
    raise RequestRefused("wait_timeout", "The job has not ended yet.")


def _is_over(job: JobInfo | None) -> bool:
    return job is not None and has_ended(job)
