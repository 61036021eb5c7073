"""Accepting connections: a place for each, TLS handshakes in time, and no descriptor left."""

import asyncio
import contextlib
import errno
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from tests.transport.test_pump import Recorder
from waybill.transport.clock import Clock
from waybill.transport.listener import HANDSHAKE_BATCH, Admission, Listener, Visitor
from waybill.transport.listener import _listening as listening
from waybill.transport.pump import Pump
from waybill.transport.tls import server_context


class Door:
    """A listener with three places; `settled` pumps are not cut for others."""

    def __init__(
        self, tls: ssl.SSLContext | None = None, *, places: int = 3, handshake_timeout_s: float = 10.0
    ) -> None:
        self.settled: set[Pump[Recorder]] = set()
        self.pumps: list[Pump[Recorder]] = []
        self.changed = asyncio.Event()
        self.admission = Admission(places, lambda pump: pump in self.settled, "a test")
        self.listener = Listener(
            self._pump, "127.0.0.1", 0, self.admission, tls, handshake_timeout_s=handshake_timeout_s
        )

    def _pump(self) -> Pump[Recorder]:
        return Pump(lambda _: Recorder(), Clock(), on_lost=lambda pump, _: self.admission.pump_lost(pump))

    async def close(self) -> None:
        self.listener.close()
        for visitor in list(self.admission._visitors):
            visitor.cut()
        async with asyncio.timeout(10):
            await self.admission.emptied()
        await asyncio.sleep(0.01)

    async def until(self, count: int) -> None:
        """So many sockets stand."""
        async with asyncio.timeout(10):
            while self.admission.count != count:
                await asyncio.sleep(0.001)


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    leaf = trustme.CA().issue_cert("localhost", "127.0.0.1")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "c.pem")
    leaf.private_key_pem.write_to_path(tmp_path / "k.pem")
    return server_context(tmp_path / "c.pem", tmp_path / "k.pem")


async def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listener = Listener(
            lambda: Pump(lambda _: Recorder(), Clock(), on_lost=print), "127.0.0.1", port, Door().admission
        )
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: Address already in use") as caught:
            await listener.start()
    assert caught.value.errno == errno.EADDRINUSE


@pytest.fixture
def peers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    door = Door()
    await door.listener.start()
    yield door
    await door.close()


def silent(door: Door, peers: ExitStack) -> socket.socket:
    peer = peers.enter_context(socket.create_connection(("127.0.0.1", door.listener.port)))
    peer.setblocking(False)
    return peer


async def ended(peer: socket.socket) -> bool:
    async with asyncio.timeout(10):
        try:
            return await asyncio.get_running_loop().sock_recv(peer, 1) == b""
        except ConnectionError:
            return True


async def hello(door: Door, peers: ExitStack) -> ssl.SSLSocket:
    """A TLS connection that stands."""
    loose = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    loose.check_hostname = False
    loose.verify_mode = ssl.CERT_NONE
    raw = socket.create_connection(("127.0.0.1", door.listener.port), timeout=10)
    return peers.enter_context(await asyncio.to_thread(loose.wrap_socket, raw))


async def test_the_oldest_that_has_not_logged_in_goes_for_another(door: Door, peers: ExitStack) -> None:
    crowd = [silent(door, peers) for _ in range(3)]
    await door.until(3)
    silent(door, peers)
    assert await ended(crowd[0])
    await door.until(3)


async def test_who_has_logged_in_stays_and_others_wait(door: Door, peers: ExitStack) -> None:
    door.admission.places = 1
    first = silent(door, peers)
    await door.until(1)
    (visitor,) = door.admission._visitors
    assert visitor.pump is not None
    door.settled.add(visitor.pump)
    second = silent(door, peers)
    await asyncio.sleep(0.05)
    first.setblocking(True)
    first.close()
    await door.until(1)
    third = silent(door, peers)
    assert await ended(second)
    third.close()


async def test_listeners_within_an_admission_share_its_places_and_have_their_own(peers: ExitStack) -> None:
    """One of two connections to the listener with one place waits; all leave both admissions."""
    house = Admission(3, lambda _pump: True, "a test")
    room = Admission(1, lambda _pump: True, "a test", house)
    pumps: list[Pump[Recorder]] = []

    def lost(pump: Pump[Recorder], _error: Exception | None) -> None:
        room.pump_lost(pump)
        house.pump_lost(pump)

    def make_pump() -> Pump[Recorder]:
        pumps.append(Pump(lambda _: Recorder(), Clock(), on_lost=lost))
        return pumps[-1]

    async def until(in_house: int, in_room: int) -> None:
        async with asyncio.timeout(10):
            while (house.count, room.count) != (in_house, in_room):
                await asyncio.sleep(0.001)

    listeners = [Listener(make_pump, "127.0.0.1", 0, admission) for admission in (house, room)]
    for listener in listeners:
        await listener.start()
    outside, inside = (listener.port for listener in listeners)
    first = peers.enter_context(socket.create_connection(("127.0.0.1", inside)))
    await until(1, 1)
    peers.enter_context(socket.create_connection(("127.0.0.1", inside)))
    peers.enter_context(socket.create_connection(("127.0.0.1", outside)))
    await until(2, 1)
    first.close()
    await until(2, 1)
    peers.enter_context(socket.create_connection(("127.0.0.1", outside)))
    await until(3, 1)
    for listener in listeners:
        listener.close()
    for pump in pumps:
        pump.abort()
    await until(0, 0)


async def test_silent_tls_connections_are_counted_and_go_for_others(context: ssl.SSLContext, peers: ExitStack) -> None:
    door = Door(context)
    await door.listener.start()
    crowd = [silent(door, peers) for _ in range(3)]
    await door.until(3)
    await hello(door, peers)
    assert await ended(crowd[0])
    assert door.admission.count <= 3
    await door.close()


@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01"])
async def test_a_tls_handshake_that_does_not_end_is_cut(
    context: ssl.SSLContext, peers: ExitStack, start: bytes
) -> None:
    door = Door(context, handshake_timeout_s=0.05)
    await door.listener.start()
    peer = silent(door, peers)
    peer.send(start)
    assert await ended(peer)
    await door.until(0)
    await door.close()


async def test_what_is_no_tls_frees_its_place(context: ssl.SSLContext, peers: ExitStack) -> None:
    door = Door(context)
    await door.listener.start()
    for _ in range(2 * HANDSHAKE_BATCH):
        peer = silent(door, peers)
        peer.send(b"GET / HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0)
    await door.until(0)
    await hello(door, peers)
    await door.close()


async def test_a_round_of_the_event_loop_begins_a_few_handshakes_however_many_were_turned_away(
    context: ssl.SSLContext, peers: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(context, places=1000)
    await door.listener.start()
    begun: list[object] = []
    monkeypatch.setattr(door.listener, "_begin", begun.append)

    def hear(count: int) -> list[Visitor]:
        for _ in range(count):
            ours, theirs = socket.socketpair()
            peers.enter_context(theirs)
            door.listener._welcome(ours)
        visitors = list(door.listener._silent)
        for visitor in visitors:
            door.listener._hear(visitor)
        return visitors

    for _ in range(20):
        door.listener._turn_away(*hear(1))
    visitors = hear(5 * HANDSHAKE_BATCH)
    await asyncio.sleep(0)
    assert len(begun) == HANDSHAKE_BATCH
    await asyncio.sleep(0.01)
    assert begun == visitors
    for visitor in visitors:
        visitor.cut()
        visitor.connection.close()
        door.admission.leave(visitor)
    await door.close()


async def test_without_descriptors_it_tries_again_later(
    door: Door, peers: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    peer = peers.enter_context(socket.socket())
    peer.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (peer.fileno() + 50, hard))
    fillers = []
    try:
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", door.listener.port))
        await asyncio.sleep(0.1)
        assert [record.message for record in caplog.records if "cannot accept connections" in record.message][1:] == []
        assert "trying again" in caplog.text
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await door.until(1)


class Refusing:
    """A listening socket that refuses to accept, once, for a reason that is no lack of descriptors."""

    def __init__(self, real: socket.socket) -> None:
        self.calls = 0
        self._real = real

    def fileno(self) -> int:
        return self._real.fileno()

    def getsockname(self) -> tuple[str, int]:
        name: tuple[str, int] = self._real.getsockname()
        return name

    def close(self) -> None:
        self._real.close()

    def accept(self) -> tuple[socket.socket, object]:
        self.calls += 1
        if self.calls == 1:
            raise PermissionError(errno.EPERM, "the firewall forbids it")
        return self._real.accept()


async def test_what_refuses_to_accept_is_asked_again_after_a_while(
    peers: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("waybill.transport.listener.RETRY_S", 0.01)
    monkeypatch.setattr("waybill.transport.listener._listening", lambda *where: Refusing(listening(*where)))
    door = Door()
    await door.listener.start()
    silent(door, peers)
    await door.until(1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    await door.close()


async def test_a_fault_in_making_a_pump_frees_the_place(peers: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Pump[Recorder]:
        raise ValueError("the factory is wrong")

    admission = Admission(1, lambda _pump: True, "a test")
    listener = Listener(fail, "127.0.0.1", 0, admission)
    await listener.start()
    for _ in range(2):
        peer = peers.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
        peer.setblocking(False)
        assert await ended(peer)
    listener.close()
    assert admission.count == 0
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
