"""Deletes jobs some time after their end, by the configuration of their queue (ojs-queue-config section 6.3)."""

from __future__ import annotations

import asyncio
import functools
import logging
from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.bulk import delete
from waybill.backend.job_form import Form
from waybill.backend.queue_configs import retention_of
from waybill.ojs.coordinator.job_store import JobDetail, JobFilter, JobStore
from waybill.ojs.spec.timestamps import format_timestamp

PAUSE_SECONDS: Final = 60.0
PAGE: Final = 200

_log = logging.getLogger("waybill.backend")


class QueueRetention:
    """The retention of one server. Servers of one broker may all delete the same jobs."""

    def __init__(self, backend: Backend) -> None:
        """Call this within the event loop."""
        self._backend = backend
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                await self.prune(datetime.now(UTC))
            except Exception:  # noqa: BLE001 - a database may raise anything
                _log.warning("jobs could not be deleted after their retention, trying again", exc_info=True)

    async def prune(self, now: datetime) -> int:
        """Delete the jobs whose time is over at a moment; returns how many."""
        configs = self._backend.extensions.queue_configs
        if not configs:
            return 0
        count = 0
        for queue in await self._backend.queues():
            for state, kept in retention_of(configs.of(queue)).items():
                count += await self._prune(queue, state, format_timestamp(now - kept))
        return count

    async def _prune(self, queue: str, state: str, until: str) -> int:
        """Delete the jobs of a queue that ended in a state before a time."""
        # Jobs end after they were enqueued.
        wanted = JobFilter(queue, frozenset({state}), until=until)
        before, count = "", 0
        while True:
            found = await self._backend.view.read(functools.partial(_page, wanted, before))
            over = [one.info for one in found if (one.info.ended_at or "~") < until]
            forms: list[Form] = [
                {"id": one.id, "type": one.type, "queue": one.queue, "state": one.state} for one in over
            ]
            if forms:
                count += len(forms) - len(await delete(self._backend, forms))
            if len(found) < PAGE:
                return count
            before = found[-1].info.id


def _page(wanted: JobFilter, before: str, store: JobStore) -> list[JobDetail]:
    return store.page(wanted, before, PAGE)
