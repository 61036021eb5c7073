"""Base classes of objects that are closed, or started and closed, by `async with`."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """An object with `close`. The end of `async with` calls it."""

    __slots__ = ()

    async def close(self) -> None:
        """Close it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Service(Closing):
    """An object with `start` and `close`. `async with` calls them."""

    async def start(self) -> None:
        """Start it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self
