"""A connection over AMQP 1.0: Qpid Proton's engine behind an asyncio transport.

Proton is an extra (`waybill-amqp[amqp10]`); this module is only imported when AMQP 1.0 is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Final, cast
from uuid import uuid4

from proton import SASL, Collector, Condition, Event, ProtonException, Session, Transport
from proton import Connection as Engine

from waybill.client import AuthenticationFailed, ConnectFailed, ConnectionLost, RequestTimeout
from waybill.client.uri import BrokerAddress, parse_uri
from waybill.move.errors import MoveFailed

CLOSE_SECONDS: Final = 5.0
UNAUTHORIZED: Final = "amqp:unauthorized-access"


class Amqp10Connection(asyncio.Protocol):
    """Made by `connect10`. Methods raise ConnectionLost once it has ended, MoveFailed if the peer ended the session."""

    def __init__(self, address: BrokerAddress) -> None:
        """Prepare the engine. Nothing is sent before the transport is connected."""
        self.address = address
        settings = address.settings
        self._engine = Engine()
        self._engine.container = f"{settings.name}-{uuid4().hex}"
        virtual_host = settings.virtual_host
        self._engine.hostname = address.host if virtual_host == "/" else f"vhost:{virtual_host}"
        self._engine.user, self._engine.password = settings.user, settings.password
        self._collector = Collector()
        self._engine.collect(self._collector)
        self._protocol = Transport()
        self._protocol.idle_timeout = float(settings.heartbeat_s)
        sasl = self._protocol.sasl()
        # The transport does TLS; Proton does not see it.
        sasl.allow_insecure_mechs = True
        sasl.allowed_mechs(settings.mechanism)
        self._protocol.bind(self._engine)
        self._engine.open()
        self._session = self._engine.session()
        self._session.open()
        self.check_input: Callable[[], None] = _accept_all
        """Called after each portion of input. Raises MoveFailed to end the connection."""
        self._socket: asyncio.Transport | None = None
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def session(self) -> Session:
        """Proton's session, for links."""
        return self._session

    @property
    def is_open(self) -> bool:
        """Whether the peer has opened the connection, and nothing has ended it."""
        return self._error is None and bool(self._engine.state & Engine.REMOTE_ACTIVE)

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the header."""
        self._socket = cast("asyncio.Transport", transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        """Pass input to the engine, as much at a time as it accepts."""
        try:
            while data:
                capacity = self._protocol.capacity()
                if capacity <= 0:
                    break
                self._protocol.push(data[:capacity])
                data = data[capacity:]
                self._take_events()
                self.check_input()
        except ProtonException as error:
            self._end(ConnectionLost(f"{self.address}: {error}"))
        except MoveFailed as error:
            self._end(error)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """Wake all waiters."""
        if self._protocol.sasl().outcome == SASL.AUTH:
            user = self.address.settings.user
            self._end(AuthenticationFailed(f"{self.address}: the broker refuses the login of {user}"))
        self._end(ConnectionLost(f"{self.address}: {error or 'the broker has closed the socket'}"))

    # --- for the ends of a shovel ---

    def flush(self) -> None:
        """Write the engine's output."""
        socket = self._socket
        if socket is None or socket.is_closing():
            return
        with suppress(ProtonException):
            while (pending := self._protocol.pending()) > 0:
                octets = self._protocol.peek(pending)
                if not octets:
                    break
                socket.write(octets)
                self._protocol.pop(len(octets))
        self._tick()

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Write, and wait until something holds. Raises ConnectionLost; RequestTimeout, which says `what` failed."""
        seconds = self.address.request_timeout_s
        self.flush()
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    if self._error is not None:
                        raise self._error
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise RequestTimeout(f"{self.address}: {what} within {seconds:g} s") from None

    async def close(self) -> None:
        """Close the connection; abort it if that fails."""
        self._engine.close()
        with suppress(ConnectFailed, ConnectionLost, MoveFailed, RequestTimeout, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.until(lambda: bool(self._engine.state & Engine.REMOTE_CLOSED), "did not close")
        self._end(ConnectionLost(f"{self.address}: closed"))
        if self._socket is not None:
            # A peer that does not read would keep it open.
            self._socket.abort()

    # --- internals ---

    def _take_events(self) -> None:
        while (event := self._collector.peek()) is not None:
            if event.type == Event.TRANSPORT_ERROR:
                self._end(self._refusal(self._protocol.condition))
            elif event.type == Event.CONNECTION_REMOTE_CLOSE and not self._engine.state & Engine.LOCAL_CLOSED:
                self._end(self._refusal(self._engine.remote_condition))
            elif event.type == Event.SESSION_REMOTE_CLOSE and not self._session.state & Engine.LOCAL_CLOSED:
                text = condition_text(self._session.remote_condition) or "it gives no reason"
                self._end(MoveFailed(f"{self.address}: the broker has ended the session: {text}"))
            self._collector.pop()
        self._changed.set()

    def _refusal(self, condition: Condition | None) -> Exception:
        """Return the error for the end of the connection, from the peer or the engine."""
        text = f"{self.address}: {condition_text(condition) or 'the broker has closed the connection'}"
        if condition is not None and condition.name == UNAUTHORIZED:
            return AuthenticationFailed(text)
        return ConnectionLost(text)

    def _tick(self) -> None:
        """Let the engine send heartbeats and detect missing ones."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._error is not None:
            return
        now = monotonic()
        deadline = self._protocol.tick(now)
        if deadline:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - now), self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._tick()
        self._take_events()
        self.flush()

    def _end(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            self._socket.close()
        self._changed.set()


@asynccontextmanager
async def connect10(uri: str, *, name: str) -> AsyncIterator[Amqp10Connection]:
    """Connect to the first node that answers; close after the block. Raises ConnectFailed."""
    connection = await _dial_one(parse_uri(uri, name=name).nodes)
    try:
        yield connection
    finally:
        await connection.close()


async def _dial_one(nodes: Sequence[BrokerAddress]) -> Amqp10Connection:
    for address in nodes[:-1]:
        with suppress(ConnectFailed):
            return await _dial(address)
    return await _dial(nodes[-1])


async def _dial(address: BrokerAddress) -> Amqp10Connection:
    made = Amqp10Connection(address)
    try:
        async with asyncio.timeout(address.connect_timeout_s):
            await asyncio.get_running_loop().create_connection(
                lambda: made, address.host, address.port, ssl=address.tls_context()
            )
            await made.until(lambda: made.is_open, "no answer")
    except AuthenticationFailed:
        raise
    except (TimeoutError, RequestTimeout):
        await made.close()
        raise ConnectFailed(f"{address}: no answer within {address.connect_timeout_s:g} s") from None
    except (OSError, ValueError, ConnectionLost) as error:
        await made.close()
        text = str(error)
        raise ConnectFailed(text if text.startswith(str(address)) else f"{address}: {text}") from error
    except BaseException:
        await made.close()
        raise
    return made


def _accept_all() -> None:
    """Accept all input."""


def condition_text(condition: Condition | None) -> str:
    """Return the text of a peer's error, empty if there is none."""
    return "" if condition is None else ": ".join(part for part in (condition.name, condition.description) if part)
