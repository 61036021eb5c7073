"""Replaces the event writer in a worker over HTTP: the server writes the events, so only progress is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import msgspec

from waybill.http.control import HttpControl
from waybill.http.errors import NoAnswer, RequestRefused
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.observe.counters import Counters
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.events import JobProgress
from waybill.ojs.spec.timestamps import format_timestamp

_log: Final = logging.getLogger("waybill.http")


class HttpBroker(BrokerConnection):
    """Replaces the connection to a broker for the parts of a worker."""

    def __init__(self, control: HttpControl) -> None:
        self.events = self.reports = HttpEvents(control)


class HttpEvents(EventWriter):
    """Tells the server of progress and checkpoints, in their order for each job; drops all other events."""

    def __init__(self, control: HttpControl) -> None:
        self.counters = Counters()
        self._control = control
        self._unsent: dict[str, list[JobProgress]] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}

    def timestamp(self) -> str:
        return format_timestamp(datetime.now(UTC))

    def record(self, subject: str, data: EventData, time: str | None = None, event_id: str | None = None) -> None:
        """Report progress."""
        if not isinstance(data, JobProgress):
            return
        self._unsent.setdefault(subject, []).append(data)
        if subject not in self._sending:
            self._sending[subject] = asyncio.get_running_loop().create_task(self._send(subject))

    def record_started(
        self, job_id: str, time: str, job_type: str, queue: str, attempt: int, worker_id: str, run: int | None = None
    ) -> None:
        """Do nothing: the server knows, because it gave out the job."""

    def after(self, action: Callable[[], object]) -> None:
        """Call `action` now: the server writes its own events."""
        action()

    async def told(self, job_id: str) -> None:
        """Return when the server has all progress reports of a job, before its end."""
        sending = self._sending.get(job_id)
        if sending is not None:
            await asyncio.wait([sending])

    async def _send(self, job_id: str) -> None:
        try:
            while reports := self._unsent.pop(job_id, None):
                # The latest counts, and the latest checkpoint.
                await self._tell(job_id, reports[-1])
                checkpoints = [one.checkpoint for one in reports if one.checkpoint is not None]
                if checkpoints:
                    state = {"state": checkpoints[-1].state, "worker_id": reports[-1].worker_id}
                    await self._control.request("POST", f"{_path(job_id)}/checkpoint", state)
        except (NoAnswer, RequestRefused, msgspec.MsgspecError) as error:
            # The next report says more than this one.
            _log.warning("the progress of job %s could not be sent: %s", job_id, error)
        finally:
            self._unsent.pop(job_id, None)
            del self._sending[job_id]

    async def _tell(self, job_id: str, report: JobProgress) -> None:
        body = {"progress": report.progress_percent / 100, "worker_id": report.worker_id}
        if report.progress_message is not None:
            body |= {"message": report.progress_message, "data": {"message": report.progress_message}}
        await self._control.request("PUT", f"{_path(job_id)}/progress", body)


def _path(job_id: str) -> str:
    return f"/ojs/v1/jobs/{quote(job_id, safe='')}"
