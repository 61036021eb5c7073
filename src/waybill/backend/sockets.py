"""WebSockets, independent of the server: an ASGI server has its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

MOST_MESSAGE_BYTES: Final = 64 * 1024
"""The size of a message from a client."""
GOING_AWAY: Final = 1001


class SocketClosed(Exception):
    """The client has closed the connection."""


class Socket(Protocol):
    """One connection."""

    async def receive(self) -> str:
        """Return the next message. Raises SocketClosed."""

    async def until_writable(self) -> None:
        """Return when the client reads. Raises SocketClosed."""

    async def send(self, text: str) -> None:
        """Send a message, when the client reads. Raises SocketClosed."""

    async def close(self, code: int) -> None:
        """Close the connection."""


class Talk:
    """What a server does with a connection that it accepts, and the headers of its answer."""

    def __init__(self, run: Callable[[Socket], Awaitable[None]], headers: list[tuple[str, str]]) -> None:
        self.run = run
        self.headers = headers
