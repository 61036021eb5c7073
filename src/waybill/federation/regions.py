"""The registry: the regions of a federation, and their health checks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from waybill.federation.configuration import Federation
from waybill.federation.region import Region


class Regions:
    """All regions, in the order of the file."""

    def __init__(self, federation: Federation, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is sent. Raises InvalidFederation for invalid keys and certificates."""
        self.federation = federation
        self.on_healthy: Callable[[Region], None] = lambda _region: None
        """Called after each successful health check."""
        self._regions = {
            entry.id: Region(entry, federation, f"regions[{index}]", clock)
            for index, entry in enumerate(federation.regions)
        }
        self._checking: list[asyncio.Task[None]] = []

    def __iter__(self) -> Iterator[Region]:
        return iter(self._regions.values())

    def __len__(self) -> int:
        return len(self._regions)

    def get(self, name: object) -> Region | None:
        """Return a region, None if unknown."""
        return self._regions.get(name) if isinstance(name, str) else None

    @property
    def healthy(self) -> list[Region]:
        """The healthy regions."""
        return [one for one in self if one.problem is None]

    async def start(self) -> None:
        """Check all regions now and at intervals."""
        await self.check()
        loop = asyncio.get_running_loop()
        self._checking = [loop.create_task(one.check_for_ever(self._checked)) for one in self]

    async def check(self) -> None:
        """Check all regions at the same time."""
        for one, is_healthy in zip(self, await asyncio.gather(*(one.check() for one in self)), strict=True):
            if is_healthy:
                self._checked(one)

    async def close(self) -> None:
        """Stop the checks, and close the connections."""
        checking, self._checking = self._checking, []
        for task in checking:
            task.cancel()
        await asyncio.gather(*checking, return_exceptions=True)
        await asyncio.gather(*(one.close() for one in self))

    def _checked(self, region: Region) -> None:
        self.on_healthy(region)
