"""Shared by the connections of one server: the application, the limits, the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from waybill.backend.message import Request, Response
from waybill.backend.peer import address_of
from waybill.backend.server.answers import encode_switch
from waybill.backend.server.head import BadRequest, Head
from waybill.backend.server.limits import STREAM_BUFFER_BYTES, Limits
from waybill.backend.server.requests import known_head
from waybill.backend.server.turns import Turns
from waybill.backend.shortcut import MAX_SHORTCUT_BYTES, Asker, Take
from waybill.backend.streams import close_stream

if TYPE_CHECKING:
    from waybill.backend.server.web_socket import WebSocket

Writable = Callable[[], "asyncio.Future[None] | None"]
"""Returns a future to wait for while a client does not read."""
MAX_SHORTCUTS: Final = 500
UNREAD_STEPS: Final = 16
"""The unread output is added up again when the number of such connections has grown by this fraction (1/n)."""
UNREAD_SHARE: Final = 8
"""Or when they have this share (1/n) of the limit more to read."""


class Answering(Protocol):
    """An application."""

    def begin(self, request: Request) -> Response | asyncio.Future[Response]:
        """Return the answer to a request, or a future from which `conclude` makes the answer."""

    def conclude(self, request: Request, answer: asyncio.Future[Response], /) -> Response:
        """Return the answer from a finished future of `begin` or of a shortcut. Raises CancelledError."""

    def shortcut(self, request: Request, /) -> Take | None:
        """Return the shortcut for requests with the head of this one, which has no body; None if there is none."""

    def refuse(
        self, request: Request, code: str, message: str, details: dict[str, object] | None = None, /
    ) -> Response:
        """Return the answer to a request that the server could not read."""


class Shortcut(NamedTuple):
    """Answers requests with the same head and a body of the same length."""

    length: int
    head: Head | None
    take: Take


def _refuse_to_take(_body: bytes, _asker: Asker) -> bool:
    return False


NO_SHORTCUT: Final = Shortcut(-1, None, _refuse_to_take)


class Looked(Protocol):
    """A connection that is checked regularly."""

    def look(self, now: float) -> None:
        """Close it if something takes too long."""

    def shut_down(self) -> None:
        """Close after the current answer."""

    def abort(self) -> None:
        """Close immediately."""

    def unread_bytes(self) -> int:
        """Return the size of the answers that the client has not read."""

    def give_up(self) -> None:
        """Close immediately; a request in progress is completed."""


class Connections:
    """The connections of one server."""

    def __init__(self, application: Answering, waiting_paths: Collection[str], limits: Limits) -> None:
        """If a client disconnects during a request to one of `waiting_paths`, the request is cancelled."""
        self._application = application
        self.shortcuts: dict[bytes, Shortcut] = {}
        """By head. `find_shortcut` adds those of heads that were seen before."""
        self.limits = limits
        self.now = asyncio.get_running_loop().time()
        """The time of the last check, by the clock of the loop."""
        self.is_closing = False
        self.is_empty = asyncio.Event()
        self.is_empty.set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.Task[None]] = set()
        self._waiting_paths = frozenset(waiting_paths)
        self._connections: set[Looked] = set()
        self._reserved = 0
        self._loop = asyncio.get_running_loop()
        self.turns = Turns(limits.turn)
        self._unread: dict[Looked, None] = {}
        """Connections whose clients do not read, the one that has waited longest first."""
        self._stops = 0
        """The number of such connections since their sizes were last added up."""
        self._stopped_bytes = 0
        """The unread output of these."""
        self.was_behind = False
        """Whether clients had much to read at the last check: see `is_behind`."""

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def application(self) -> Answering:
        """The application, which may be replaced."""
        return self._application

    @application.setter
    def application(self, application: Answering) -> None:
        self._application = application
        self.shortcuts.clear()

    def find_shortcut(self, raw: bytes) -> Shortcut:
        """Return the shortcut for a head, NO_SHORTCUT if there is none."""
        head = known_head(raw)
        if head is None:
            return NO_SHORTCUT
        take = None
        if not head.query and 0 < head.length <= MAX_SHORTCUT_BYTES:
            request = Request(head.method, head.path, {}, head.headers, target=head.target)
            take = self._application.shortcut(request)
        found = NO_SHORTCUT if take is None else Shortcut(head.length, head, take)
        if len(self.shortcuts) >= MAX_SHORTCUTS:
            self.shortcuts.clear()
        self.shortcuts[raw] = found
        return found

    def all(self) -> list[Looked]:
        """Return the current connections."""
        return list(self._connections)

    def join(self, connection: Looked) -> BadRequest | None:
        """Add a connection. Returns why its requests are refused if there are too many."""
        self._connections.add(connection)
        self.is_empty.clear()
        if len(self._connections) <= self.limits.connections:
            return None
        return BadRequest("overloaded", "The server has too many connections.")

    @property
    def is_crowded(self) -> bool:
        """Whether so many clients are being refused that further ones are closed without an answer."""
        return len(self._connections) > self.limits.connections + self.limits.refused

    def leave(self, connection: Looked) -> None:
        """Remove a connection."""
        self._connections.discard(connection)
        self._unread.pop(connection, None)
        if not self._connections:
            self.is_empty.set()

    def look(self, now: float) -> None:
        """Check all connections for timeouts."""
        self.now = now
        self.was_behind = self.is_behind()
        for connection in self.all():
            connection.look(now)

    def reserve(self, size: int) -> bool:
        """Reserve memory for octets of a body; False if there is none."""
        if self._reserved + size > self.limits.body_bytes:
            return False
        self._reserved += size
        return True

    def release(self, size: int) -> None:
        """Release reserved memory."""
        self._reserved -= size

    def stops_reading(self, connection: Looked) -> None:
        """Note that a client does not read. If too much is unread, those that have waited longest are closed."""
        self._unread[connection] = None
        self._stops += 1
        self._stopped_bytes += connection.unread_bytes()
        is_many = self._stops * UNREAD_STEPS >= len(self._unread)
        if not is_many and self._stopped_bytes * UNREAD_SHARE < self.limits.unread_bytes:
            return
        self._stops = self._stopped_bytes = 0
        size = self.unread_bytes()
        for one in list(self._unread):
            if size <= self.limits.unread_bytes:
                break
            size -= one.unread_bytes()
            del self._unread[one]
            self._loop.call_soon(one.give_up)

    def unread_bytes(self) -> int:
        """Return the size of all answers that clients have not read."""
        return sum(one.unread_bytes() for one in self._unread)

    def is_behind(self) -> bool:
        """Whether clients have so much to read that a further large answer waits a moment."""
        return self.unread_bytes() > self.limits.crowded_bytes

    def reads_again(self, connection: Looked) -> None:
        """Note that a client reads."""
        self._unread.pop(connection, None)

    def is_waiting(self, path: str) -> bool:
        """Whether a request only waits, so that it is cancelled if its client disconnects."""
        return path in self._waiting_paths

    def spawn_stream(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a background task that sends a stream; see `is_full_of_streams`."""
        task = self.spawn(work)
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        return task

    def refuse_stream(self, head: Head, stream: AsyncIterator[bytes], peer: str) -> Response:
        """Return the answer instead of one more stream."""
        self.spawn(close_stream(stream))
        request = Request(head.method, head.path, {}, head.headers, peer=peer)
        return self._application.refuse(
            request, "overloaded", f"The server sends {len(self._streams)} streams already."
        )

    def drop(self, response: Response) -> None:
        """Release an answer whose client has disconnected."""
        if response.stream is not None:
            self.spawn(close_stream(response.stream))
        if response.unheard is not None:
            response.unheard()

    def open_socket(
        self, head: Head, response: Response, transport: asyncio.Transport, writable: Writable, peer: str
    ) -> tuple[WebSocket, asyncio.Task[None]] | Response:
        """Change a connection to WebSocket: return it and its task, or an error as the answer."""
        request = Request(head.method, head.path, {}, head.headers, peer=peer)
        if self.is_full_of_streams or response.talk is None:
            return self._application.refuse(request, "overloaded", "The server sends many streams already.")
        try:
            from waybill.backend.server.web_socket import WebSocket, hold  # noqa: PLC0415 - it needs an extra
        except ImportError:
            text = "WebSockets need the extra http: pip install 'waybill-amqp[http]'."
            return self._application.refuse(request, "not_implemented", text)
        transport.set_write_buffer_limits(high=STREAM_BUFFER_BYTES)
        transport.write(encode_switch(response))
        socket = WebSocket(transport, writable, self.turns, address_of(peer))
        return socket, self.spawn_stream(hold(socket, response.talk))

    @property
    def is_full_of_streams(self) -> bool:
        """Whether there are as many streams as there may be."""
        return len(self._streams) >= self.limits.streams

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a background task."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task
