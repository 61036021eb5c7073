"""The proxy: serves a federation on a port, for clients and workers in any language."""

from __future__ import annotations

import ssl

from waybill.backend.application import Application
from waybill.backend.asgi import WAITING_PATHS
from waybill.backend.errors import RequestRefused
from waybill.backend.keys import KeyRing
from waybill.backend.message import Request, Response
from waybill.backend.router import Route
from waybill.backend.server.limits import Limits
from waybill.backend.server.listening import listen
from waybill.backend.server.server import HttpServer
from waybill.backend.serving import GRACE_SECONDS
from waybill.client.service import Service
from waybill.federation.layer import Layer


class FederationServing(Service):
    """Serves a layer: `async with FederationServing(layer, "127.0.0.1", 8080) as serving: ...`."""

    def __init__(
        self,
        layer: Layer,
        host: str,
        port: int,
        *,
        keys: KeyRing | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Without `keys`, every program on this machine may do everything: for loopback only."""
        self._layer = layer
        self._host = host
        self._port = port
        self._keys = keys
        self._tls = tls
        self._limits = limits
        self._server: HttpServer | None = None
        self.url = ""

    async def start(self) -> None:
        """Check the regions, and listen. Raises OSError."""
        listening, url = listen(self._host, self._port, is_secure=self._tls is not None)
        try:
            await self._layer.start()
        except BaseException:
            listening.close()
            raise
        self.url = url
        application = Application([_without_tenants(one) for one in self._layer.routes()], self._keys)
        self._server = HttpServer(application, WAITING_PATHS, self._limits, self._tls)
        await self._server.start(listening)

    async def close(self) -> None:
        """Stop accepting, answer open requests, and requeue unused jobs."""
        server, self._server = self._server, None
        if server is not None:
            await server.close(GRACE_SECONDS)
        await self._layer.close()


def _without_tenants(route: Route) -> Route:
    """Refuse keys of tenants: only regions isolate tenants, and here they would see everything."""
    handler = route.handler

    async def handle(request: Request) -> Response:
        if request.tenant:
            text = "Keys of tenants cannot be used with a federation."
            raise RequestRefused("permission_denied", text, hint="Use the URL of a region with a key of its own.")
        return await handler(request)

    return route._replace(handler=handle)
