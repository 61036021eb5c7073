"""Large answers of many clients: made one after another, and only while those before are read."""

from __future__ import annotations

import asyncio
import socket

import pytest

from waybill.backend.application import Application
from waybill.backend.message import Request, Response
from waybill.backend.router import OPEN, Route
from waybill.backend.server.limits import Limits
from waybill.backend.server.server import HttpServer


async def test_large_answers_wait_until_others_are_read() -> None:
    """Twenty lists of large jobs at once took 400 MB."""
    made = 0

    async def make(_request: Request) -> Response:
        nonlocal made
        made += 1
        return Response(200, b"x" * 6_000_000)

    application = Application([Route("GET", "/list", make, OPEN, is_large=True)])
    server = HttpServer(application, limits=Limits(crowded_bytes=2_000_000, write_crowded=0.0))
    connections = server.connections
    application.large_answers.is_behind = connections.is_behind
    listening = socket.create_server(("127.0.0.1", 0))
    await server.start(listening)
    asked = b"GET /list HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    clients = []
    for _ in range(6):
        client = socket.create_connection(listening.getsockname())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(asked)
        clients.append(client)
    while not connections.is_behind():
        await asyncio.sleep(0.01)
    for _ in range(10):
        await asyncio.sleep(0.02)
    begun, unread = made, connections.unread_bytes()
    assert begun < len(clients)
    assert unread <= 3 * 6_000_000
    # Those who do not read are cut, as others wait.
    while made < len(clients):
        await asyncio.sleep(0.01)
        connections.look(asyncio.get_running_loop().time())
    for client in clients:
        client.close()
    await server.close(0)


async def test_a_large_answer_that_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.large_answers.WAIT_SECONDS", 0.05)

    async def make(_request: Request) -> Response:
        raise AssertionError("it was made")

    application = Application([Route("GET", "/list", make, OPEN, is_large=True)])
    application.large_answers.is_behind = lambda: True
    found = await application.handle(Request("GET", "/list"))
    assert (found.status, b"too slowly" in found.body) == (503, True)
