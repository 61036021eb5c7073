"""Pools of channels, for many tasks, and of connections, for heavy traffic."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

from waybill.client.channel import Channel
from waybill.client.connection import Connection, connect
from waybill.client.ranges import check_whole
from waybill.client.reconnect import ReconnectPolicy
from waybill.client.service import Closing
from waybill.client.uri import MAX_SHORT, BrokerAddress


class ChannelPool(Closing):
    """Lends channels of one connection, at most `size` at a time. They are opened when needed.

        async with pool.channel() as channel:
            await channel.publish(...)

    A channel that its borrower closed is not lent again.
    """

    def __init__(self, connection: Connection, size: int = 16, *, confirms: bool = True) -> None:
        check_whole("size", size, 1, MAX_SHORT)
        self._connection = connection
        self._confirms = confirms
        self._slots = asyncio.Semaphore(size)
        self._idle: deque[Channel] = deque()
        self._closed = False

    @property
    def idle_count(self) -> int:
        """The number of open channels that are not in use."""
        return len(self._idle)

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Channel]:
        """Borrow a channel; waits while all are lent. Raises the errors of `Connection.channel`."""
        async with self._slots:
            channel = self._idle.pop() if self._idle else await self._connection.channel(confirms=self._confirms)
            try:
                yield channel
            finally:
                if self._closed:
                    await channel.close()
                elif not channel.closed:
                    self._idle.append(channel)

    async def close(self) -> None:
        """Close the idle channels; lent ones are closed when they are returned."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()


class ConnectionPool(Closing):
    """Up to `size` connections (default: one per core) to one broker, opened when needed and returned round-robin.

    Any number of users may share a connection: its channels keep them apart.
    """

    def __init__(
        self,
        uri: str | Sequence[str] | BrokerAddress,
        size: int | None = None,
        *,
        name: str = "",
        reconnect: ReconnectPolicy | None = None,
    ) -> None:
        check_whole("size", size, 1, MAX_SHORT)
        self._uri = uri
        self._size = size or os.cpu_count() or 1
        self._name = name
        self._reconnect = reconnect
        self._connections: deque[Connection] = deque()
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Open the first connection. Raises the errors of `connect`."""
        await self.connection()

    async def connection(self) -> Connection:
        """The next connection, round-robin; one that was given up is replaced. Raises the errors of `connect`."""
        async with self._opening:
            for given_up in [one for one in self._connections if one.closed]:
                self._connections.remove(given_up)
            if len(self._connections) < self._size:
                name = f"{self._name}-{len(self._connections) + 1}" if self._name else ""
                self._connections.append(await connect(self._uri, name=name, reconnect=self._reconnect))
                return self._connections[-1]
        self._connections.rotate(-1)
        return self._connections[-1]

    async def close(self) -> None:
        """Close all connections."""
        async with self._opening:
            while self._connections:
                await self._connections.pop().close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self
