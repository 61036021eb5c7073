"""The WebSocket of events (ojs-realtime section 3)."""

from __future__ import annotations

from waybill.backend.backend import Backend
from waybill.backend.handshake import accept_headers
from waybill.backend.message import Request, Response
from waybill.backend.router import READ, Route
from waybill.backend.socket_channels import ChannelRoom, SocketChannels
from waybill.backend.sockets import Socket, Talk


class SocketRoutes:
    """The route for WebSockets."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._room = ChannelRoom()

    def routes(self) -> list[Route]:
        """Return the route."""
        return [Route("GET", "/ojs/v1/ws", self._connect, READ)]

    async def _connect(self, request: Request) -> Response:
        headers, prefix = accept_headers(request), request.queue_prefix

        async def run(socket: Socket) -> None:
            await SocketChannels(self._backend, socket, prefix, self._room).run()

        return Response(101, headers=list(headers), talk=Talk(run, headers))
