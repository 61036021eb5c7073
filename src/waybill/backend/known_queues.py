"""When each queue was created: when a server first heard of it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from waybill.backend.settings import MOST, Settings
from waybill.ojs.spec.timestamps import format_timestamp


class KnownQueue(msgspec.Struct):
    """A queue."""

    created_at: str


class KnownQueues:
    """The queues that servers have coordinated."""

    def __init__(self, settings: Settings) -> None:
        self._table = settings.table("queue", KnownQueue)

    def add(self, name: str) -> None:
        """Note a queue, unless it is known."""
        if self._table.get(name) is None and len(self._table) < MOST:
            self._table.put_soon(name, KnownQueue(format_timestamp(datetime.now(UTC))))

    async def remove(self, name: str) -> None:
        """Forget a deleted queue. Raises TimeoutError."""
        await self._table.remove(name)

    def created_at(self, name: str) -> str | None:
        """Return when a queue was created, None if no server knows."""
        found = self._table.get(name)
        return None if found is None else found.created_at
