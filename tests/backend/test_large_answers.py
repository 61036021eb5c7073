"""Large answers of many clients: made one after another, and only while those before are read."""

from __future__ import annotations

import asyncio
import gzip
import socket
import sys

import pytest

from waybill.backend.application import Application
from waybill.backend.compression import ENCODING
from waybill.backend.large_answers import LARGE_BODY_BYTES, LargeAnswers
from waybill.backend.message import Request, Response
from waybill.backend.room import Room
from waybill.backend.router import OPEN, Route
from waybill.backend.server.limits import MAX_BODY_BYTES, Limits
from waybill.backend.server.server import HttpServer


async def test_large_answers_are_made_though_others_are_not_read() -> None:
    """Twenty lists of large jobs at once took 400 MB. Clients that do not read are cut; they stop no others."""
    made = 0

    async def make(_request: Request) -> Response:
        nonlocal made
        made += 1
        return Response(200, b"x" * 6_000_000)

    application = Application([Route("GET", "/list", make, OPEN, is_large=True)])
    server = HttpServer(application, limits=Limits(crowded_bytes=2_000_000, unread_bytes=20_000_000))
    connections = server.connections
    application.large_answers.is_behind = connections.is_behind
    listening = socket.create_server(("127.0.0.1", 0))
    await server.start(listening)
    asked = b"GET /list HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    clients = []
    for _ in range(12):
        client = socket.create_connection(listening.getsockname())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(asked)
        clients.append(client)
    most = 0
    while made < len(clients):
        await asyncio.sleep(0.01)
        most = max(most, connections.unread_bytes())
    assert 2_000_000 < most <= 20_000_000 + 2 * 6_000_000
    for client in clients:
        client.close()
    await server.close(0)


async def test_two_large_answers_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.large_answers.WAIT_SECONDS", 0.05)
    going = asyncio.Event()

    async def make(_request: Request) -> Response:
        await going.wait()
        return Response(200, b"{}")

    application = Application([Route("GET", "/list", make, OPEN, is_large=True)])
    asked = [asyncio.ensure_future(application.handle(Request("GET", "/list"))) for _ in range(3)]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert [(one.result().status, b"too many large" in one.result().body) for one in done] == [(503, True)]
    going.set()
    assert sorted([(await one).status for one in asked]) == [200, 200, 503]


async def test_one_large_request_begins_in_each_turn_of_the_loop() -> None:
    loop, answers, turn = asyncio.get_running_loop(), LargeAnswers(), 0
    turns: list[int] = []

    def tick() -> None:
        nonlocal turn
        turn += 1
        if len(turns) < 6:
            loop.call_soon(tick)

    async def make(_request: Request) -> Response:
        turns.append(turn)
        return Response(200)

    tick()
    await asyncio.gather(*(answers.handle(Request("GET", "/list"), make) for _ in range(6)))
    assert len(set(turns)) == 6


class Taker:
    """A handler that counts the requests that it has at the same time."""

    def __init__(self) -> None:
        self.running = self.highest = 0
        self.least = sys.maxsize
        """The size of the smallest body."""

    async def take(self, request: Request) -> Response:
        self.running += 1
        self.highest = max(self.highest, self.running)
        self.least = min(self.least, len(request.body))
        for _ in range(30):
            await asyncio.sleep(0)
        self.running -= 1
        return Response(201)


@pytest.mark.parametrize(
    ("body", "most"),
    [
        (bytes(1000), 12),
        # A thousand ordinary jobs.
        (b'{"type":"a.b","args":[{"to":"user","n":1}],"options":{"queue":"q"}},' * 1000, 12),
        (bytes(MAX_BODY_BYTES), 8),
        (b'"a",' * (MAX_BODY_BYTES // 4), 2),
        (bytes(16 * MAX_BODY_BYTES), 1),
    ],
)
async def test_large_bodies_are_taken_as_there_is_memory(body: bytes, most: int) -> None:
    """Forty-five enqueues of 1 MB of short texts at once took 870 MB."""
    quickly: list[Request] = []

    def take_quickly(request: Request) -> asyncio.Future[Response]:
        quickly.append(request)
        return asyncio.ensure_future(taker.take(request))

    for quick in (None, take_quickly):
        taker = Taker()
        quickly.clear()
        application = Application([Route("POST", "/jobs", taker.take, OPEN, quick)])
        asked = [application.handle(Request("POST", "/jobs", body=body)) for _ in range(12)]
        assert {one.status for one in await asyncio.gather(*asked)} == {201}
        assert taker.highest == most
        assert len(quickly) == (12 if quick is not None and len(body) <= MAX_BODY_BYTES else 0)


async def test_who_gives_up_leaves_its_room_to_others() -> None:
    room = Room(100)
    await room.enter(60)
    large, small = (asyncio.ensure_future(room.enter(size)) for size in (70, 40))
    await asyncio.sleep(0)
    # The smaller one would fit, but has come later.
    assert not small.done()
    large.cancel()
    await small
    room.leave(60)
    cancelled = asyncio.ensure_future(room.enter(90))
    await asyncio.sleep(0)
    room.leave(40)
    # It was let in at the moment of its end.
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await room.enter(100)


async def test_inflated_bodies_take_turns() -> None:
    taker = Taker()
    application = Application([Route("POST", "/jobs", taker.take, OPEN)])
    body = gzip.compress(b'"a",' * (MAX_BODY_BYTES // 4))
    asked = [application.handle(Request("POST", "/jobs", headers={ENCODING: "gzip"}, body=body)) for _ in range(12)]
    assert {one.status for one in await asyncio.gather(*asked)} == {201}
    assert taker.highest <= 2
    assert taker.least > LARGE_BODY_BYTES
