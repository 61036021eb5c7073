"""A WebSocket over a connection of the server: wsproto reads and writes frames.

The server pings, and closes a connection whose client does not answer. It stops reading while the client's messages
are not obeyed, or its pings cannot be answered, and a sender waits while the client does not read. Frames may be small,
so input is processed in pieces, in the turns of the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from waybill.backend.server.turns import Turns
from waybill.backend.sockets import GOING_AWAY, MOST_MESSAGE_BYTES, SocketClosed, Talk

PING_SECONDS: Final = 30.0
PONG_SECONDS: Final = 10.0
MOST_WAITING: Final = 16
"""While so many messages of a client wait, no more are read."""
PIECE_BYTES: Final = 2048
"""How much input is processed at a time: a frame may have 6 octets."""
PART_BYTES: Final = 16
"""How much a part of a message counts for in addition to its text."""
_TOO_LARGE: Final = 1009
_NO_TEXT: Final = 1003


_log = logging.getLogger("waybill.backend")


async def hold(socket: WebSocket, talk: Talk) -> None:
    """Serve a WebSocket until it ends."""
    try:
        await talk.run(socket)
    except Exception:  # noqa: BLE001 - the talk may raise anything
        _log.exception("a WebSocket failed")
    finally:
        socket.end(GOING_AWAY)


class WebSocket:
    """The server's side."""

    def __init__(
        self,
        transport: asyncio.Transport,
        writable: Callable[[], asyncio.Future[None] | None],
        turns: Turns,
        address: str,
    ) -> None:
        """`writable` returns a future to wait for while the client does not read."""
        self.address = address
        self._turns = turns
        self._input = bytearray()
        self._is_in_line = False
        self._frames = Connection(ConnectionType.SERVER)
        self._transport = transport
        self._writable = writable
        self._loop = asyncio.get_running_loop()
        self._messages: deque[str] = deque()
        self._arrived = asyncio.Event()
        self._parts: list[str] = []
        self._size = 0
        self._is_closed = False
        self._timer = self._loop.call_later(PING_SECONDS, self._ping)

    async def receive(self) -> str:
        """Return the next message. Raises SocketClosed."""
        while not self._messages:
            if self._is_closed:
                raise SocketClosed
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        self._proceed_soon()
        return message

    async def until_writable(self) -> None:
        """Return when the client reads. Raises SocketClosed."""
        while (waiting := self._writable()) is not None:
            await waiting
        if self._is_closed or self._transport.is_closing():
            raise SocketClosed

    async def send(self, text: str) -> None:
        """Send a message, when the client reads. Raises SocketClosed."""
        await self.until_writable()
        self._transport.write(self._frames.send(TextMessage(text)))

    async def close(self, code: int) -> None:
        """Close the connection."""
        self.end(code)

    def end(self, code: int) -> None:
        """Close the connection, and wake up who waits for messages."""
        self._timer.cancel()
        if not self._is_closed and not self._transport.is_closing():
            self._transport.write(self._frames.send(CloseConnection(code)))
            self._transport.close()
        self._is_closed = True
        self._arrived.set()

    def data_received(self, data: bytes) -> None:
        """Process received data, in later turns."""
        self._input += data
        self._transport.pause_reading()
        self._proceed_soon()

    def _proceed_soon(self) -> None:
        if not self._is_in_line and not self._is_closed:
            self._is_in_line = True
            self._turns.put_in_line(self)

    def proceed(self) -> None:
        """Process a piece of the input."""
        self._is_in_line = False
        if self._is_closed or self._transport.is_closing() or len(self._messages) >= MOST_WAITING:
            return
        waiting = self._writable()
        if waiting is not None:
            waiting.add_done_callback(lambda _: self._proceed_soon())
            return
        piece = bytes(self._input[:PIECE_BYTES])
        del self._input[:PIECE_BYTES]
        self._process(piece)
        if self._input:
            self._proceed_soon()
        elif not self._transport.is_closing() and not self._transport.is_reading():
            self._transport.resume_reading()

    def _process(self, data: bytes) -> None:
        self._frames.receive_data(data)
        for event in self._frames.events():
            match event:
                case TextMessage():
                    self._add(event.data, is_whole=event.message_finished)
                case BytesMessage():
                    self.end(_NO_TEXT)
                case Ping():
                    self._transport.write(self._frames.send(event.response()))
                case Pong():
                    self._wait_to_ping()
                case CloseConnection():
                    # Also for frames that break the protocol, with the code for that.
                    self.end(event.code)
            if self._is_closed:
                return

    def _add(self, text: str, *, is_whole: bool) -> None:
        self._parts.append(text)
        self._size += PART_BYTES + len(text.encode(errors="replace"))
        if self._size > MOST_MESSAGE_BYTES:
            self.end(_TOO_LARGE)
            return
        if not is_whole:
            return
        self._messages.append("".join(self._parts))
        self._parts.clear()
        self._size = 0
        self._arrived.set()

    def _wait_to_ping(self) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_later(PING_SECONDS, self._ping)

    def _ping(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._frames.send(Ping()))
        self._timer = self._loop.call_later(PONG_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._is_closed = True
        self._arrived.set()
        self._transport.abort()
