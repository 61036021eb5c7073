"""Answers that go on: each piece is sent at once, and a client that goes away ends the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from waybill.backend.application import Application
from waybill.backend.asgi import AsgiApplication
from waybill.backend.message import Request, Response, streamed
from waybill.backend.router import OPEN, Route


class Ticker:
    """Streams what it is given, and notes its end."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.has_ended = asyncio.Event()

    async def answer(self, _request: Request) -> Response:
        return streamed(self._stream(), "text/event-stream")

    async def _stream(self) -> AsyncIterator[bytes]:
        try:
            while piece := await self.pieces.get():
                yield piece
        finally:
            self.has_ended.set()


class Exchange:
    """One request of an ASGI server."""

    def __init__(self, ticker: Ticker, method: str = "GET") -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.received: asyncio.Queue[Any] = asyncio.Queue()
        self.received.put_nowait({"type": "http.request", "body": b""})
        scope = {"type": "http", "method": method, "path": "/ticks", "query_string": b"", "headers": []}
        application = AsgiApplication(Application([Route("GET", "/ticks", ticker.answer, OPEN)]))
        self.task = asyncio.ensure_future(application(scope, self.received.get, self.sent.put))


async def test_each_piece_is_sent_at_once_until_the_stream_ends() -> None:
    ticker = Ticker()
    exchange = Exchange(ticker)
    start = await exchange.sent.get()
    headers = dict(start["headers"])
    assert (start["status"], headers[b"content-type"]) == (200, b"text/event-stream")
    assert b"content-length" not in headers
    for piece in (b"data: 1\n\n", b"data: 2\n\n"):
        ticker.pieces.put_nowait(piece)
        assert await exchange.sent.get() == {"type": "http.response.body", "body": piece, "more_body": True}
    ticker.pieces.put_nowait(b"")
    await exchange.task
    assert exchange.sent.get_nowait() == {"type": "http.response.body", "body": b""}
    assert ticker.has_ended.is_set()


async def test_a_client_that_goes_away_ends_the_stream() -> None:
    ticker = Ticker()
    exchange = Exchange(ticker)
    ticker.pieces.put_nowait(b"data: 1\n\n")
    for _ in range(2):
        await exchange.sent.get()
    exchange.received.put_nowait({"type": "http.disconnect"})
    await exchange.task
    assert ticker.has_ended.is_set()


async def test_head_of_a_stream_has_no_pieces() -> None:
    ticker = Ticker()
    ticker.pieces.put_nowait(b"data: 1\n\n")
    exchange = Exchange(ticker, "HEAD")
    await exchange.task
    assert (await exchange.sent.get())["status"] == 200
    assert (await exchange.sent.get()) == {"type": "http.response.body", "body": b""}
