"""Accepts connections. Each has a pump, and a place from the moment it is accepted.

    accept -> a place --plain--> pump
                      --TLS----> first octets arrive -> handshake, in time -> pump

A socket costs a descriptor before its peer has sent anything, so `Admission` counts it when it is accepted. When all
places are taken, the oldest connection that has not logged in is cut, and no other is accepted until a place is free:
new ones wait in the kernel's backlog. So descriptors are left for the store, and idle connections keep no client out.

The costly part of a TLS handshake is our answer to the first octets. A few are answered in each round of the loop, so
that many handshakes at once do not delay other connections for long.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from waybill.transport.pump import Pump
from waybill.transport.ranges import PORTS, check_whole

BACKLOG: Final = 1024
ACCEPT_BATCH: Final = 32
HANDSHAKE_BATCH: Final = 8
"""The maximum number of TLS handshakes that start in one round of the loop; each takes one or two milliseconds."""
HANDSHAKES_MAX: Final = 1000
"""The maximum number of unfinished TLS handshakes, which take 60 KB each. Beyond it, the oldest is cut."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 1.0
SAY_EVERY_S: Final = 10.0

logger: Final = logging.getLogger("waybill.broker")


class Visitor:
    """An accepted socket, and its pump once there is one."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pump: Pump[Any] | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.leave: Callable[[], None] | None = None

    def cut(self) -> None:
        """Close the connection in any state."""
        if self.task is not None:
            # Cancelling an unfinished handshake may leave the socket open. An end of input ends it in order.
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        elif self.pump is not None:
            self.pump.abort()
        elif self.leave is not None:
            self.leave()


class Admission:
    """The places of a broker's listeners. `is_settled(pump)`: it has logged in, and is never cut for others.

    Those who enter `within` another admission need a place in both. `limit` says in the log what limits the places.
    """

    def __init__(
        self, places: int, is_settled: Callable[[Pump[Any]], bool], limit: str, within: "Admission | None" = None
    ) -> None:
        self.places = places
        self._is_settled = is_settled
        self._limit = limit
        self._within = within
        self._visitors: dict[Visitor, None] = {}
        self._by_pump: dict[Pump[Any], Visitor] = {}
        self._newcomers: dict[Visitor, None] = {}
        self._waiting: list[Callable[[], None]] = []
        self._said_at = -SAY_EVERY_S

    def change_places(self, places: int) -> None:
        """Change the maximum number of sockets. Open ones are kept."""
        self.places = places
        if self.has_room():
            self._call_waiting()

    @property
    def count(self) -> int:
        """How many sockets are open."""
        return len(self._visitors)

    def has_room(self) -> bool:
        return len(self._visitors) < self.places and (self._within is None or self._within.has_room())

    def enter(self, visitor: Visitor) -> None:
        if self._within is not None:
            self._within.enter(visitor)
        self._visitors[visitor] = None
        self._newcomers[visitor] = None

    def pumped(self, visitor: Visitor, pump: Pump[Any]) -> None:
        """A visitor has a pump now: `pump_lost` will free its place."""
        visitor.pump = pump
        self._by_pump[pump] = visitor

    def pump_lost(self, pump: Pump[Any]) -> None:
        visitor = self._by_pump.get(pump)
        if visitor is not None:
            self.leave(visitor)

    def leave(self, visitor: Visitor) -> None:
        """Free the place of a socket that is closed. A second call does nothing."""
        if visitor not in self._visitors:
            return
        del self._visitors[visitor]
        self._newcomers.pop(visitor, None)
        if visitor.pump is not None:
            self._by_pump.pop(visitor.pump, None)
        if self._within is not None:
            self._within.leave(visitor)
        self._call_waiting()

    def _call_waiting(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for resume in waiting:
            resume()

    async def emptied(self) -> None:
        """Return when no socket is open."""
        while self._visitors:
            left = asyncio.Event()
            self._waiting.append(left.set)
            await left.wait()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` when there may be room. Cuts the oldest connection that has not logged in."""
        if self._within is not None and len(self._visitors) < self.places:
            self._within.wait(resume)
            return
        self._waiting.append(resume)
        now = asyncio.get_running_loop().time()
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            logger.warning(
                "%d connections are open, the maximum (%s): closing those that have not logged in",
                len(self._visitors),
                self._limit,
            )
        while self._newcomers:
            oldest = next(iter(self._newcomers))
            del self._newcomers[oldest]
            if oldest.pump is None or not self._is_settled(oldest.pump):
                oldest.cut()
                return


class Listener:
    """Listens on `host`:`port` (0: a free one), with TLS if a context is given.

    `pump_factory` makes the protocol of each connection; its owner must tell `admission` when a pump is lost. A TLS
    handshake has `handshake_timeout_s` seconds. Raises OSError from `start` if the address cannot be bound.
    """

    def __init__(
        self,
        pump_factory: Callable[[], Pump[Any]],
        host: str,
        port: int,
        admission: Admission,
        tls: ssl.SSLContext | None = None,
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        check_whole("port", port, *PORTS)
        self._pump_factory = pump_factory
        self._host = host
        self._port = port
        self._tls = tls
        self._admission = admission
        self._handshake_timeout_s = handshake_timeout_s
        self._sockets: list[socket.socket] = []
        self._silent: dict[Visitor, None] = {}
        self._heard: deque[Visitor] = deque()
        self._begins_soon = False
        self._beginning: dict[Visitor, None] = {}
        self._is_listening = False
        self._retry: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The bound port, once started."""
        if self._sockets:
            port: int = self._sockets[0].getsockname()[1]
            return port
        return self._port

    @property
    def host(self) -> str:
        return self._host

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            found = await self._loop.getaddrinfo(
                self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(_listening(family, kind, protocol, address))
        except OSError as error:
            self.close()
            raise OSError(error.errno, f"{self._host}:{self._port}: {error.strerror}") from error
        self._resume()

    def close(self) -> None:
        """Accept no more connections. Those that have a pump continue; the others are closed."""
        self._port = self.port
        self._pause()
        if self._retry is not None:
            self._retry.cancel()
        for listening in self._sockets:
            listening.close()
        self._sockets = []
        for visitor in [*self._silent, *self._heard, *self._beginning]:
            visitor.cut()

    # --- accepting ---

    def _resume(self) -> None:
        if not self._is_listening:
            self._is_listening = True
            for listening in self._sockets:
                self._loop.add_reader(listening, self._accept, listening)

    def _pause(self) -> None:
        if self._is_listening:
            self._is_listening = False
            for listening in self._sockets:
                self._loop.remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept some of the waiting connections; the loop calls again if there are more."""
        if not self._admission.has_room():
            self._pause()
            self._admission.wait(self._resume)
            return
        for _ in range(ACCEPT_BATCH):
            if not self._admission.has_room():
                # If there are more connections, the loop calls again.
                return
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptor, a firewall, a network that is down: try again later, and tell the operator each time.
                # The socket stays readable, so trying again at once would be a busy loop.
                logger.warning("cannot accept connections: %s; trying again in %g s", error, RETRY_S)
                self._pause()
                self._retry = self._loop.call_later(RETRY_S, self._resume)
                return
            connection.setblocking(False)  # noqa: FBT003 - the name of the standard library
            self._welcome(connection)

    def _welcome(self, connection: socket.socket) -> None:
        visitor = Visitor(connection)
        self._admission.enter(visitor)
        if self._tls is None:
            self._begin(visitor)
            return
        self._silent[visitor] = None
        visitor.leave = partial(self._turn_away, visitor)
        visitor.timer = self._loop.call_later(self._handshake_timeout_s, self._turn_away, visitor)
        self._loop.add_reader(connection, self._hear, visitor)

    # --- TLS ---

    def _hear(self, visitor: Visitor) -> None:
        """The first octets have arrived."""
        self._loop.remove_reader(visitor.connection)
        del self._silent[visitor]
        self._heard.append(visitor)
        self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._begins_soon:
            self._begins_soon = True
            self._loop.call_soon(self._begin_some)

    def _begin_some(self) -> None:
        self._begins_soon = False
        try:
            for _ in range(min(HANDSHAKE_BATCH, len(self._heard))):
                visitor = self._heard.popleft()
                if visitor.timer is not None:
                    visitor.timer.cancel()
                visitor.leave = None
                if len(self._beginning) >= HANDSHAKES_MAX:
                    oldest = next(iter(self._beginning))
                    del self._beginning[oldest]
                    oldest.cut()
                self._begin(visitor)
        finally:
            if self._heard:
                self._begin_soon()

    def _turn_away(self, visitor: Visitor) -> None:
        """Close a connection that sent nothing in time, or whose place is needed."""
        if visitor.timer is not None:
            visitor.timer.cancel()
        if visitor in self._silent:
            self._loop.remove_reader(visitor.connection)
            del self._silent[visitor]
        elif visitor in self._heard:
            self._heard.remove(visitor)
        else:
            return
        visitor.connection.close()
        self._admission.leave(visitor)

    # --- the pump ---

    def _begin(self, visitor: Visitor) -> None:
        self._beginning[visitor] = None
        visitor.task = self._loop.create_task(self._connect(visitor))

    async def _connect(self, visitor: Visitor) -> None:
        """Give the socket to a pump. The loop closes the socket of a handshake that fails."""
        try:
            pump = self._pump_factory()
            self._admission.pumped(visitor, pump)
            await self._loop.connect_accepted_socket(
                lambda: pump.protocol,
                visitor.connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._handshake_timeout_s,
            )
        except (OSError, asyncio.CancelledError) as error:
            logger.debug("a connection failed in its handshake: %s", error)
            # The loop closes the socket in its next round.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            self._admission.leave(visitor)
        except Exception as error:
            logger.exception("an error ended a new connection: %r", error)  # noqa: TRY401
            visitor.connection.close()
            self._admission.leave(visitor)
        finally:
            visitor.task = None
            self._beginning.pop(visitor, None)


def _listening(family: int, kind: int, protocol: int, address: Any) -> socket.socket:  # noqa: ANN401 - as getaddrinfo has it
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setblocking(False)  # noqa: FBT003 - the name of the standard library
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
