"""Accepts connections: one pump for each."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final

from waybill.transport.pump import Pump
from waybill.transport.ranges import PORTS, check_whole

BACKLOG: Final = 1024


class Listener:
    """Listens on `host`:`port` (0: a free one), with TLS if a context is given.

    `pump_factory` makes the protocol of each connection. Raises OSError from `start` if the address cannot be bound.
    """

    def __init__(
        self,
        pump_factory: Callable[[], Pump[Any]],
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_whole("port", port, *PORTS)
        self._pump_factory = pump_factory
        self._host = host
        self._port = port
        self._tls = tls
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is really bound, once started."""
        if self._server is not None and self._server.sockets:
            port: int = self._server.sockets[0].getsockname()[1]
            return port
        return self._port

    @property
    def host(self) -> str:
        return self._host

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: self._pump_factory().protocol,
            self._host,
            self._port,
            ssl=self._tls,
            backlog=BACKLOG,
            start_serving=True,
        )

    def close(self) -> None:
        """Accept no more connections. Those that stand go on."""
        if self._server is not None:
            self._port = self.port
            self._server.close()
            self._server = None
