"""Divides the work of the event loop into turns, so that a crowd of clients does not delay others.

During a turn, the loop serves no one else. So a turn has a limited time, and the rest of the work waits for the next
one:

- Input. When the time is used up, it is only buffered. The first request of a connection has more time than the next
  ones: a client can send thousands in one piece.
- Large answers. Copying and sending one takes time.
- The cleanup of closed connections, for which no client waits.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

from waybill.backend.fair_line import FairLine
from waybill.backend.portions import Portions

FIRST_SECONDS: Final = 0.004
"""How much longer a turn may start first requests of connections."""
BEGUN_SECONDS: Final = 0.0002
"""The cost of a request that is handled by a task, which runs later in the same turn."""
MOST_ENDS: Final = 20
"""How many connections end in a turn. A cancelled request costs most later in the turn, when its task runs."""
MOST_ANSWERS: Final = 100
"""How many large answers a turn sends, if there is time."""


class Waiting(Protocol):
    """A connection that waits for its turn."""

    @property
    def address(self) -> str:
        """The client's address: see `FairLine`."""

    def proceed(self) -> None:
        """Continue with the received input."""


class Turns:
    """The waiting work of a server. `seconds`: the time of a turn for requests beyond the first of each connection."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._ends_at: float | None = None
        self._is_over = False
        """Whether this turn may not start even first requests any more."""
        self._line = FairLine[Waiting]()
        self._is_due = False
        """Whether `_proceed` is called soon."""
        self.answers = Portions(MOST_ANSWERS)
        """Large answers to send."""
        self.ends = Portions(MOST_ENDS)
        """Connections to end."""

    def has_time(self) -> bool:
        """Whether this turn may do more than answer one request of each connection."""
        now = time.perf_counter()
        return now < self._end_of_turn(now)

    def may_begin(self) -> bool:
        """Whether this turn may answer the first request of a connection."""
        if not self._is_over:
            now = time.perf_counter()
            self._is_over = now >= self._end_of_turn(now) + FIRST_SECONDS
        return not self._is_over

    def charge_task(self) -> None:
        """Count a request whose handler is a task."""
        self._ends_at = self._end_of_turn(time.perf_counter()) - BEGUN_SECONDS

    def put_in_line(self, connection: Waiting) -> None:
        """Continue with a connection in another turn."""
        self._line.add(connection.address, connection)
        self._proceed_soon()

    def _proceed_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._proceed)

    def _end_of_turn(self, now: float) -> float:
        if self._ends_at is None:
            self._ends_at = now + self._seconds
            self._loop.call_soon(self._end_turn)
        return self._ends_at

    def _end_turn(self) -> None:
        self._ends_at = None
        self._is_over = False

    def _proceed(self) -> None:
        """Continue with the connections that wait now. Each may have to wait again."""
        self._is_due = False
        try:
            for _ in range(len(self._line)):
                self._line.take().proceed()
                if not self.has_time():
                    break
        finally:
            if self._line:
                self._proceed_soon()
