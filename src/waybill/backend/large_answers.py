"""Makes large answers a few at a time, takes large bodies as there is memory, and lets clients read those before.

A list of jobs has up to 16 MiB, and takes several times as much while it is made. What a hundred clients ask for at
once waits for its turn. Nobody waits long for clients that do not read: the server closes those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from waybill.backend.errors import RequestRefused
from waybill.backend.job_size import size_of
from waybill.backend.message import Request, Response
from waybill.backend.portions import Steps
from waybill.backend.room import Room
from waybill.backend.server.limits import MAX_BODY_BYTES

AT_ONCE: Final = 2
"""How many large answers are made at a time."""
LARGE_BYTES: Final = 1024 * 1024
LARGE_BODY_BYTES: Final = 64 * 1024
"""Of a request."""
BODY_ROOM: Final = 64 * 1024 * 1024
"""The memory that requests with large bodies take at the same time, about."""
_COPIES: Final = 6
"""How often the jobs of a body are in memory as texts, while they are enqueued and answered, beside as objects."""
PAUSE_SECONDS: Final = 0.02
"""How long it takes until an answer counts as unread, and how often that is looked at."""
PATIENCE_SECONDS: Final = 0.1
"""How long a large answer waits for clients to read others."""
WAIT_SECONDS: Final = 20.0

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Quick = Callable[[Request], "Response | asyncio.Future[Response] | None"]


class LargeAnswers:
    """The large answers of one application."""

    def __init__(self) -> None:
        self.is_behind: Callable[[], bool] = lambda: False
        """Whether clients have much to read: set by the server."""
        self._answers = Room(AT_ONCE)
        self._bodies = Room(BODY_ROOM)
        self._steps = Steps()
        self._is_unsent = False
        """Whether the last answer may not count as unread yet."""

    async def handle(self, request: Request, handler: Handler) -> Response:
        """Call a handler with a large answer when it is the request's turn.

        Raises RequestRefused if that takes too long.
        """
        return await self._in_turn(self._answers, 1, partial(handler, request))

    async def take_body(self, request: Request, handler: Handler, quick: Quick | None) -> Response:
        """Call `quick`, or the handler if that leaves it the request, when there is room for a large body.

        Raises RequestRefused if that takes too long.
        """
        body = request.body
        size = size_of(body) + _COPIES * len(body)
        fitting = quick if len(body) <= MAX_BODY_BYTES else None
        return await self._in_turn(self._bodies, size, partial(_begin, request, handler, fitting))

    async def _in_turn(self, room: Room, size: int, begin: Callable[[], Coroutine[Any, Any, Response]]) -> Response:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await room.enter(size)
        except TimeoutError:
            raise RequestRefused("overloaded", "The server is processing too many large requests.") from None
        try:
            await self._wait_for_readers()
            # Reading a body of 16 MiB takes a tenth of a second: others are served before the next one.
            await self._steps.begin()
            response = await begin()
            self._is_unsent = self._is_unsent or len(response.body) > LARGE_BYTES
        finally:
            room.leave(size)
        return response

    async def _wait_for_readers(self) -> None:
        ends_at = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while self._is_unsent or (self.is_behind() and asyncio.get_running_loop().time() < ends_at):
            self._is_unsent = False
            await asyncio.sleep(PAUSE_SECONDS)


async def _begin(request: Request, handler: Handler, quick: Quick | None) -> Response:
    answer = None if quick is None else quick(request)
    if answer is None:
        return await handler(request)
    return answer if isinstance(answer, Response) else await answer
