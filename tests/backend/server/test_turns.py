"""No client keeps others waiting by many requests in one piece, or fills the memory with unread answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from waybill.backend.application import Application
from waybill.backend.message import Request, Response, answer, streamed
from waybill.backend.router import OPEN, Route
from waybill.backend.server.connection import REQUESTS_IN_A_ROW, WRITE_BUFFER_BYTES, Connection
from waybill.backend.server.connections import UNREAD_STEPS, Connections
from waybill.backend.server.limits import Limits
from waybill.backend.server.turns import MOST_ENDS

ONE = b"GET /one HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Transport(asyncio.Transport):
    """A client that reads only if `is_read`."""

    def __init__(self, *, is_read: bool = True) -> None:
        super().__init__()
        self.is_read = is_read
        self.address = ""
        self.written = bytearray()
        self.stops = 0
        self._is_reading = True
        self._is_closed = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return (self.address, 50_000) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._is_closed
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0 if self.is_read else len(self.written)

    def pause_reading(self) -> None:
        self.stops += self._is_reading
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def is_reading(self) -> bool:
        return self._is_reading

    def is_closing(self) -> bool:
        return self._is_closed

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self._is_closed = True

    def abort(self) -> None:
        self._is_closed = True

    @property
    def answers(self) -> int:
        return self.written.count(b"HTTP/1.1 200 ")


class Site:
    """A server without sockets."""

    def __init__(self, limits: Limits) -> None:
        self.release = asyncio.Event()
        routes = [
            Route("GET", "/one", self._slow, OPEN, lambda request: answer({"size": len(request.body)})),
            # A large body does not go the quick way.
            Route("POST", "/one", self._sized, OPEN, lambda request: answer({"size": len(request.body)})),
            Route("GET", "/slow", self._slow, OPEN),
            Route("GET", "/large", self._large, OPEN),
            Route("GET", "/stream", self._stream, OPEN),
        ]
        self.server = Connections(Application(routes), ("/slow",), limits)
        self.cancelled_count = 0

    async def _slow(self, _request: Request) -> Response:
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled_count += 1
            raise
        return answer({})

    async def _sized(self, request: Request) -> Response:
        return answer({"size": len(request.body)})

    async def _large(self, _request: Request) -> Response:
        return answer({"text": "x" * WRITE_BUFFER_BYTES})

    async def _stream(self, _request: Request) -> Response:
        return streamed(self._pieces(), "text/plain")

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"piece"
                await self.release.wait()
        finally:
            self.cancelled_count += 1

    def client(self, *, is_read: bool = True, address: str = "192.0.2.1") -> tuple[Connection, Transport]:
        connection, transport = Connection(self.server), Transport(is_read=is_read)
        transport.address = address
        connection.connection_made(transport)
        return connection, transport


@asynccontextmanager
async def site(limits: Limits) -> AsyncIterator[Site]:
    yield Site(limits)


async def largest_step(count: Callable[[], int], end: int) -> int:
    """The most by which a count grows in one turn of the loop, until it reaches `end`."""
    counts = [0]
    while counts[-1] < end:
        await asyncio.sleep(0)
        counts.append(count())
    return max(after - before for before, after in pairwise(counts))


@pytest.mark.plain_source
async def test_requests_beyond_the_first_wait_for_a_turn_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.server.turns.FIRST_SECONDS", 60)
    async with site(Limits(turn=0)) as place:
        greedy, transport = place.client()
        count = 3000
        greedy.data_received(ONE * count)
        assert transport.answers == 1
        assert not transport.is_reading()
        other, heard = place.client()
        other.data_received(ONE)
        assert heard.answers == 1
        while transport.answers < count:
            await asyncio.sleep(0)
        assert transport.is_reading()
        assert place.server.reserve(place.server.limits.body_bytes)


async def test_a_connection_answers_a_few_requests_and_then_others_have_their_turn() -> None:
    async with site(Limits(turn=60)) as place:
        clients = [place.client() for _ in range(3)]
        for connection, transport in clients:
            connection.data_received(ONE * 1000)
            assert transport.answers <= REQUESTS_IN_A_ROW
        while min(transport.answers for _, transport in clients) < 1000:
            answers = [transport.answers for _, transport in clients]
            assert max(answers) - min(answers) <= 4 * REQUESTS_IN_A_ROW
            await asyncio.sleep(0)


@pytest.mark.parametrize("size", [10, 1000, 1023, 1024, 1025, 5000, 300_000])
async def test_bodies_are_whole_whatever_the_pieces(size: int) -> None:
    async with site(Limits(turn=0)) as place:
        connection, transport = place.client()
        one = b"POST /one HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
        connection.data_received(ONE + one * 3 + ONE)
        while transport.answers < 5:
            await asyncio.sleep(0)
        assert transport.written.count(b'{"size":%d}' % size) == 3


@pytest.mark.parametrize("coding", [b"chunked", b"Chunked"])
async def test_a_chunked_body_of_single_octets_waits_its_turn_too(coding: bytes) -> None:
    async with site(Limits(turn=0)) as place:
        connection, transport = place.client()
        head = b"POST /one HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: " + coding
        connection.data_received(head + b"\r\n\r\n" + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
        assert not transport.is_reading()
        while not transport.answers:
            await asyncio.sleep(0)
        assert b'{"size":20000}' in transport.written


async def test_input_behind_a_request_in_progress_is_not_parsed_but_counted() -> None:
    async with site(Limits(body_bytes=250_000)) as place:
        connection, transport = place.client()
        connection.data_received(SLOW + ONE * 5000)
        assert not transport.is_reading()
        assert not place.server.reserve(100_000)
        late, refused = place.client()
        late.data_received(SLOW + ONE * 5000)
        place.release.set()
        while transport.answers < 5001 or not refused.is_closing():
            await asyncio.sleep(0)
        assert b"HTTP/1.1 503 " in refused.written
        connection.connection_lost(None)
        late.connection_lost(None)
        while len(place.server):
            await asyncio.sleep(0)
        assert place.server.reserve(250_000)


async def test_large_heads_are_counted() -> None:
    head = b"GET /slow HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 20_000
    async with site(Limits(body_bytes=100_000)) as place:
        clients = [place.client() for _ in range(4)]
        for connection, _ in clients[:2]:
            connection.data_received(head)
        clients[2][0].data_received(head + b"\r\n\r\n")
        clients[3][0].data_received(head + b"\r\n\r\n")
        while not clients[3][1].written:
            # After a turn that has taken long, it is read in the next one.
            await asyncio.sleep(0)
        assert b"HTTP/1.1 503 " in clients[3][1].written
        place.release.set()
        while not clients[2][1].answers:
            await asyncio.sleep(0)
        for connection, _ in clients:
            connection.connection_lost(None)
        while len(place.server):
            await asyncio.sleep(0)
        assert place.server.reserve(100_000)


async def test_no_more_is_answered_than_a_client_reads() -> None:
    async with site(Limits(turn=60)) as place:
        connection, transport = place.client(is_read=False)
        connection.data_received(ONE * 3000)
        for _ in range(3000):
            await asyncio.sleep(0)
            if len(transport.written) > WRITE_BUFFER_BYTES:
                connection.pause_writing()
                break
        before = len(transport.written)
        assert before < 2 * WRITE_BUFFER_BYTES
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(transport.written) == before
        transport.is_read = True
        connection.resume_writing()
        while transport.answers < 3000:
            await asyncio.sleep(0)


async def test_of_clients_that_do_not_read_the_first_is_closed_when_it_is_too_much() -> None:
    async with site(Limits(unread_bytes=250)) as place:
        clients = [place.client(is_read=False) for _ in range(4)]
        for connection, transport in clients:
            transport.write(b"x" * 100)
            connection.pause_writing()
        await asyncio.sleep(0)
        assert [transport.is_closing() for _, transport in clients] == [True, True, False, False]
        clients[2][0].resume_writing()
        clients[0][1].written += b"x" * 100
        other, transport = place.client(is_read=False)
        transport.write(b"x" * 100)
        other.pause_writing()
        await asyncio.sleep(0)
        assert not transport.is_closing()
        assert not clients[3][1].is_closing()


async def test_large_answers_that_are_not_read_are_counted_soon() -> None:
    """With thousands of such clients, hundreds of large answers came between two counts."""
    async with site(Limits(unread_bytes=8000)) as place:
        clients = [place.client(is_read=False) for _ in range(200)]
        for connection, transport in clients:
            transport.write(b"x" * (1 if connection is not clients[-1][0] else 20_000))
            connection.pause_writing()
        await asyncio.sleep(0)
        assert clients[0][1].is_closing()


async def test_clients_that_disconnect_together_are_closed_in_several_turns() -> None:
    async with site(Limits()) as place:
        clients = [place.client() for _ in range(3 * MOST_ENDS)]
        assert all(connection.eof_received() for connection, _ in clients)
        step = await largest_step(lambda: sum(transport.is_closing() for _, transport in clients), len(clients))
        assert step <= MOST_ENDS


async def test_long_polls_of_clients_that_disconnect_together_are_cancelled_in_several_turns() -> None:
    async with site(Limits(turn=60)) as place:
        clients = [place.client() for _ in range(3 * MOST_ENDS)]
        for connection, _ in clients:
            connection.data_received(SLOW)
        await asyncio.sleep(0)
        for connection, _ in clients:
            connection.connection_lost(None)
        assert await largest_step(lambda: place.cancelled_count, len(clients)) <= MOST_ENDS
        assert not len(place.server)


async def test_connections_that_are_lost_together_end_in_several_turns() -> None:
    async with site(Limits(turn=60)) as place:
        clients = [place.client() for _ in range(3 * MOST_ENDS)]
        for connection, transport in clients:
            transport.close()
            connection.connection_lost(None)
        counts = [len(place.server)]
        assert counts == [len(clients)]
        while len(place.server):
            other, heard = place.client()
            other.data_received(ONE)
            assert heard.answers == 1
            heard.close()
            before = len(place.server)
            await asyncio.sleep(0)
            counts.append(before - len(place.server))
            if len(counts) == 3:
                break
        assert 0 < max(counts[1:]) <= MOST_ENDS


async def test_streams_of_lost_clients_write_nothing_and_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with site(Limits(turn=60)) as place:
        clients = [place.client() for _ in range(3 * MOST_ENDS)]
        for connection, transport in clients:
            connection.data_received(STREAM)
            while b"piece" not in transport.written:
                await asyncio.sleep(0)
        before = [len(transport.written) for _, transport in clients]
        # An event comes to all before the first of them has ended.
        for connection, transport in clients:
            transport.close()
            connection.connection_lost(None)
        place.release.set()
        while len(place.server) or place.cancelled_count < len(clients):
            await asyncio.sleep(0)
        assert [len(transport.written) for _, transport in clients] == before
        assert not caplog.records


async def test_streams_that_nobody_read_end_in_several_turns() -> None:
    async with site(Limits(turn=60)) as place:
        clients = [place.client() for _ in range(3 * MOST_ENDS)]
        for connection, transport in clients:
            connection.pause_writing()
            connection.resume_writing()
            connection.data_received(STREAM)
            connection.pause_writing()
            while b"piece" not in transport.written:
                await asyncio.sleep(0)
        for connection, transport in clients:
            # This is what uvloop does when a client resets its connection.
            transport.close()
            connection.resume_writing()
            connection.connection_lost(None)
        assert await largest_step(lambda: place.cancelled_count, len(clients)) <= MOST_ENDS


async def test_clients_that_stop_reading_together_are_not_added_up_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def look(_connection: Connection) -> int:
        nonlocal looks
        looks += 1
        return 100

    monkeypatch.setattr(Connection, "unread_bytes", look)
    async with site(Limits()) as place:
        for _ in range(2000):
            place.client(is_read=False)[0].pause_writing()
    assert looks <= 2000 * (UNREAD_STEPS + 2)


@pytest.mark.plain_source
async def test_input_of_a_crowd_is_only_set_aside_when_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.server.turns.FIRST_SECONDS", -1)
    async with site(Limits(turn=0)) as place:
        clients = [place.client() for _ in range(50)]
        for connection, transport in clients:
            connection.data_received(b"not HTTP\r\n\r\n")
            assert not transport.is_reading()
        assert not any(transport.written for _, transport in clients)
        step = await largest_step(lambda: sum(b" 400 " in transport.written for _, transport in clients), len(clients))
        assert step == 1


async def test_halves_of_requests_that_end_together_are_refused_in_several_turns() -> None:
    async with site(Limits(turn=60)) as place:
        clients = [place.client() for _ in range(3 * MOST_ENDS)]
        for connection, _ in clients:
            connection.data_received(ONE[:-4])
        for connection, transport in clients:
            assert connection.eof_received()
            assert not transport.written
        step = await largest_step(lambda: sum(b" 400 " in transport.written for _, transport in clients), len(clients))
        assert step <= MOST_ENDS


@pytest.mark.plain_source
async def test_a_crowd_does_not_stand_before_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.server.turns.FIRST_SECONDS", -1)
    async with site(Limits(turn=0)) as place:
        crowd = [place.client(address="192.0.2.1") for _ in range(200)]
        for connection, _ in crowd:
            connection.data_received(ONE)
        other, heard = place.client(address="192.0.2.2")
        other.data_received(ONE)
        while not heard.answers:
            await asyncio.sleep(0)
        assert sum(transport.answers for _, transport in crowd) <= 2
        while sum(transport.answers for _, transport in crowd) < len(crowd):
            await asyncio.sleep(0)


@pytest.mark.plain_source
async def test_first_requests_wait_for_a_turn_with_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.server.turns.FIRST_SECONDS", -1)
    async with site(Limits(turn=0)) as place:
        clients = [place.client() for _ in range(50)]
        for connection, transport in clients:
            connection.data_received(ONE)
            connection.data_received(ONE)
            assert not transport.answers
        assert await largest_step(lambda: sum(transport.answers for _, transport in clients), 100) == 1


async def test_large_answers_are_sent_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.portions.PORTION_SECONDS", -1)
    async with site(Limits(turn=60)) as place:
        clients = [place.client() for _ in range(20)]
        for connection, _ in clients:
            connection.data_received(LARGE * 2)
        gone, unsent = clients[7]
        gone.connection_lost(None)
        unsent.close()
        assert await largest_step(lambda: sum(transport.answers for _, transport in clients), 2 * 19) == 1
        assert not unsent.answers
