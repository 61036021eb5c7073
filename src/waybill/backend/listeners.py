"""Those who wait for events: streams, and requests that wait for the end of a job.

There may be thousands, and each event concerns many of them. So each turn of the event loop tells the news to a few.
All share the last events. One that reads too slowly loses the oldest, and is told how many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from waybill.backend.portions import Portions
from waybill.ojs.spec.events import ReceivedEvent

HEARTBEAT_SECONDS: Final = 15.0
MOST_SHARED: Final = 5000
MOST_SHARED_BYTES: Final = 4 * 1024 * 1024
"""How many of the last events are kept for listeners, and their size in JSON."""
MOST_TOLD: Final = 20
"""How many listeners a turn tells. What this costs shows later in the turn, when they send."""

Wanted = Callable[[ReceivedEvent], bool]


class Over(Exception):
    """The server shuts down."""


class LastEvents:
    """The last events by number. The first event of a server has the number 0."""

    def __init__(self) -> None:
        self.first = 0
        """The number of the oldest event."""
        self.end = 0
        """The number of the next event."""
        self._events: dict[int, tuple[ReceivedEvent, int]] = {}
        self._size = 0

    def get(self, number: int) -> ReceivedEvent | None:
        """Return an event, None if it is no longer kept."""
        found = self._events.get(number)
        return None if found is None else found[0]

    def add(self, event: ReceivedEvent, size: int) -> None:
        """Add an event of about `size` octets."""
        self._events[self.end] = event, size
        self.end += 1
        self._size += size
        while len(self._events) > MOST_SHARED or (self._size > MOST_SHARED_BYTES and len(self._events) > 1):
            self._size -= self._events.pop(self.first)[1]
            self.first += 1


class Listener:
    """One listener. It has a position among the last events, so that its unread events need no memory of their own."""

    def __init__(self, wanted: Wanted, events: LastEvents) -> None:
        """`wanted` selects events, of those that are added to `events` from now on."""
        self._wanted = wanted
        self._events = events
        self._next = self._told = events.end
        """The number of the next event to read, and of the first that it has not been told."""
        self._arrived = asyncio.Event()
        self._has_ended = False
        self.dropped_count = 0
        """How many events were lost before anybody has looked whether they are wanted."""

    def take_until(self, end: int) -> None:
        """Tell the events up to a number, without it."""
        events, is_behind = self._events, self._next < self._told
        numbers = range(max(self._told, events.first), end)
        self._told = end
        if is_behind or any((event := events.get(number)) and self._wanted(event) for number in numbers):
            self._arrived.set()
        elif self._next >= events.first:
            self._next = end

    def end(self) -> None:
        """End the stream: the server shuts down."""
        self._has_ended = True
        self._arrived.set()

    async def next(self, timeout_seconds: float = HEARTBEAT_SECONDS) -> ReceivedEvent | None:
        """Return the next event, None after the timeout. Raises Over at the end."""
        while (event := self._take()) is None:
            if self._has_ended:
                raise Over
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        return event

    def _take(self) -> ReceivedEvent | None:
        events = self._events
        if self._next < events.first:
            self.dropped_count += events.first - self._next
            self._next = events.first
        while self._next < self._told:
            event = events.get(self._next)
            self._next += 1
            if event is not None and self._wanted(event):
                return event
        return None


class Listeners:
    """All listeners of this server."""

    def __init__(self) -> None:
        self._listeners: dict[Listener, None] = {}
        self._events = LastEvents()
        self._has_ended = False
        self._portions = Portions(MOST_TOLD)

    def __len__(self) -> int:
        return len(self._listeners)

    @property
    def has_ended(self) -> bool:
        """Whether the server shuts down."""
        return self._has_ended

    @contextmanager
    def listening(self, wanted: Wanted) -> Iterator[Listener]:
        """Yield a new listener, and remove it after the block."""
        listener = Listener(wanted, self._events)
        self._listeners[listener] = None
        if self._has_ended:
            listener.end()
        try:
            yield listener
        finally:
            del self._listeners[listener]

    def tell(self, events: Sequence[ReceivedEvent], size: int) -> None:
        """Pass events to the listeners that want them; `size` is that of all of them in JSON."""
        if not self._listeners:
            return
        for event in events:
            self._events.add(event, size // len(events))
        if not self._portions:
            self._begin()

    def _begin(self) -> None:
        """Tell all listeners the events until now: a few at once, many in the next turns."""
        end = self._events.end
        if len(self._listeners) <= MOST_TOLD:
            for listener in self._listeners:
                listener.take_until(end)
            return
        for listener in self._listeners:
            self._portions.add(partial(self._tell, listener, end))
        self._portions.add(partial(self._go_on, end))

    def _tell(self, listener: Listener, end: int) -> None:
        if listener in self._listeners:
            listener.take_until(end)

    def _go_on(self, end: int) -> None:
        """Begin again, if there was news meanwhile."""
        if self._events.end > end:
            self._begin()

    def end(self) -> None:
        """End all streams."""
        self._has_ended = True
        for listener in self._listeners:
            listener.end()
