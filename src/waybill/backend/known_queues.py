"""When each queue was created: when a server first heard of it. There may be many, so they are not kept in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from waybill.ojs.coordinator.records import MAX_KEY_LENGTH, Records

PREFIX: Final = "queue/"


class KnownQueue(msgspec.Struct):
    """A queue: its record has the time."""


class KnownQueues:
    """The queues that servers have coordinated, except those with very long names."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def add(self, name: str, *, waits: bool = False) -> None:
        """Note a queue, unless it is known. With `waits`, its time can be read afterwards. Raises TimeoutError."""
        key = PREFIX + name
        if len(key) > MAX_KEY_LENGTH or await self._records.get(key) is not None:
            return
        if waits:
            await self._records.put(key, KnownQueue(), expected=0)
        else:
            self._records.put_soon(key, KnownQueue())

    async def remove(self, name: str) -> None:
        """Forget a deleted queue. Raises TimeoutError."""
        await self._records.remove(PREFIX + name)

    async def created_at(self, names: Iterable[str]) -> dict[str, str]:
        """Return when queues were created, without those that no server knows."""
        found = {name: await self._records.get(PREFIX + name) for name in names}
        return {name: one.created_at for name, one in found.items() if one is not None}
