"""The server: accepts connections, and checks their timeouts."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Final, cast

from waybill.backend.server.connection import Connection
from waybill.backend.server.connections import Answering, Connections
from waybill.backend.server.limits import Limits
from waybill.backend.server.tls_listener import TlsListener

ROUND_SECONDS: Final = 1.0
"""How often connections are checked, so timeouts may be exceeded by this time."""
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
        limits = limits or Limits()
        if tls is not None:
            limits = replace(limits, connections=min(limits.connections, limits.tls_connections))
        self.connections = Connections(application, waiting_paths, limits)
        self._tls = tls
        self._listener: asyncio.Server | TlsListener | None = None
        self._rounds: asyncio.Task[None] | None = None

    async def start(self, listening: socket.socket) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._rounds = loop.create_task(self._look())
        make_connection = cast("Callable[[], asyncio.Protocol]", partial(Connection, self.connections))
        if self._tls is None:
            self._listener = await loop.create_server(make_connection, sock=listening, backlog=BACKLOG)
        else:
            self._listener = TlsListener(listening, self._tls, make_connection)
            self._listener.start(BACKLOG)

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
