"""The pump: moves bytes, time and back-pressure between one transport and one sans-IO engine.

It knows no protocol. Everything that arrives in one read goes to the engine in one call, then `after_receive` runs
once: there a broker flushes its node (which flushes the pumps that have output) and a client flushes this pump.

    socket -> data_received -> engine.receive_data(data, now) -> after_receive() -> flush() -> socket
    loop timer ------------> engine.handle_timeout(now) ----> after_receive()
    socket gone -----------> engine.connection_lost(now) ---> after_receive()

It is a `Protocol` of asyncio, not a `BufferedProtocol`: engines keep slices of their input, so they need `bytes`, and
making those from a shared buffer costs the same copy plus a second callback for each read (measured with uvloop and
64 KiB reads: 10 % slower; with asyncio: equal). Both loops read up to 256 KiB at once.

Closing. Once `engine.closed` is true its last output is written and our side of the connection is shut down, but
reading goes on, and what arrives is dropped until the peer closes too (at most `LINGER_S`). Closing a socket that has
unread input makes the kernel send a reset, which would destroy the error message that the peer has not read yet.

Faults. An exception of the engine, or of `after_receive`, ends this connection and no other; it is logged once, with
its traceback. (The loop does that itself if it comes from `data_received`.) `on_lost` is always called.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from waybill.transport.clock import Clock

HIGH_WATER_BYTES: Final = 1 << 20
LOW_WATER_BYTES: Final = 1 << 18
TIGHT_HIGH_WATER_BYTES: Final = 1 << 15
LINGER_S: Final = 2.0
LATE_TIMER_S: Final = 0.5

logger: Final = logging.getLogger("waybill.transport")


class Engine(Protocol):
    """What a pump drives: a connection's state machine. `now` is in seconds of `Clock.now`."""

    @property
    def closed(self) -> bool:
        """The connection is over: close the transport once the output is written."""

    def receive_data(self, data: bytes, now: float) -> None: ...

    def data_to_send(self) -> bytes:
        """Drain the output."""

    def connection_lost(self, now: float) -> None: ...

    def next_timeout(self) -> float | None:
        """The absolute time of the next `handle_timeout`, None for never. It may move later without notice."""

    def handle_timeout(self, now: float) -> None: ...

    def pause_writing(self) -> None:
        """The transport buffers more than its high-water mark: produce only necessary output."""

    def resume_writing(self, now: float) -> None: ...


EngineT = TypeVar("EngineT", bound=Engine)


class Pump(Generic[EngineT]):
    """Drives the engine that `engine_factory(pump)` makes once the connection is made.

    It has the methods of `asyncio.Protocol` without deriving from it, for classes of which mypyc's code is slow.

    `after_receive` defaults to `flush`. `on_lost(pump, error)` is called last, when the transport is gone; `error` is
    None after an orderly end. `in_turn` calls each step of a connection's end when it is its turn, by default at once:
    thousands may end together.
    """

    engine: EngineT

    def __init__(
        self,
        engine_factory: Callable[["Pump[EngineT]"], EngineT],
        clock: Clock,
        after_receive: Callable[[], None] | None = None,
        on_lost: Callable[["Pump[EngineT]", Exception | None], None] | None = None,
        in_turn: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._engine_factory = engine_factory
        self._now = clock.now
        self.after_receive: Callable[[], None] = after_receive or self.flush
        self._on_lost = on_lost
        self._in_turn = in_turn
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closing = False
        self._reading_paused = False
        self._has_engine = False

    @property
    def protocol(self) -> asyncio.Protocol:
        """Itself, for the loop."""
        return cast("asyncio.Protocol", self)

    @property
    def peer_address(self) -> str:
        """`host:port` of the peer, for logs and statistics."""
        return _format_address(self._extra("peername"))

    @property
    def local_address(self) -> str:
        """`host:port` of our side."""
        return _format_address(self._extra("sockname"))

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """The verified certificate of a TLS peer, in the form of `ssl.SSLSocket.getpeercert`."""
        return cast("dict[str, Any] | None", self._extra("peercert"))

    @property
    def cipher(self) -> tuple[str, str, int] | None:
        """Cipher, version of TLS and bits of the key; None without TLS."""
        return cast("tuple[str, str, int] | None", self._extra("cipher"))

    @property
    def connected(self) -> bool:
        """Whether a transport takes output."""
        return self._transport is not None and not self._closing

    def flush(self) -> None:
        """Write the engine's output, close if it is closed, arm its timer."""
        transport = self._transport
        if transport is None or self._closing:
            return
        engine = self.engine
        data = engine.data_to_send()
        if data:
            transport.write(data)
        if engine.closed:
            self._close()
            return
        at = engine.next_timeout()
        # A deadline that moves later keeps the armed timer, which checks again when it fires. A busy connection, whose
        # heartbeat deadlines move with each read, does not touch the loop's timers.
        if at is not None and (self._timer is None or at < self._timer_at):
            self._arm(at)

    def pause_reading(self) -> None:
        """Take no more input, so that TCP pushes back on the peer. A second call does nothing."""
        self._reading_paused = True
        if self._transport is not None and not self._closing:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def tighten(self) -> None:
        """Keep the output buffer small from now on."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=TIGHT_HIGH_WATER_BYTES, low=TIGHT_HIGH_WATER_BYTES >> 2)

    def abort(self) -> None:
        """Drop the connection and the output that is still buffered. The engine hears `connection_lost` soon."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        self._transport = stream
        connection = stream.get_extra_info("socket")
        if connection is not None and connection.family in {socket.AF_INET, socket.AF_INET6}:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=LOW_WATER_BYTES)
        try:
            self.engine = self._engine_factory(self)
            self._has_engine = True
            self.after_receive()
            self.flush()
        except Exception as error:  # noqa: BLE001 - any fault ends only this connection
            self._fail(error)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self.engine.receive_data(data, self._now())
        self.after_receive()

    def eof_received(self) -> bool:
        """Never keep a half-open connection: no AMQP version has a use for one."""
        if self._in_turn is None or self.cipher is not None:
            # The loop closes now, as it always does with TLS.
            return False
        self._in_turn(self._hang_up)
        return True

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self.engine.pause_writing()

    def resume_writing(self) -> None:
        if self._closing:
            return
        try:
            self.engine.resume_writing(self._now())
            self.after_receive()
        except Exception as error:  # noqa: BLE001 - see `connection_made`
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._disarm()
        if self._in_turn is None:
            self._lose(exc)
        else:
            self._in_turn(partial(self._lose, exc))

    def _lose(self, exc: Exception | None) -> None:
        try:
            if self._has_engine:
                self.engine.connection_lost(self._now())
                self.after_receive()
        except Exception as error:  # noqa: BLE001 - see `connection_made`
            self._fail(error)
        finally:
            if self._on_lost is not None:
                self._on_lost(self, exc)

    def _fail(self, error: Exception) -> None:
        """End the connection after a fault in its engine."""
        where = self.peer_address or "a peer that has gone"
        logger.error("an error ended the connection with %s: %r", where, error, exc_info=error)
        self.abort()

    def _arm(self, at: float) -> None:
        self._disarm()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - self._now()), self._fire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._transport is None or self._closing:
            return
        now = self._now()
        if now - self._timer_at > LATE_TIMER_S:
            # The loop is late, and runs timers before it reads sockets: input of a silent peer may be waiting
            # in the socket, so one round of reads goes first.
            self._arm(now + LATE_TIMER_S / 10)
            return
        try:
            at = self.engine.next_timeout()
            if at is not None and at <= now:
                self.engine.handle_timeout(now)
                self.after_receive()
            self.flush()
        except Exception as error:  # noqa: BLE001 - see `connection_made`
            self._fail(error)

    def _close(self) -> None:
        transport = self._transport
        if transport is None:
            return
        self._closing = True
        self._disarm()
        if self._reading_paused and not transport.is_closing():
            transport.resume_reading()
        if transport.can_write_eof():
            with contextlib.suppress(OSError, RuntimeError):  # The peer has closed first.
                transport.write_eof()
        else:
            transport.close()
        self._timer = self._loop.call_later(LINGER_S, transport.abort)

    def _extra(self, name: str) -> object:
        return None if self._transport is None else self._transport.get_extra_info(name)


def _format_address(address: object) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address or "")
