"""Runs a move in sessions: a lost connection ends a session, and the next one reads the state from the brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Final, Generic, TypeVar

from waybill.client import (
    ConnectFailed,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    ReconnectPolicy,
    RequestTimeout,
    connect,
)
from waybill.move.errors import MoveFailed

PAUSES: Final = ReconnectPolicy()
NO_RECONNECT: Final = ReconnectPolicy(max_attempts=0)

T = TypeVar("T")
"""The type of the connections."""
Opener = Callable[[], AbstractAsyncContextManager[T]]
Session = Callable[[AsyncExitStack, T, T], Awaitable[None]]
"""Uses a connection to the source and one to the target. The stack closes what it opens."""

_log = logging.getLogger("waybill.move")


def opener(uri: str, name: str) -> Opener[Connection]:
    """Return a function that opens AMQP 0-9-1 connections with a name."""
    return lambda: connect(uri, name=name, reconnect=NO_RECONNECT)


class Sessions(Generic[T]):
    """The sessions of one run."""

    def __init__(self, source: Opener[T], target: Opener[T]) -> None:
        """Both open connections that do not reconnect."""
        self._openers = source, target
        self._stopping = asyncio.Event()
        self._failures = 0
        self._has_connected = False

    @property
    def is_stopping(self) -> bool:
        """Whether the run is stopping."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Stop after the current work."""
        self._stopping.set()

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than until `stop`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    @staticmethod
    async def sleep(seconds: float) -> None:
        """Wait, even if the run is stopping."""
        await asyncio.sleep(seconds)

    async def run(self, session: Session[T]) -> None:
        """Run sessions until one completes.

        Raises all errors other than lost connections, ConnectFailed if the first session cannot connect, and MoveFailed
        if `stop` is called while a broker is unreachable, because messages may be in transit.
        """
        while True:
            try:
                async with AsyncExitStack() as stack:
                    source, target = [await stack.enter_async_context(open_one()) for open_one in self._openers]
                    self._has_connected = True
                    self._failures = 0
                    await session(stack, source, target)
                    return
            except (ConnectionLost, ConnectionClosed, ConnectFailed, RequestTimeout) as error:
                if isinstance(error, ConnectFailed) and not self._has_connected:
                    raise
                self._failures += 1
                delay = PAUSES.delay_s(self._failures)
                _log.warning("connection lost, reconnecting in %.1f s: %s", delay, error)
                await self.pause(delay)
                if self.is_stopping:
                    text = f"stopped while a broker could not be reached, messages may be in transit ({error})"
                    raise MoveFailed(text) from None
