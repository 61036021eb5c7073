"""A server attacked through raw sockets: everything gets the right answer, and none is dropped without one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest
import trustme

from waybill.backend.application import Application
from waybill.backend.message import Request, Response, answer, streamed
from waybill.backend.router import OPEN, Route
from waybill.backend.server import server as server_module
from waybill.backend.server.limits import MAX_BODY_BYTES, Limits
from waybill.backend.server.server import HttpServer

GET = b"GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Site:
    """An application with something of each kind, behind a server."""

    def __init__(self, limits: Limits | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.release = asyncio.Event()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        routes = [
            Route("GET", "/echo", self._echo, OPEN),
            Route("POST", "/echo", self._echo, OPEN),
            Route("POST", "/ojs/v1/jobs/batch", self._echo, OPEN),
            Route("GET", "/quick", self._echo, OPEN, lambda request: answer({"query": request.query})),
            Route("GET", "/wait", self._wait, OPEN),
            Route("GET", "/slow", self._wait, OPEN),
            Route("GET", "/large", self._large, OPEN),
            Route("GET", "/ticks", self._ticks, OPEN),
        ]
        self.server = HttpServer(Application(routes), {"/wait"}, limits, tls)
        self.port = 0

    async def start(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        await self.server.start(listening)

    @staticmethod
    async def _echo(request: Request) -> Response:
        return answer({"method": request.method, "size": len(request.body), "query": request.query})

    async def _wait(self, _request: Request) -> Response:
        self.begun.set()
        try:
            await self.release.wait()
        finally:
            self.ended.set()
        return answer({"waited": True})

    @staticmethod
    async def _large(_request: Request) -> Response:
        return Response(200, b"x" * 3_000_000)

    async def _ticks(self, _request: Request) -> Response:
        async def ticks() -> AsyncIterator[bytes]:
            try:
                yield b"one"
                await self.release.wait()
                yield b"two"
            finally:
                self.ended.set()

        return streamed(ticks(), "text/event-stream")

    @asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def exchange(self, *parts: bytes) -> bytes:
        """Send parts, and return all that comes until the server closes."""
        async with self.client() as (reader, writer):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            return await reader.read()


@asynccontextmanager
async def serve(limits: Limits | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    site = Site(limits, tls)
    await site.start()
    try:
        yield site
    finally:
        await site.server.close(0.1)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serve() as site:
        yield site


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    size = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            size = int(line[15:])
    return int(head.split()[1]), head, await reader.readexactly(size)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"no http\r\n\r\n", 400),
        (b"no http\r\n", 400),
        (b"GET /echo HTTP/1.1\nHost: a\n\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (b"x" * 40_000, 501),
        (b"GET /echo HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 40_000, 431),
        (b"GET /echo HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n"
            + b"x" * 1_100_000,
            413,
        ),
        (b"POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: nothing\r\n\r\n", 417),
    ],
)
async def test_what_cannot_be_read_is_refused_and_the_connection_closed(site: Site, raw: bytes, status: int) -> None:
    head, _, body = (await site.exchange(raw)).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert b"Connection: close" in head
    error = msgspec.json.decode(body)["error"]
    assert error["code"]
    if status == 413:
        assert error["details"]["actual_bytes"] > error["details"]["max_bytes"] > 0


async def test_methods_that_nobody_knows_leave_the_connection_open(site: Site) -> None:
    async with site.client() as (reader, writer):
        writer.write(
            b"BREW /echo HTTP/1.1\r\nHost: localhost\r\n\r\nCONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET
        )
        found = [await read_answer(reader) for _ in range(3)]
        writer.write(b"BR")
        await writer.drain()
        assert await reader.read(0) == b""
        writer.write(b"EW /echo HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await read_answer(reader))[0] in {405, 501}
    assert [status for status, _, _ in found] == [405, 404, 200]
    assert b"Allow: GET, HEAD, OPTIONS, POST" in found[0][1]


async def test_a_body_that_is_too_large_is_refused_while_it_is_sent(site: Site) -> None:
    size = 20 * MAX_BODY_BYTES
    head = f"POST /ojs/v1/jobs/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
    found = await site.exchange(head, *[b"x" * MAX_BODY_BYTES] * 20)
    assert found.startswith(b"HTTP/1.1 413 ")
    asked = head.replace(b"Host", b"Expect: 100-continue\r\nHost")
    assert (await site.exchange(asked)).startswith(b"HTTP/1.1 413 ")


async def test_half_a_request_is_told_so(site: Site) -> None:
    for raw in (b"GET /echo HTT", GET[:-2], b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1234"):
        async with site.client() as (reader, writer):
            writer.write(raw)
            writer.write_eof()
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    async with site.client() as (reader, writer):
        writer.write(GET)
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    async with site.client() as (reader, writer):
        writer.write(GET * 3 + GET[:-2])
        writer.write_eof()
        assert [(await read_answer(reader))[0] for _ in range(4)] == [200, 200, 200, 400]
    async with site.client() as (reader, writer):
        writer.write_eof()
        assert await reader.read() == b""


async def test_pipelined_requests_are_answered_in_order(site: Site) -> None:
    async with site.client() as (reader, writer):
        paths = [b"/slow", b"/quick?a=1", b"/echo?a=2", b"/quick?a=3"]
        writer.write(b"".join(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in paths))
        await site.begun.wait()
        site.release.set()
        found = [msgspec.json.decode((await read_answer(reader))[2]) for _ in paths]
    assert found[0] == {"waited": True}
    assert [one["query"] for one in found[1:]] == [{"a": "1"}, {"a": "2"}, {"a": "3"}]


async def test_what_is_wrong_is_answered_after_what_came_before(site: Site) -> None:
    async with site.client() as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET + b"nonsense\r\n\r\n")
        await site.begun.wait()
        site.release.set()
        assert [(await read_answer(reader))[0] for _ in range(3)] == [200, 200, 400]
        assert await reader.read() == b""


async def test_a_client_is_told_to_go_on_after_the_answers_before(site: Site) -> None:
    async with site.client() as (reader, writer):
        asking = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n" + asking)
        await site.begun.wait()
        site.release.set()
        assert [(await read_answer(reader))[0] for _ in range(2)] == [200, 100]
        writer.write(b"abc")
        assert (await read_answer(reader))[0] == 200


async def test_pipelining_is_bounded() -> None:
    async with serve(Limits(pipelined_bytes=1000)) as site, site.client() as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await site.begun.wait()
        count = 200
        writer.write(GET * count)
        await writer.drain()
        for _ in range(10):
            await asyncio.sleep(0)
        site.release.set()
        assert [(await read_answer(reader))[0] for _ in range(count + 1)] == [200] * (count + 1)


async def test_bodies_come_in_every_way(site: Site) -> None:
    async with site.client() as (reader, writer):
        chunked = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunked += b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n"
        for octet in chunked:
            writer.write(bytes([octet]))
            await writer.drain()
        assert msgspec.json.decode((await read_answer(reader))[2])["size"] == 5
        writer.write(b"\r\nPOST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert (await read_answer(reader))[0] == 100
        writer.write(b"abc")
        assert (await read_answer(reader))[0] == 200
        writer.write(b"HEAD /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: 3000000" in head
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert len((await reader.read()).partition(b"\r\n\r\n")[2]) == 3_000_000


async def test_http_1_0_closes_unless_it_is_asked_not_to(site: Site) -> None:
    assert (await site.exchange(b"GET /echo HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    async with site.client() as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /quick HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert b"Connection: keep-alive" in (await read_answer(reader))[1]
    found = await site.exchange(b"HEAD /ticks HTTP/1.0\r\n\r\n")
    assert found.endswith(b"\r\n\r\n")
    assert b"chunked" not in found


async def test_queries_have_limits_and_are_decoded_once(site: Site) -> None:
    async with site.client() as (reader, writer):
        writer.write(b"GET /quick?a%2525=b%2525&c=%C3%A9 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert msgspec.json.decode((await read_answer(reader))[2])["query"] == {"a%25": "b%25", "c": "é"}
        writer.write(b"GET /quick?" + b"&".join([b"a=b"] * 101) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await read_answer(reader))[0] == 400


async def test_a_client_that_waits_and_leaves_ends_its_request(site: Site) -> None:
    async with site.client() as (_, writer):
        writer.write(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await site.begun.wait()
    await site.ended.wait()


async def test_streams_are_chunked_and_end_with_their_client(site: Site) -> None:
    async with site.client() as (reader, writer):
        writer.write(b"GET /ticks HTTP/1.1\r\nHost: localhost\r\n\r\n" + GET)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        assert b"Content-Type: text/event-stream" in head
        assert await reader.readuntil(b"one\r\n") == b"3\r\none\r\n"
        site.release.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\ntwo\r\n0\r\n\r\n"
        assert (await read_answer(reader))[0] == 200
    site.release.clear()
    site.ended.clear()
    async with site.client() as (reader, writer):
        writer.write(b"GET /ticks HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"one\r\n")
    await site.ended.wait()


async def test_more_streams_than_allowed_are_refused_until_one_has_ended() -> None:
    ask = b"GET /ticks HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serve(Limits(streams=1)) as site, site.client() as (reader, writer):
        async with site.client() as (first, asked):
            asked.write(ask)
            await first.readuntil(b"one\r\n")
            writer.write(ask + GET)
            status, head, body = await read_answer(reader)
            assert status == 503
            assert b"Retry-After: " in head
            assert msgspec.json.decode(body)["error"]["code"] == "overloaded"
            # The connection goes on.
            assert (await read_answer(reader))[0] == 200
        await site.ended.wait()
        writer.write(ask)
        await reader.readuntil(b"one\r\n")


SHORT = Limits(keep_alive=0.05, head=0.05, body=0.05, body_rate=10**9, write=0.05, linger=0.05)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /echo HT", b"HTTP/1.1 408 "),
        (b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1", b"HTTP/1.1 408 "),
        (b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n1", b"HTTP/1.1 408 "),
        (b"", b""),
    ],
)
async def test_slow_clients_are_told_so(monkeypatch: pytest.MonkeyPatch, raw: bytes, status: bytes) -> None:
    monkeypatch.setattr(server_module, "ROUND_SECONDS", 0.01)
    async with serve(SHORT) as site:
        found = await site.exchange(raw)
        assert found.startswith(status)
        assert bool(found) == bool(status)


async def test_a_client_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "ROUND_SECONDS", 0.01)
    async with serve(replace(SHORT, keep_alive=60, head=60)) as site, site.client() as (reader, writer):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
        while not site.server.connections:
            await asyncio.sleep(0)
        while site.server.connections:
            await asyncio.sleep(0.01)


async def test_a_crowd_beyond_the_limit_is_closed_without_an_answer() -> None:
    async with serve(Limits(connections=1, refused=1)) as site, site.client(), site.client() as (refused, _):
        assert (await refused.readline()).split()[1] == b"503"
        async with site.client() as (closed, _):
            with contextlib.suppress(ConnectionResetError):
                assert not await closed.read()


async def test_connections_and_large_bodies_have_limits() -> None:
    async with serve(Limits(connections=1, body_bytes=100_000)) as site, site.client() as (reader, writer):
        writer.write(GET)
        assert (await read_answer(reader))[0] == 200
        found = await site.exchange()
        assert found.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After" in found
        for size, status in ((90_000, 200), (90_000, 200), (200_000, 503)):
            writer.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
            assert (await read_answer(reader))[0] == status


async def test_what_has_come_of_a_body_takes_room_until_it_is_answered() -> None:
    def post(announced: int, sent: int) -> bytes:
        return b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % announced + b"x" * sent

    async with (
        serve(Limits(body_bytes=100_000)) as site,
        site.client() as (reader, writer),
        site.client() as (_, silent),
    ):
        silent.write(post(90_000, 0))
        writer.write(post(90_000, 89_999))
        status = 200
        while status == 200:
            async with site.client() as (other, second):
                second.write(post(20_000, 20_000))
                status, _, _ = await read_answer(other)
        assert status == 503
        writer.write(b"x")
        assert (await read_answer(reader))[0] == 200
        writer.write(post(90_000, 90_000))
        assert (await read_answer(reader))[0] == 200


async def test_what_is_refused_takes_no_room_while_its_client_reads_why() -> None:
    def post(size: int) -> bytes:
        return b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size

    async with (
        serve(Limits(body_bytes=100_000, linger=60)) as site,
        site.client() as (reader, writer),
        site.client() as (refused, second),
        site.client() as (told, third),
    ):
        writer.write(post(90_000) + b"x" * 89_999)
        second.write(post(20_000) + b"x" * 6_000)
        # By its answer, the server has read what was sent before.
        third.write(GET)
        assert (await read_answer(told))[0] == 200
        second.write(b"x" * 8_000)
        assert (await read_answer(refused))[0] == 503
        writer.write(b"x")
        assert (await read_answer(reader))[0] == 200
        writer.write(post(99_000) + b"x" * 99_000)
        assert (await read_answer(reader))[0] == 200


async def test_a_server_that_closes_answers_what_was_asked() -> None:
    site = Site()
    await site.start()
    async with site.client() as (reader, writer), site.client() as (idle, other):
        other.write(GET)
        await read_answer(idle)
        writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await site.begun.wait()
        closing = asyncio.ensure_future(site.server.close(5))
        assert await idle.read() == b""
        site.release.set()
        status, head, _ = await read_answer(reader)
        assert (status, b"Connection: close" in head) == (200, True)
        await closing


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a server for `localhost`, and of clients that trust it."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


async def test_tls() -> None:
    tls, trusting = tls_contexts()
    async with serve(tls=tls) as site:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", site.port, ssl=trusting, server_hostname="localhost"
        )
        writer.write(GET)
        assert (await read_answer(reader))[0] == 200
        writer.write(b"nonsense\r\n\r\n")
        assert (await read_answer(reader))[0] == 400
        writer.close()


async def test_connections_with_tls_are_limited_more_tightly() -> None:
    tls, trusting = tls_contexts()
    async with serve(Limits(tls_connections=1), tls=tls) as site:
        clients = [
            await asyncio.open_connection("127.0.0.1", site.port, ssl=trusting, server_hostname="localhost")
            for _ in range(2)
        ]
        assert (await read_answer(clients[1][0]))[0] == 503
        clients[0][1].write(GET)
        assert (await read_answer(clients[0][0]))[0] == 200
        for _, writer in clients:
            writer.close()


async def test_of_too_many_connections_without_a_handshake_the_oldest_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waybill.backend.server.tls_listener.MOST_UNFINISHED", 2)
    tls, trusting = tls_contexts()
    async with serve(tls=tls) as site:
        silent = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(3)]
        assert await silent[0][0].read() == b""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", site.port, ssl=trusting, server_hostname="localhost"
        )
        writer.write(GET)
        assert (await read_answer(reader))[0] == 200
        assert await silent[1][0].read() == b""
        for one in (writer, *(each for _, each in silent)):
            one.close()


async def test_a_connection_that_begins_no_handshake_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.server.tls_listener.HANDSHAKE_SECONDS", 0.05)
    tls, _ = tls_contexts()
    async with serve(tls=tls) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        assert await reader.read() == b""
        writer.close()
