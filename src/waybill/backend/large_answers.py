"""Makes large answers a few at a time, and gives clients a moment to read those before.

A list of jobs has up to 16 MiB, and takes several times as much while it is made. What a hundred clients ask for at
once waits for its turn. Nobody waits long for clients that do not read: the server closes those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from waybill.backend.errors import RequestRefused
from waybill.backend.message import Request, Response
from waybill.backend.portions import Steps

AT_ONCE: Final = 2
"""How many large answers are made at a time."""
LARGE_BYTES: Final = 1024 * 1024
PAUSE_SECONDS: Final = 0.02
"""How long it takes until an answer counts as unread, and how often that is looked at."""
PATIENCE_SECONDS: Final = 0.1
"""How long a large answer waits for clients to read others."""
WAIT_SECONDS: Final = 20.0


class LargeAnswers:
    """The large answers of one application."""

    def __init__(self) -> None:
        self.is_behind: Callable[[], bool] = lambda: False
        """Whether clients have much to read: set by the server."""
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._steps = Steps()
        self._is_unsent = False
        """Whether the last answer may not count as unread yet."""

    async def handle(self, request: Request, handler: Callable[[Request], Coroutine[Any, Any, Response]]) -> Response:
        """Call a handler when it is the request's turn. Raises RequestRefused if that takes too long."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise RequestRefused("overloaded", "The server is making too many large answers.") from None
        try:
            await self._wait_for_readers()
            # Reading a body of 16 MiB takes a tenth of a second: others are served before the next one.
            await self._steps.begin()
            response = await handler(request)
            self._is_unsent = self._is_unsent or len(response.body) > LARGE_BYTES
        finally:
            self._turns.release()
        return response

    async def _wait_for_readers(self) -> None:
        ends_at = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while self._is_unsent or (self.is_behind() and asyncio.get_running_loop().time() < ends_at):
            self._is_unsent = False
            await asyncio.sleep(PAUSE_SECONDS)
