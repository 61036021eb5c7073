"""Accepts connections with TLS, so that no crowd of handshakes keeps others waiting.

    accept -> silent --first octets--> in line -> handshake, a few in each turn of the loop -> connection

The costly part of a handshake is the answer to the first octets: a millisecond. One that sends nothing, or does not go
on, is closed after a time; if there are too many of these, the oldest is closed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from waybill.backend.portions import Portions

HANDSHAKE_SECONDS: Final = 10.0
MOST_ACCEPTED: Final = 32
"""How many connections are accepted in one turn."""
MOST_BEGUN: Final = 4
"""How many handshakes begin in one turn."""
MOST_UNFINISHED: Final = 2000
"""How many connections may be without a complete handshake."""
RETRY_SECONDS: Final = 1.0

_log = logging.getLogger("waybill.backend")


class TlsListener:
    """Listens on a socket; `make_protocol` makes the protocol of each connection."""

    def __init__(
        self, listening: socket.socket, tls: ssl.SSLContext, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._listening = listening
        self._tls = tls
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._begun = Portions(MOST_BEGUN)
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        """Those from which nothing has arrived, the oldest first."""
        self._heard: dict[socket.socket, asyncio.Task[None] | None] = {}
        """Those that wait for their handshake, and the tasks of those that are in it, the oldest first."""
        self._retry: asyncio.TimerHandle | None = None

    def start(self, backlog: int) -> None:
        """Accept connections. Raises OSError."""
        self._listening.setblocking(False)  # noqa: FBT003 - the name of the standard library
        self._listening.listen(backlog)
        self._resume()

    def close(self) -> None:
        """Accept no more connections, and close those without a complete handshake."""
        self._loop.remove_reader(self._listening)
        if self._retry is not None:
            self._retry.cancel()
        self._listening.close()
        for connection in [*self._silent, *self._heard]:
            self._cut(connection)

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(MOST_ACCEPTED):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # There may be no descriptor left. The socket stays readable, so do not try again at once.
                _log.warning("cannot accept connections: %s; trying again in %g s", error, RETRY_SECONDS)
                self._loop.remove_reader(self._listening)
                self._retry = self._loop.call_later(RETRY_SECONDS, self._resume)
                return
            connection.setblocking(False)  # noqa: FBT003 - the name of the standard library
            self._silent[connection] = self._loop.call_later(HANDSHAKE_SECONDS, self._cut, connection)
            self._loop.add_reader(connection, self._hear, connection)
            if len(self._silent) + len(self._heard) > MOST_UNFINISHED:
                self._cut(next(iter(self._silent if len(self._silent) > 1 else self._heard)))

    def _hear(self, connection: socket.socket) -> None:
        """The first octets have arrived."""
        self._loop.remove_reader(connection)
        self._silent.pop(connection).cancel()
        self._heard[connection] = None
        self._begun.add(partial(self._begin, connection))

    def _begin(self, connection: socket.socket) -> None:
        if connection in self._heard:
            self._heard[connection] = self._loop.create_task(self._connect(connection))

    async def _connect(self, connection: socket.socket) -> None:
        """Do the handshake. The loop closes the socket of one that fails."""
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:
            _log.debug("a TLS handshake failed: %s", error)
        finally:
            self._heard.pop(connection, None)

    def _cut(self, connection: socket.socket) -> None:
        """Close a connection without a complete handshake."""
        timer = self._silent.pop(connection, None)
        if timer is not None:
            timer.cancel()
            self._loop.remove_reader(connection)
            connection.close()
            return
        if self._heard.pop(connection, None) is None:
            connection.close()
            return
        # Cancelling an unfinished handshake may leave the socket open. An end of input ends it in order.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
