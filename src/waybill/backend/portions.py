"""Deferrable work, done in small portions: one in each iteration of the event loop.

A crowd of clients causes much work at once: its connections end together, or an event is for all of it. Between two
portions the loop serves everybody else.
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
    """A queue of pieces of work."""

    def __init__(self, most: int) -> None:
        """A portion has at most `most` pieces: a piece may cause work that its own time does not show."""
        self._most = most
        self._queue: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        """Return the number of pieces in the queue."""
        return len(self._queue)

    def add(self, piece: Callable[[], None]) -> None:
        """Schedule a piece of work. Pieces run in the order of these calls."""
        self._queue.append(piece)
        if len(self._queue) == 1:
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Do one portion, at least one piece."""
        ends_at = time.perf_counter() + PORTION_SECONDS
        queue = self._queue
        try:
            for _ in range(min(self._most, len(queue))):
                # A piece stays in the queue while it runs, so that a piece it adds does not schedule `_work` twice.
                try:
                    queue[0]()
                finally:
                    queue.popleft()
                if time.perf_counter() > ends_at:
                    break
        finally:
            if queue:
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
