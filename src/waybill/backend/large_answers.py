"""Makes large answers, and takes large bodies, a few at a time, and gives clients a moment to read those before.

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
from waybill.backend.server.limits import MAX_BODY_BYTES

AT_ONCE: Final = 2
"""How many large answers are made at a time."""
LARGE_BYTES: Final = 1024 * 1024
LARGE_BODY_BYTES: Final = 256 * 1024
"""Of a request. Its jobs take up to ten times as much while they are enqueued, and are in its answer."""
PAUSE_SECONDS: Final = 0.02
"""How long it takes until an answer counts as unread, and how often that is looked at."""
PATIENCE_SECONDS: Final = 0.1
"""How long a large answer waits for clients to read others."""
WAIT_SECONDS: Final = 20.0

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class LargeAnswers:
    """The large answers of one application."""

    def __init__(self) -> None:
        self.is_behind: Callable[[], bool] = lambda: False
        """Whether clients have much to read: set by the server."""
        self._answers = asyncio.Semaphore(AT_ONCE)
        self._bodies = asyncio.Semaphore(AT_ONCE)
        self._batches = asyncio.Semaphore(1)
        """For bodies that are larger than one of a job."""
        self._steps = Steps()
        self._is_unsent = False
        """Whether the last answer may not count as unread yet."""

    async def handle(self, request: Request, handler: Handler) -> Response:
        """Call a handler with a large answer when it is the request's turn.

        Raises RequestRefused if that takes too long.
        """
        return await self._in_turn(self._answers, request, handler)

    async def take_body(self, request: Request, handler: Handler) -> Response:
        """Call a handler, when it is the request's turn if that has a large body. Raises RequestRefused."""
        size = len(request.body)
        if size <= LARGE_BODY_BYTES:
            return await handler(request)
        return await self._in_turn(self._bodies if size <= MAX_BODY_BYTES else self._batches, request, handler)

    async def _in_turn(self, turns: asyncio.Semaphore, request: Request, handler: Handler) -> Response:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await turns.acquire()
        except TimeoutError:
            raise RequestRefused("overloaded", "The server is processing too many large requests.") from None
        try:
            await self._wait_for_readers()
            # Reading a body of 16 MiB takes a tenth of a second: others are served before the next one.
            await self._steps.begin()
            response = await handler(request)
            self._is_unsent = self._is_unsent or len(response.body) > LARGE_BYTES
        finally:
            turns.release()
        return response

    async def _wait_for_readers(self) -> None:
        ends_at = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while self._is_unsent or (self.is_behind() and asyncio.get_running_loop().time() < ends_at):
            self._is_unsent = False
            await asyncio.sleep(PAUSE_SECONDS)
