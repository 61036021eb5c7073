"""The pump with an engine that only records, over real sockets of the loopback interface."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from waybill.transport.clock import Clock
from waybill.transport.listener import Admission, Listener
from waybill.transport.loop import new_event_loop
from waybill.transport.pump import HIGH_WATER_BYTES, LATE_TIMER_S, Pump


class Recorder:
    """An engine that keeps what it is told and sends what it is given."""

    def __init__(self) -> None:
        self.closed = False
        self.received = b""
        self.output: list[bytes] = []
        self.timeout_at: float | None = None
        self.calls: list[str] = []
        self.changed = asyncio.Event()

    def receive_data(self, data: bytes, now: float) -> None:
        assert type(data) is bytes
        self.received += data
        self._call("received")

    def data_to_send(self) -> bytes:
        data = b"".join(self.output)
        self.output.clear()
        return data

    def connection_lost(self, now: float) -> None:
        self._call("lost")

    def next_timeout(self) -> float | None:
        return self.timeout_at

    def handle_timeout(self, now: float) -> None:
        assert self.timeout_at is not None
        assert now >= self.timeout_at
        self.timeout_at = None
        self._call("timeout")

    def pause_writing(self) -> None:
        self._call("paused")

    def resume_writing(self, now: float) -> None:
        self._call("resumed")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


class Pair:
    """A pump behind a listener, and the plain socket of its peer."""

    def __init__(self) -> None:
        self.engine = Recorder()
        self.pump: Pump[Recorder] = Pump(lambda _: self.engine, Clock())
        self.listener = Listener(lambda: self.pump, "127.0.0.1", 0, Admission(10, lambda _pump: True, "a test"))

    async def open(self) -> None:
        await self.listener.start()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while not self.pump.connected:
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        self.listener.close()
        self.pump.abort()
        self.writer.transport.abort()
        await asyncio.sleep(0.01)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    await pair.open()
    yield pair
    await pair.close()


async def test_bytes_go_both_ways(pair: Pair) -> None:
    pair.writer.write(b"ping")
    await pair.engine.until(lambda: pair.engine.received == b"ping")
    pair.engine.output.append(b"pong")
    pair.pump.flush()
    assert await pair.reader.readexactly(4) == b"pong"
    assert pair.pump.peer_address.startswith("127.0.0.1:")
    assert pair.pump.local_address == f"127.0.0.1:{pair.listener.port}"


async def test_nagle_is_off(pair: Pair) -> None:
    assert pair.pump._transport is not None
    connection = pair.pump._transport.get_extra_info("socket")
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_closed_engine_is_heard_to_the_end(pair: Pair) -> None:
    """What the peer sends meanwhile must not turn the last words into a reset."""
    pair.writer.write(b"x" * 100_000)
    await pair.engine.until(lambda: bool(pair.engine.received))
    pair.engine.output.append(b"last words")
    pair.engine.closed = True
    pair.pump.flush()
    pair.writer.write(b"unread")
    assert await pair.reader.read() == b"last words"
    pair.writer.close()
    await pair.engine.until(lambda: "lost" in pair.engine.calls)


async def test_the_engine_hears_of_a_lost_connection_once(pair: Pair) -> None:
    pair.writer.close()
    await pair.engine.until(lambda: "lost" in pair.engine.calls)
    pair.pump.flush()
    pair.pump.abort()
    await asyncio.sleep(0.01)
    assert pair.engine.calls == ["lost"]


async def test_a_connection_whose_peer_has_closed_ends_when_it_is_its_turn(pair: Pair) -> None:
    steps: list[Callable[[], None]] = []
    pair.pump._in_turn = steps.append
    pair.writer.close()
    for expected in ([], ["lost"]):
        async with asyncio.timeout(10):
            while not steps:
                await asyncio.sleep(0.001)
        assert pair.engine.calls == []
        steps.pop()()
        assert pair.engine.calls == expected


async def test_back_pressure_reaches_the_engine(pair: Pair) -> None:
    while "paused" not in pair.engine.calls:
        pair.engine.output.append(bytes(HIGH_WATER_BYTES))
        pair.pump.flush()
    assert "resumed" not in pair.engine.calls
    reading = asyncio.create_task(pair.reader.read(-1))
    await pair.engine.until(lambda: "resumed" in pair.engine.calls)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_paused_reading_takes_nothing(pair: Pair) -> None:
    pair.pump.pause_reading()
    pair.pump.pause_reading()
    pair.writer.write(b"later")
    await asyncio.sleep(0.02)
    assert pair.engine.received == b""
    pair.pump.resume_reading()
    await pair.engine.until(lambda: pair.engine.received == b"later")


async def test_timeouts_fire_when_they_are_due(pair: Pair) -> None:
    clock = Clock()
    pair.engine.timeout_at = clock.now() + 0.05
    pair.pump.flush()
    pair.engine.timeout_at += 0.03  # Moved later without notice.
    due = pair.engine.timeout_at
    await pair.engine.until(lambda: "timeout" in pair.engine.calls)
    assert clock.now() >= due


async def test_a_late_timer_lets_waiting_bytes_go_first(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    now = Clock().now()
    monkeypatch.setattr(pair.pump, "_now", lambda: now)
    pair.engine.timeout_at = now + 0.02
    pair.pump.flush()
    now += 10 * LATE_TIMER_S  # As if the loop had been held up.
    pair.writer.write(b"I am here")
    await pair.engine.until(lambda: "received" in pair.engine.calls)
    assert "timeout" not in pair.engine.calls


def test_the_loop_is_the_best_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = new_event_loop()
    assert type(loop).__module__.startswith("uvloop")
    loop.close()
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    loop = new_event_loop()
    assert type(loop).__module__.startswith("asyncio")
    loop.close()


async def test_the_clock_tells_unix_time() -> None:
    import time

    clock = Clock()
    assert abs(clock.now() - time.time()) < 0.5
    first = clock.now()
    assert clock.now() >= first


class Failing(Recorder):
    """An engine with a fault in one of its methods."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def handle_timeout(self, now: float) -> None:
        self._fail("handle_timeout")

    def resume_writing(self, now: float) -> None:
        self._fail("resume_writing")

    def connection_lost(self, now: float) -> None:
        self._fail("connection_lost")

    def _fail(self, method: str) -> None:
        if method == self.method:
            raise ValueError("the engine is wrong")


@pytest.mark.parametrize("method", ["factory", "handle_timeout", "resume_writing", "connection_lost"])
async def test_a_fault_of_an_engine_ends_its_connection_and_frees_its_place(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Failing(method)
    admission = Admission(1, lambda _pump: True, "a test")
    pumps: list[Pump[Recorder]] = []

    def make_engine(_pump: Pump[Recorder]) -> Recorder:
        if method == "factory":
            raise ValueError("the engine is wrong")
        return engine

    def make_pump() -> Pump[Recorder]:
        pumps.append(Pump(make_engine, Clock(), on_lost=lambda pump, _error: admission.pump_lost(pump)))
        return pumps[-1]

    listener = Listener(make_pump, "127.0.0.1", 0, admission)
    await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    async with asyncio.timeout(10):
        while not pumps or not (pumps[0].connected or method == "factory"):
            await asyncio.sleep(0)
        match method:
            case "handle_timeout":
                engine.timeout_at = Clock().now()
                pumps[0].flush()
            case "resume_writing":
                pumps[0].resume_writing()
            case "connection_lost":
                writer.transport.abort()
        await admission.emptied()
        if method != "connection_lost":
            assert await reader.read() == b""
    writer.transport.abort()
    listener.close()
    faults = [str(record.exc_info[1]) for record in caplog.records if record.exc_info and record.levelname == "ERROR"]
    assert faults == ["the engine is wrong"]
