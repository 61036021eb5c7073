"""The ends of connections, of which thousands may come in one turn of the event loop.

A socket takes time to close, and so does what its connection leaves behind: its queues go, its deliveries return. A
turn does this for a few milliseconds, and the rest waits for the next turns, so that others are served in between.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.004
MOST: Final = 100
"""How many steps a turn takes, if there is time: to close a socket costs most later in the turn."""


class Departures:
    """The connections of one broker that end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line: deque[Callable[[], None]] = deque()
        self._ends_at = 0.0
        self._left = 0
        self._is_begun = False

    def add(self, leave: Callable[[], None]) -> None:
        """Call `leave`, a step of a connection's end, now, or after the steps before it when there is time."""
        if not self._is_begun:
            self._begin_turn()
        if self._line or not self._has_time():
            self._line.append(leave)
        else:
            leave()

    def _has_time(self) -> bool:
        self._left -= 1
        return self._left >= 0 and time.monotonic() <= self._ends_at

    def _begin_turn(self) -> None:
        self._is_begun = True
        self._ends_at = time.monotonic() + TURN_S
        self._left = MOST
        self._loop.call_soon(self._work)

    def _work(self) -> None:
        """A turn has ended: go on with the line."""
        self._is_begun = False
        if not self._line:
            return
        self._begin_turn()
        while self._line:
            self._line.popleft()()
            if not self._has_time():
                return
