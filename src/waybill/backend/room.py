"""A limit of what requests take at the same time, such as memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class Room:
    """Something limited, shared out in the order of the questions. One alone may take more than there is."""

    def __init__(self, size: int) -> None:
        """`size` is what all may take together."""
        self._size = size
        self._taken = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Return when there is room for so much. `leave` must follow."""
        if not self._line and self._has(size):
            self._taken += size
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):
                    self._line.remove((size, waiter))
                self._let_in()
            else:
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        """Give so much back."""
        self._taken -= size
        self._let_in()

    def _has(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self._size

    def _let_in(self) -> None:
        while self._line and self._has(self._line[0][0]):
            size, waiter = self._line.popleft()
            if not waiter.done():
                self._taken += size
                waiter.set_result(None)
