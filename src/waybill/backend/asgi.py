"""The application as ASGI: under uvicorn or granian, or mounted into another application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final

from waybill.backend.application import Application
from waybill.backend.errors import RequestRefused
from waybill.backend.handshake import SUBPROTOCOL, VERSION
from waybill.backend.message import Request, Response, read_query
from waybill.backend.peer import peer_text
from waybill.backend.server.limits import MAX_BODY_BYTES, MAX_LENGTH_DIGITS, body_limit, too_large
from waybill.backend.sockets import MOST_MESSAGE_BYTES, SocketClosed
from waybill.backend.streams import close_stream

DROPPED_BYTES: Final = 64 * MAX_BODY_BYTES
"""How much of a too large body is read before the answer: many clients read only after they have sent all."""
WAITING_PATHS: Final = frozenset({"/ojs/v1/workers/fetch"})
"""Paths with slow answers, whose clients may have disconnected before the answer."""

SHAKEN: Final = {
    "upgrade": "websocket",
    "sec-websocket-version": VERSION,
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
"""The headers of a handshake that the server has done."""
REFUSED: Final = 1008

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiSocket:
    """A WebSocket of an ASGI server."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def receive(self) -> str:
        """Return the next message. Raises SocketClosed."""
        message = await self._receive()
        text = message.get("text") or ""
        if message["type"] != "websocket.receive" or len(text) > MOST_MESSAGE_BYTES:
            raise SocketClosed
        return str(text)

    async def until_writable(self) -> None:
        """Return at once: `send` waits."""

    async def send(self, text: str) -> None:
        """Send a message. Raises SocketClosed."""
        try:
            await self._send({"type": "websocket.send", "text": text})
        except OSError as error:
            raise SocketClosed from error

    async def close(self, code: int) -> None:
        """Close the connection."""
        await self._send({"type": "websocket.close", "code": code})


class _Disconnected(Exception):
    """The client has closed the connection."""


class AsgiApplication:
    """Passes the requests of an ASGI server to an application. The caller manages the application's lifespan."""

    def __init__(self, application: Application) -> None:
        """`application` is started."""
        self._application = application

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await self._talk(scope, receive, send)
            return
        path: str = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        request = Request(scope["method"], path, {}, _headers(scope["headers"]), peer=_peer(scope))
        try:
            request.body = await _body(receive, request, body_limit(path))
            request.query = read_query(scope["query_string"])
        except RequestRefused as error:
            response = self._application.refuse(request, error.code, error.message, error.details)
        except _Disconnected:
            return
        else:
            found = await self._answer(request, receive)
            if found is None:
                return
            response = found
        if response.stream is None:
            await _send(send, response, is_head=request.method == "HEAD")
        else:
            await _stream(send, receive, response, response.stream, is_head=request.method == "HEAD")

    async def _talk(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a WebSocket; the handshake is the server's."""
        path: str = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        request = Request("GET", path, {}, _headers(scope["headers"]) | SHAKEN, peer=_peer(scope))
        response = await self._application.handle(request)
        await receive()
        if response.talk is None:
            if "websocket.http.response" in scope.get("extensions", {}):
                found = {"status": response.status, "headers": _encoded(response)}
                await send({"type": "websocket.http.response.start", **found})
                await send({"type": "websocket.http.response.body", "body": response.body})
            else:
                await send({"type": "websocket.close", "code": REFUSED})
            return
        protocol = SUBPROTOCOL if SUBPROTOCOL in scope.get("subprotocols", ()) else None
        await send({"type": "websocket.accept", "subprotocol": protocol})
        await response.talk.run(AsgiSocket(receive, send))

    async def _answer(self, request: Request, receive: Receive) -> Response | None:
        """Return the answer, None if the client has disconnected before."""
        if request.path not in WAITING_PATHS:
            return await self._application.handle(request)
        answering = asyncio.ensure_future(self._application.handle(request))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive, request: Request, most: int) -> bytes:
    declared = request.headers.get("content-length", "")
    digits = declared.lstrip("0")
    is_large = digits.isdecimal() and (len(digits) > MAX_LENGTH_DIGITS or int(digits) > most)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > most or is_large:
            is_large = True
            chunks.clear()
        else:
            chunks.append(chunk)
        if not message.get("more_body") or size > DROPPED_BYTES:
            break
    if is_large:
        size = int(digits) if digits.isdecimal() and len(digits) <= MAX_LENGTH_DIGITS else size
        raise RequestRefused("payload_too_large", "The body is too large.", details=too_large(size, most))
    return b"".join(chunks) if len(chunks) != 1 else chunks[0]


async def _stream(
    send: Send, receive: Receive, response: Response, stream: AsyncIterator[bytes], *, is_head: bool
) -> None:
    """Send the pieces of a stream until its end or until the client disconnects; then close it."""
    pumping = asyncio.ensure_future(_pump(send, response, stream, is_head=is_head))
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (pumping, leaving):
            task.cancel()
        ended, _ = await asyncio.gather(pumping, leaving, return_exceptions=True)
        await close_stream(stream)
    if isinstance(ended, Exception):
        raise ended


async def _pump(send: Send, response: Response, stream: AsyncIterator[bytes], *, is_head: bool) -> None:
    await send({"type": "http.response.start", "status": response.status, "headers": _encoded(response)})
    if not is_head:
        async for piece in stream:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _encoded(response: Response) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in response.headers]


async def _send(send: Send, response: Response, *, is_head: bool) -> None:
    headers = _encoded(response)
    if response.status == 204:
        headers = [one for one in headers if one[0] != b"content-type"]
    else:
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else response.body})


def _peer(scope: Message) -> str:
    """Return the address of the client, empty for a server that does not tell it."""
    return peer_text(tuple(scope.get("client") or ()))


def _headers(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
