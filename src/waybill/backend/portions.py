"""Work for which somebody can wait, done in small portions: one in each turn of the event loop.

A crowd makes much work in one moment: its connections end together, or an event is for all of it. Between two portions
the loop serves everybody else.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

PORTION_SECONDS: Final = 0.002


class Portions:
    """One line of pieces of work."""

    def __init__(self, most: int) -> None:
        """A portion has at most `most` pieces: a piece may cause work that its own time does not show."""
        self._most = most
        self._line: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        """The number of pieces that wait."""
        return len(self._line)

    def add(self, piece: Callable[[], None]) -> None:
        """Do a piece in this turn or a later one, in the order of these calls."""
        self._line.append(piece)
        if len(self._line) == 1:
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Do one portion, at least one piece."""
        ends_at = time.perf_counter() + PORTION_SECONDS
        line = self._line
        try:
            for _ in range(min(self._most, len(line))):
                # A piece stays in line while it runs, so that one that it adds does not begin a second series.
                try:
                    line[0]()
                finally:
                    line.popleft()
                if time.perf_counter() > ends_at:
                    break
        finally:
            if line:
                asyncio.get_running_loop().call_soon(self._work)


class Steps:
    """Long steps of tasks, such as checks of a hundred jobs. Each turn of the loop begins one of them."""

    def __init__(self) -> None:
        self._portions = Portions(1)

    async def begin(self) -> None:
        """Return when it is the caller's turn to do its next step."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._portions.add(partial(_end_wait, begun))
        await begun


def _end_wait(begun: asyncio.Future[None]) -> None:
    if not begun.done():
        begun.set_result(None)
