"""The work of the event loop's turns, in small portions, so that no crowd of clients makes another one wait.

A turn of the loop handles everything that has arrived, and the loop serves nobody else meanwhile. So a turn has time
for a limited amount of work, and the rest stays in line:

- Requests. The first one of a connection has more time than the next ones: a client can send thousands in one piece.
- What nobody waits for, or whoever waits can wait longer: large answers, the ends of connections.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

FIRST_SECONDS: Final = 0.02
"""How much longer a turn may begin the first requests of connections."""
BEGUN_SECONDS: Final = 0.0002
"""What a request costs whose handler is a task, which runs later in the same turn."""
PATIENT_SECONDS: Final = 0.004
PATIENT_COUNT: Final = 100
"""The limits of patient work in a turn. A cancelled request costs most after this work, when its task runs."""


class Waiting(Protocol):
    """A connection in line."""

    def proceed(self) -> None:
        """Continue with the received input."""


class Turns:
    """The lines of one server. `seconds` is the time of a turn for requests beyond the first of each connection."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._ends_at: float | None = None
        self._line: deque[Waiting] = deque()
        self._patient: deque[Callable[[], None]] = deque()

    def has_time(self) -> bool:
        """Whether this turn may do more than answer one request of each connection."""
        now = time.perf_counter()
        return now < self._end_of_turn(now)

    def may_begin(self) -> bool:
        """Whether this turn may answer the first request of a connection."""
        now = time.perf_counter()
        return now < self._end_of_turn(now) + FIRST_SECONDS

    def charge_task(self) -> None:
        """Count a request whose handler is a task."""
        self._ends_at = self._end_of_turn(time.perf_counter()) - BEGUN_SECONDS

    def put_in_line(self, connection: Waiting) -> None:
        """Continue with a connection in another turn."""
        self._line.append(connection)
        if len(self._line) == 1:
            self._loop.call_soon(self._proceed)

    def do_patiently(self, work: Callable[[], None]) -> None:
        """Do some work in this turn or a later one."""
        self._patient.append(work)
        if len(self._patient) == 1:
            self._loop.call_soon(self._work)

    def _end_of_turn(self, now: float) -> float:
        if self._ends_at is None:
            self._ends_at = now + self._seconds
            self._loop.call_soon(self._end_turn)
        return self._ends_at

    def _end_turn(self) -> None:
        self._ends_at = None

    def _proceed(self) -> None:
        """Work on the connections that are in line now. Each may join the line again."""
        for _ in range(len(self._line)):
            try:
                self._line[0].proceed()
            finally:
                self._line.popleft()
            if not self.has_time():
                break
        if self._line:
            self._loop.call_soon(self._proceed)

    def _work(self) -> None:
        """Do some of the patient work, at least one piece."""
        ends_at = time.perf_counter() + PATIENT_SECONDS
        try:
            for _ in range(min(PATIENT_COUNT, len(self._patient))):
                self._patient.popleft()()
                if time.perf_counter() > ends_at:
                    break
        finally:
            if self._patient:
                self._loop.call_soon(self._work)
