"""Listeners for events: streams, and requests that wait for the end of a job.

There may be thousands, and an event may concern all of them. So each iteration of the event loop notifies only a few.
All share a buffer of the latest events. A listener that reads too slowly loses the oldest ones, and is told how many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from waybill.backend.portions import Portions, Steps
from waybill.ojs.spec.events import ReceivedEvent

HEARTBEAT_SECONDS: Final = 15.0
MOST_SHARED: Final = 5000
MOST_SHARED_BYTES: Final = 4 * 1024 * 1024
"""How many of the last events are kept for listeners, and their size in JSON."""
NOTIFIED_PER_TURN: Final = 20
"""Listeners to notify in one iteration of the loop. Most of the cost comes later in it, when they send."""

READ_IN_A_ROW: Final = 16
"""Events that a listener reads before others get their turn: a message may have thousands of them."""
COUNTED_BYTES: Final = 1024
"""A large event counts as one for each of these: thousands of listeners may send it."""
MOST_TEXTS: Final = 8
TEXT_BYTES: Final = 2048
MOST_FOLLOWED: Final = 100_000
"""The number of jobs whose previous states are remembered, of all listeners."""

Predicate = Callable[[ReceivedEvent], bool]


class ShuttingDown(Exception):
    """The server is shutting down: there are no more events."""


class LastEvents:
    """The last events by number. The first event of a server has the number 0."""

    def __init__(self) -> None:
        self.first = 0
        """The number of the oldest event."""
        self.end = 0
        """The number of the next event."""
        self._events: dict[int, tuple[ReceivedEvent, int]] = {}
        self._size = 0
        self._texts: deque[bytes] = deque(maxlen=MOST_TEXTS)

    def shared(self, text: bytes) -> bytes:
        """Return the text that another listener has made of the same event: each keeps its last one for a while."""
        if len(text) < TEXT_BYTES:
            return text
        for one in self._texts:
            if one == text:
                return one
        self._texts.append(text)
        return text

    def get(self, number: int) -> ReceivedEvent | None:
        """Return an event, None if it is no longer kept."""
        found = self._events.get(number)
        return None if found is None else found[0]

    def size_of(self, number: int) -> int:
        """Return the size of an event, 0 if it is no longer kept."""
        found = self._events.get(number)
        return 0 if found is None else found[1]

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

    def __init__(self, wanted: Predicate, events: LastEvents, steps: Steps) -> None:
        """`wanted` selects events, of those that are added to `events` from now on. All listeners share `steps`."""
        self._wanted = wanted
        self._events = events
        self._steps = steps
        self._in_a_row = 0
        self._next = self._notified = events.end
        """The numbers of the next event to read, and of the first event that it was not notified of."""
        self._arrived = asyncio.Event()
        self._has_ended = False
        self.dropped_count = 0
        """The number of events that were dropped before they were read, wanted or not."""

    def shared(self, text: bytes) -> bytes:
        """Return the same text of another listener if there is one."""
        return self._events.shared(text)

    def notify_until(self, end: int) -> None:
        """Notify of the events before a number."""
        events, is_behind = self._events, self._next < self._notified
        numbers = range(max(self._notified, events.first), end)
        self._notified = end
        if is_behind or any((event := events.get(number)) and self._wanted(event) for number in numbers):
            self._arrived.set()
        elif self._next >= events.first:
            self._next = end

    def end(self) -> None:
        """End the stream: the server shuts down."""
        self._has_ended = True
        self._arrived.set()

    async def next(self, timeout_seconds: float = HEARTBEAT_SECONDS) -> ReceivedEvent | None:
        """Return the next event, None after the timeout. Raises ShuttingDown at the end."""
        while (event := self._next_wanted()) is None:
            self._in_a_row = 0
            if self._has_ended:
                raise ShuttingDown
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        self._in_a_row += 1 + self._events.size_of(self._next - 1) // COUNTED_BYTES
        if self._in_a_row > READ_IN_A_ROW:
            await self._steps.begin()
            self._in_a_row = 1
        return event

    def _next_wanted(self) -> ReceivedEvent | None:
        events = self._events
        if self._next < events.first:
            self.dropped_count += events.first - self._next
            self._next = events.first
        while self._next < self._notified:
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
        self._portions = Portions(NOTIFIED_PER_TURN)
        self._steps = Steps()

    def __len__(self) -> int:
        return len(self._listeners)

    @property
    def most_followed(self) -> int:
        """How many jobs each listener may remember."""
        return max(MOST_FOLLOWED // max(len(self._listeners), 1), 1)

    @property
    def has_ended(self) -> bool:
        """Whether the server shuts down."""
        return self._has_ended

    @contextmanager
    def listening(self, wanted: Predicate) -> Iterator[Listener]:
        """Yield a new listener, and remove it after the block."""
        listener = Listener(wanted, self._events, self._steps)
        self._listeners[listener] = None
        if self._has_ended:
            listener.end()
        try:
            yield listener
        finally:
            del self._listeners[listener]

    def publish(self, events: Sequence[ReceivedEvent], size: int) -> None:
        """Pass events to the listeners that want them; `size` is that of all of them in JSON."""
        if not self._listeners:
            return
        for event in events:
            self._events.add(event, size // len(events))
        if not self._portions:
            self._begin()

    def _begin(self) -> None:
        """Notify all listeners of the events so far: a few now, many in later iterations of the loop."""
        end = self._events.end
        if len(self._listeners) <= NOTIFIED_PER_TURN:
            for listener in self._listeners:
                listener.notify_until(end)
            return
        for listener in self._listeners:
            self._portions.add(partial(self._notify, listener, end))
        self._portions.add(partial(self._begin_again, end))

    def _notify(self, listener: Listener, end: int) -> None:
        if listener in self._listeners:
            listener.notify_until(end)

    def _begin_again(self, end: int) -> None:
        """Begin again if events have arrived meanwhile."""
        if self._events.end > end:
            self._begin()

    def end(self) -> None:
        """End all streams."""
        self._has_ended = True
        for listener in self._listeners:
            listener.end()
