"""Deletes jobs some time after their end, by the configuration of their queue (ojs-queue-config section 6.3)."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.bulk import delete
from waybill.backend.job_form import Form
from waybill.backend.job_pages import pages
from waybill.backend.queue_configs import QueueConfig, retention_of
from waybill.backend.repeated import Repeated
from waybill.ojs.coordinator.job_store import JobFilter
from waybill.ojs.spec.server_events import DeadLetterPruned
from waybill.ojs.spec.timestamps import format_timestamp, parse_duration

PAUSE_SECONDS: Final = 300.0
PAGE: Final = 200
DEAD_AT_A_TIME: Final = 100


class QueueRetention(Repeated):
    """The retention of one server. Servers of one broker may all delete the same jobs."""

    def __init__(self, backend: Backend) -> None:
        """Call this within the event loop."""
        super().__init__(PAUSE_SECONDS, "jobs could not be deleted after their retention")
        self._backend = backend
        self._plan()

    def _plan(self) -> None:
        next_at = datetime.now(UTC) + timedelta(seconds=PAUSE_SECONDS)
        self._backend.next_prune_at = format_timestamp(next_at)

    async def work(self) -> None:
        """Delete the jobs whose time is over now."""
        try:
            await self.prune(datetime.now(UTC))
        finally:
            self._plan()

    async def prune(self, now: datetime) -> int:
        """Delete the jobs whose time is over at a moment; returns how many."""
        configs = self._backend.extensions.queue_configs
        if not configs:
            return 0
        count = 0
        for queue in await self._backend.job_queues():
            config = configs.of(queue)
            for state, kept in retention_of(config).items():
                count += await self._prune(queue, state, format_timestamp(now - kept))
            if config.dead_letter_ttl is not None or config.dead_letter_max_size is not None:
                count += await self._prune_dead(queue, config, now)
        return count

    async def _prune_dead(self, queue: str, config: QueueConfig, now: datetime) -> int:
        """Delete the dead letters of a queue that are too old, then the oldest of too many."""
        ttl, until, count = config.dead_letter_ttl, "", 0
        if ttl is not None:
            until = format_timestamp(now - parse_duration(ttl, "dead_letter_ttl"))
        # Few at a time: there may be more than fit into memory, and requests wait for the lock.
        while True:
            async with self._backend.dead_letters(queue) as dead:
                found = await dead.peek(DEAD_AT_A_TIME)
                over = [one.id for one in found if (one.died_at or "~") < until]
                if config.dead_letter_max_size is not None:
                    left = [one.id for one in found if one.id not in set(over)]
                    over += left[: max(0, await dead.count() - len(over) - config.dead_letter_max_size)]
                done = await dead.discard(over) if over else 0
            count += done
            if not done or len(over) < len(found):
                break
        if count:
            self._backend.broker.events.record(queue, DeadLetterPruned(queue=queue, count=count))
        return count

    async def _prune(self, queue: str, state: str, until: str) -> int:
        """Delete the jobs of a queue that ended in a state before a time."""
        # Jobs end after they were enqueued.
        wanted = JobFilter(queue, frozenset({state}), until=until)
        count = 0
        async for found in pages(self._backend.view, wanted, PAGE, sys.maxsize):
            over = [one.info for one in found if (one.info.ended_at or "~") < until]
            forms: list[Form] = [
                {"id": one.id, "type": one.type, "queue": one.queue, "state": one.state} for one in over
            ]
            if forms:
                count += len(forms) - len(await delete(self._backend, forms))
        return count
