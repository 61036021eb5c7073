"""How long a push waits while the broker accepts no publishes: its memory or disk is low, or it is unreachable."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol

from waybill.client import Connection


class Limited(Protocol):
    """Something that takes limited time."""

    def reschedule(self, when: float | None, /) -> None:
        """Give up at this time of the loop's clock; None for never."""


class BlockedTimeout:
    """A time limit that runs only while the broker blocks the connection or is unreachable, and restarts each time.

    With `while_blocked`, it does not run while the broker blocks the connection.

    async with blocked_timeout.limit() as limit: ...    raises TimeoutError, and limit.expired() is true then
    """

    def __init__(self, connection: Connection, seconds: float, *, while_blocked: bool = False) -> None:
        self._connection = connection
        self._while_blocked = while_blocked
        self._seconds = seconds
        self._limits: set[asyncio.Timeout | Limited] = set()
        connection.on_blocked(lambda _: self._changed())
        connection.on_loss(lambda _: self._changed())
        connection.on_reconnect(self._changed)

    @property
    def reason(self) -> str:
        """Return why a push has to wait."""
        if not self._connection.is_open:
            return "the broker cannot be reached"
        return f"the broker accepts no publishes ({self._connection.blocked}); the job may still be enqueued later"

    def limit(self) -> Limit:
        """Return a limit for one wait."""
        return Limit(self._limits, self._seconds if self._is_limited() else None)

    def watch(self, limited: Limited) -> None:
        """Reschedule `limited` as the limits, until `leave`. The broker must accept publishes now."""
        self._limits.add(limited)

    def leave(self, limited: Limited) -> None:
        """Reschedule it no more."""
        self._limits.discard(limited)

    @property
    def is_limited(self) -> bool:
        """Whether the time runs now."""
        return self._is_limited()

    def _is_limited(self) -> bool:
        if not self._connection.is_open:
            return True
        return self._connection.blocked is not None and not self._while_blocked

    def _changed(self) -> None:
        at = asyncio.get_running_loop().time() + self._seconds if self._is_limited() else None
        for limit in list(self._limits):
            limit.reschedule(at)


class Limit:
    """See `BlockedTimeout.limit`."""

    def __init__(self, limits: set[asyncio.Timeout | Limited], seconds: float | None) -> None:
        self._limits = limits
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> asyncio.Timeout:
        await self._timeout.__aenter__()
        self._limits.add(self._timeout)
        return self._timeout

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.discard(self._timeout)
        await self._timeout.__aexit__(kind, error, trace)
