"""The ids of jobs that clients choose: each is used once, also if several servers get it at the same time.

A server reserves an id with a record while it pushes the job, and looks for the job then: the first reservation in the
event stream counts, and the others wait for its end. The reservation of a server that died counts no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused
from waybill.backend.presence import Presence
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.records import Records
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.timestamps import format_timestamp

KIND: Final = "job-id/"
WAIT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.02
RETENTION: Final = timedelta(hours=1)
"""How long the record of a server that died is kept."""


class Reservation(msgspec.Struct):
    """The record of an id: the server that is pushing the job."""

    by: str


class ChosenIds:
    """Reserves ids."""

    def __init__(self, records: Records, view: JobView, presence: Presence) -> None:
        self._records = records
        self._view = view
        self._presence = presence
        self._in_progress: dict[str, asyncio.Future[None]] = {}
        """By id, a future that is done when its push by this server has ended."""

    @asynccontextmanager
    async def reserved(self, job_ids: Sequence[str], *, are_shared: bool = True) -> AsyncIterator[list[JobInfo]]:
        """Reserve ids for as long as their jobs are pushed; yields the existing jobs that have some of them.

        Without `are_shared`, no other server can get these ids. Raises RequestRefused, and TimeoutError.
        """
        while waits := [self._in_progress[one] for one in job_ids if one in self._in_progress]:
            await asyncio.wait(waits)
        ended = asyncio.get_running_loop().create_future()
        self._in_progress |= dict.fromkeys(job_ids, ended)
        held: list[str] = []
        try:
            known = await self._view.many(job_ids) if job_ids else []
            free = sorted({*job_ids} - {job.id for job in known}) if are_shared else []
            if free:
                await asyncio.gather(*(self._reserve(one, held) for one in free))
                known += await self._view.many(free)
            yield known
        finally:
            for one in held:
                self._records.remove_soon(KIND + one)
            for one in {*job_ids}:
                del self._in_progress[one]
            ended.set_result(None)

    async def _reserve(self, job_id: str, held: list[str]) -> None:
        """Reserve an id, after the push of another server."""
        key, mine = KIND + job_id, Reservation(self._presence.name)
        expiry = format_timestamp(datetime.now(UTC) + RETENTION)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + WAIT_SECONDS
        version = 0
        while loop.time() < ends_at:
            if await self._records.put(key, mine, expected=version, expires_at=expiry):
                held.append(job_id)
                return
            record = await self._records.get(key)
            by = mine.by if record is None else record.read(Reservation).by
            if by != mine.by and await self._presence.is_running(by):
                await asyncio.sleep(POLL_SECONDS)
            else:
                version = 0 if record is None else record.version
        text = f"Another server is still pushing the job {job_id}."
        raise RequestRefused("conflict", text, hint="Try again in a moment.")
