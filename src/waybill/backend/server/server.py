"""The server: accepts connections, and checks their timeouts."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection
from typing import Final

from waybill.backend.server.connection import Connection
from waybill.backend.server.connections import Answering, Connections
from waybill.backend.server.limits import Limits

ROUND_SECONDS: Final = 1.0
"""How often connections are checked, so timeouts may be exceeded by this time."""
HANDSHAKE_SECONDS: Final = 10.0
BACKLOG: Final = 2048


class HttpServer:
    """Serves an application on a listening socket."""

    def __init__(
        self,
        application: Answering,
        waiting_paths: Collection[str] = (),
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """See `Connections`."""
        self.connections = Connections(application, waiting_paths, limits or Limits())
        self._tls = tls
        self._listener: asyncio.Server | None = None
        self._rounds: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._rounds = loop.create_task(self._look())
        timeout = None if self._tls is None else HANDSHAKE_SECONDS
        self._listener = await loop.create_server(
            lambda: Connection(self.connections),
            sock=listening,
            ssl=self._tls,
            ssl_handshake_timeout=timeout,
            backlog=BACKLOG,
        )

    async def close(self, grace_seconds: float) -> None:
        """Stop accepting, answer open requests, and close all connections."""
        connections = self.connections
        connections.is_closing = True
        if self._listener is not None:
            self._listener.close()
        for connection in connections.all():
            connection.shut_down()
        try:
            async with asyncio.timeout(grace_seconds):
                await connections.is_empty.wait()
        except TimeoutError:
            for connection in connections.all():
                connection.abort()
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, *connections.tasks, return_exceptions=True)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            self.connections.look(loop.time())
