"""What is started and closed, and can be used with `async with`."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Service:
    """An object with `start` and `close`. `async with` calls them."""

    async def start(self) -> None:
        """Start it."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
