"""How long a push waits for a broker that takes no publishes, because its memory or disk runs short."""

from __future__ import annotations

import asyncio
from types import TracebackType

from waybill.client import Connection


class Patience:
    """Time limits that run only while the broker blocks the connection, and begin anew each time it does.

    async with patience.limit() as limit: ...    raises TimeoutError, and limit.expired() is true then
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._limits: set[asyncio.Timeout] = set()
        connection.on_blocked(self._changed)

    def limit(self) -> Limit:
        """One wait."""
        return Limit(self._limits, self._seconds if self._connection.blocked is not None else None)

    def _changed(self, reason: str | None) -> None:
        at = None if reason is None else asyncio.get_running_loop().time() + self._seconds
        for limit in self._limits:
            limit.reschedule(at)


class Limit:
    """See `Patience.limit`."""

    def __init__(self, limits: set[asyncio.Timeout], seconds: float | None) -> None:
        self._limits = limits
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> asyncio.Timeout:
        """Begin."""
        await self._timeout.__aenter__()
        self._limits.add(self._timeout)
        return self._timeout

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""
        self._limits.discard(self._timeout)
        await self._timeout.__aexit__(kind, error, trace)
