"""The ends of connections, of which thousands may come in one turn of the event loop.

What one leaves behind takes time: its queues go, its deliveries return. A turn ends connections for a few milliseconds,
and the rest waits for the next turns, so that others are served in between.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.004


class Departures:
    """The connections of one broker that are lost."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line: deque[Callable[[], None]] = deque()
        self._ends_at = 0.0
        self._is_begun = False

    def add(self, leave: Callable[[], None]) -> None:
        """Call `leave` now, or when those before it have left and there is time."""
        if not self._is_begun:
            self._begin_turn()
        if self._line or time.monotonic() > self._ends_at:
            self._line.append(leave)
        else:
            leave()

    def _begin_turn(self) -> None:
        self._is_begun = True
        self._ends_at = time.monotonic() + TURN_S
        self._loop.call_soon(self._work)

    def _work(self) -> None:
        """A turn has ended: go on with the line."""
        self._is_begun = False
        if not self._line:
            return
        self._begin_turn()
        while self._line:
            self._line.popleft()()
            if time.monotonic() > self._ends_at:
                return
