"""Shared by the connections of one server: the application, the limits, the time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, Protocol

from waybill.backend.message import Request, Response
from waybill.backend.server.limits import Limits


class Answering(Protocol):
    """An application."""

    def begin(self, request: Request) -> Response | asyncio.Future[Response]:
        """Return the answer to a request, or a future from which `conclude` makes the answer."""

    def conclude(self, request: Request, answer: asyncio.Future[Response], /) -> Response:
        """Return the answer from a finished future of `begin`. Raises CancelledError."""

    def refuse(self, request: Request, code: str, message: str, /) -> Response:
        """Return the answer to a request that the server could not read."""


class Looked(Protocol):
    """A connection that is checked regularly."""

    def look(self, now: float) -> None:
        """Close it if something takes too long."""

    def shut_down(self) -> None:
        """Close after the current answer."""

    def abort(self) -> None:
        """Close immediately."""


class Connections:
    """The connections of one server."""

    def __init__(self, application: Answering, waiting_paths: Collection[str], limits: Limits) -> None:
        """If a client disconnects during a request to one of `waiting_paths`, the request is cancelled."""
        self.application = application
        self.limits = limits
        self.now = asyncio.get_running_loop().time()
        """The time of the last check, by the clock of the loop."""
        self.is_closing = False
        self.is_empty = asyncio.Event()
        self.is_empty.set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._waiting_paths = frozenset(waiting_paths)
        self._connections: set[Looked] = set()
        self._reserved = 0

    def __len__(self) -> int:
        """The number of connections."""
        return len(self._connections)

    def all(self) -> list[Looked]:
        """Return the current connections."""
        return list(self._connections)

    def join(self, connection: Looked) -> bool:
        """Add a connection; False if there are too many."""
        self._connections.add(connection)
        self.is_empty.clear()
        return len(self._connections) <= self.limits.connections

    def leave(self, connection: Looked) -> None:
        """Remove a connection."""
        self._connections.discard(connection)
        if not self._connections:
            self.is_empty.set()

    def look(self, now: float) -> None:
        """Check all connections for timeouts."""
        self.now = now
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

    def is_waiting(self, path: str) -> bool:
        """Whether a request only waits, so that it is cancelled if its client disconnects."""
        return path in self._waiting_paths

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a background task."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task
