"""The application as ASGI: under uvicorn or granian by itself, or mounted into another application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from waybill.backend.application import Application
from waybill.backend.message import Request, Response

MAX_BODY_BYTES: Final = 1024 * 1024
"""What the specification gives as the default limit of a job."""
MAX_BATCH_BYTES: Final = 16 * MAX_BODY_BYTES
MAX_QUERY_FIELDS: Final = 100
DROPPED_BYTES: Final = 64 * MAX_BODY_BYTES
"""How much of a body that is too large is read before the answer: a client that still sends would not read it."""
BATCH_PATH: Final = "/ojs/v1/jobs/batch"
WAITING_PATHS: Final = frozenset({"/ojs/v1/workers/fetch"})
"""Where an answer may take long, so that nobody may be there any more who wants it."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_log = logging.getLogger("waybill.backend")


class _TooLarge(Exception):
    """A body is larger than it may be."""


class _Gone(Exception):
    """The client has closed the connection."""


class AsgiApplication:
    """Gives the requests of an ASGI server to an application. Whoever starts that has the lifespan in its hands."""

    def __init__(self, application: Application) -> None:
        """`application` is ready to answer."""
        self._application = application

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            return
        path: str = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        request = Request(scope["method"], path, _query(scope["query_string"]), _headers(scope["headers"]))
        try:
            most = MAX_BATCH_BYTES if path == BATCH_PATH else MAX_BODY_BYTES
            request.body = await _body(receive, request, most)
        except _TooLarge:
            response = self._application.refuse(request, "payload_too_large", "The body is too large.")
        except _Gone:
            return
        else:
            found = await self._answer(request, receive)
            if found is None:
                return
            response = found
        await _send(send, response, is_head=request.method == "HEAD")

    async def _answer(self, request: Request, receive: Receive) -> Response | None:
        """Return the answer, None if the client has gone before it was there."""
        if request.path not in WAITING_PATHS:
            return await self._application.handle(request)
        answering = asyncio.ensure_future(self._application.handle(request))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive, request: Request, most: int) -> bytes:
    declared = request.headers.get("content-length", "")
    is_large = declared.isdecimal() and int(declared) > most
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
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
        raise _TooLarge
    return b"".join(chunks) if len(chunks) != 1 else chunks[0]


async def _send(send: Send, response: Response, *, is_head: bool) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in response.headers]
    if response.status == 204:
        headers = [one for one in headers if one[0] != b"content-type"]
    else:
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else response.body})


def _headers(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


def _query(raw: bytes) -> dict[str, str]:
    if not raw:
        return {}
    try:
        fields = parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        _log.debug("a query has more than %d fields and is left out", MAX_QUERY_FIELDS)
        return {}
    return {unquote(name): value for name, value in fields}
