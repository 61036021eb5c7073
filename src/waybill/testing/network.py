"""The network between clients and a broker under test: a test can cut it, slow it down or stall it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast


class Network:
    """A TCP proxy in front of a broker's port on loopback. Use it in the loop that started it."""

    def __init__(self, host: str) -> None:
        self.latency_s = 0.0
        self.is_refusing = False
        self._host = host
        self._target_port = 0
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._ends: set[_End] = set()
        self._port = 0

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self._port

    @property
    def connection_count(self) -> int:
        """The number of connected clients."""
        return sum(end.is_client for end in self._ends)

    async def start(self, target_port: int) -> None:
        """Listen, on the same port each time, for the broker at `target_port`."""
        self._target_port = target_port
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _End(self, is_client=True), self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close all connections, and stop listening."""
        self.cut()
        if self._server is not None:
            self._server.close()
            self._server = None
        while self._ends:  # noqa: ASYNC110 - each closes in a later iteration of the loop
            await asyncio.sleep(0)

    def cut(self) -> int:
        """Reset all client connections. Returns how many."""
        count = self.connection_count
        for end in list(self._ends):
            end.abort()
        return count

    def stall(self) -> None:
        """Stall the traffic in both directions; connections stay open."""
        self._flows.clear()

    def flow(self) -> None:
        """End a stall: release the held traffic."""
        self._flows.set()
        for end in self._ends:
            end.pass_on()

    async def connect(self, client: _End) -> None:
        """Connect to the broker for a client."""
        loop = asyncio.get_running_loop()
        try:
            _, end = await loop.create_connection(lambda: _End(self, is_client=False), self._host, self._target_port)
        except OSError:
            client.abort()
            return
        client.join(end)

    @property
    def is_stalled(self) -> bool:
        """Whether the traffic is stalled."""
        return not self._flows.is_set()

    def opened(self, end: _End) -> None:
        """Record an open end."""
        self._ends.add(end)

    def lost(self, end: _End) -> None:
        """Forget an end."""
        self._ends.discard(end)


class _End(asyncio.Protocol):
    """One end of a connection. Its input is written to the other end, in order, after the latency."""

    def __init__(self, network: Network, *, is_client: bool) -> None:
        self.is_client = is_client
        self._network = network
        self._transport: asyncio.Transport | None = None
        self._other: _End | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the transport."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._network.opened(self)
        if self.is_client and self._network.is_refusing:
            self.abort()
        elif self.is_client:
            self._connecting = asyncio.get_running_loop().create_task(self._network.connect(self))

    def join(self, other: _End) -> None:
        """The other end is open now."""
        self._other, other._other = other, self
        if self._transport is None or self._transport.is_closing():
            other.abort()
        self.pass_on()

    def data_received(self, data: bytes) -> None:
        """Forward the data, now or later."""
        if (
            self._other is not None
            and not self._waiting
            and not self._network.latency_s
            and not self._network.is_stalled
        ):
            self._other.write(data)
            return
        self._waiting.append((asyncio.get_running_loop().time() + self._network.latency_s, data))
        self.pass_on()

    def pass_on(self) -> None:
        """Write due data to the other end."""
        loop = asyncio.get_running_loop()
        while self._waiting and self._other is not None and not self._network.is_stalled:
            due = self._waiting[0][0]
            if due > loop.time():
                if self._timer is None:
                    self._timer = loop.call_at(due, self._on_time)
                return
            self._other.write(self._waiting.popleft()[1])

    def _on_time(self) -> None:
        self._timer = None
        self.pass_on()

    def write(self, data: bytes) -> None:
        """Write to this end's peer."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        """Reset the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """Close the other end: after pending traffic if this one was closed, immediately if it was reset."""
        self._network.lost(self)
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting and self._other is not None:
            self._other.write(self._waiting.popleft()[1])
        if self._other is not None:
            self._other.finish()

    def finish(self) -> None:
        """Close, after the written data is sent."""
        if self._transport is not None:
            self._transport.close()
