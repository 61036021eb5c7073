"""Server-sent events (W3C), each with an id, and a heartbeat while nothing happens.

A listener that reads too slowly loses the oldest events, and is told how many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from waybill.backend.job_form import Form
from waybill.ojs.spec.events import ReceivedEvent

HEARTBEAT_SECONDS: Final = 15.0
HEARTBEAT: Final = b":heartbeat\n\n"
RETRY_MS: Final = 3000
MOST_WAITING: Final = 1000
MEDIA_TYPE: Final = "text/event-stream"

Wanted = Callable[[ReceivedEvent], bool]
Pieces = Callable[[ReceivedEvent], tuple[bytes, bool]]
"""Converts an event to the text to send, and returns whether it is the last."""


class Over(Exception):
    """The server shuts down."""


class Listener:
    """The unread events of one listener."""

    def __init__(self, wanted: Wanted) -> None:
        """`wanted` selects events."""
        self._wanted = wanted
        self._waiting: deque[ReceivedEvent] = deque()
        self._arrived = asyncio.Event()
        self._has_ended = False
        self.dropped_count = 0

    def take(self, event: ReceivedEvent) -> None:
        """Add an event."""
        if not self._wanted(event):
            return
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self.dropped_count += 1
        self._waiting.append(event)
        self._arrived.set()

    def end(self) -> None:
        """End the stream: the server shuts down."""
        self._has_ended = True
        self._arrived.set()

    async def next(self, timeout_seconds: float = HEARTBEAT_SECONDS) -> ReceivedEvent | None:
        """Return the next event, None after the timeout. Raises Over at the end."""
        if not self._waiting:
            if self._has_ended:
                raise Over
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        if not self._waiting:
            raise Over
        return self._waiting.popleft()


class Listeners:
    """All listeners of this server."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._has_ended = False

    def __len__(self) -> int:
        return len(self._listeners)

    @property
    def has_ended(self) -> bool:
        """Whether the server shuts down."""
        return self._has_ended

    @contextmanager
    def listening(self, wanted: Wanted) -> Iterator[Listener]:
        """Yield a new listener, and remove it after the block."""
        listener = Listener(wanted)
        self._listeners.add(listener)
        if self._has_ended:
            listener.end()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def tell(self, events: list[ReceivedEvent]) -> None:
        """Pass events to the listeners that want them."""
        for event in events:
            for listener in self._listeners:
                listener.take(event)

    def end(self) -> None:
        """End all streams."""
        self._has_ended = True
        for listener in self._listeners:
            listener.end()


def sent(name: str, data: Form, event_id: str = "") -> bytes:
    """Return one event in its text form. Names and ids must not have line breaks."""
    name = name if name.isprintable() else "unknown"
    head = f"id: {event_id}\n" if event_id and event_id.isprintable() else ""
    return f"{head}event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def begin() -> bytes:
    """Return the beginning of a stream."""
    return f"retry: {RETRY_MS}\n\n".encode()


async def follow(listener: Listener, pieces: Pieces) -> AsyncIterator[bytes]:
    """Yield the text that `pieces` makes of each event, until the last one or the server's shutdown."""
    while True:
        try:
            event = await listener.next()
        except Over:
            yield sent("server.shutdown", {"grace_period_ms": 0})
            return
        if listener.dropped_count:
            yield sent("system.events_dropped", {"dropped_count": listener.dropped_count})
            listener.dropped_count = 0
        if event is None:
            yield HEARTBEAT
            continue
        piece, is_last = pieces(event)
        if piece:
            yield piece
        if is_last:
            return
