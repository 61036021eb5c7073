"""A clock that a test moves: events happen in the order of their times, without real waiting."""

import heapq
from collections.abc import Callable
from typing import Final

DEFAULT_START: Final = 1_700_000_000.0


class Event:
    """A scheduled callback."""

    __slots__ = ("at", "callback", "cancelled")

    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualClock:
    """Virtual Unix time in seconds. Events at equal times happen in the order in which they were scheduled."""

    def __init__(self, start: float = DEFAULT_START) -> None:
        self._now = start
        self._count = 0
        self._events: list[tuple[float, int, Event]] = []

    def now(self) -> float:
        return self._now

    def call_at(self, at: float, callback: Callable[[], None]) -> Event:
        """Call `callback` at a time; if that has passed, as soon as possible."""
        at = max(at, self._now)
        event = Event(at, callback)
        self._count += 1
        heapq.heappush(self._events, (at, self._count, event))
        return event

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Event:
        return self.call_at(self._now + delay_s, callback)

    def step(self, until: float) -> bool:
        """Run the next event if it is due by `until`. Else set the clock to `until` and return False."""
        events = self._events
        while events:
            at, _, event = events[0]
            if at > until:
                break
            heapq.heappop(events)
            if event.cancelled:
                continue
            self._now = at
            event.callback()
            return True
        self._now = max(self._now, until)
        return False

    def run(self, until: float) -> None:
        """Run all events that are due by `until`."""
        while self.step(until):
            pass
