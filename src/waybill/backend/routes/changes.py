"""A stream of change notifications, at most one per second, upon which pages request new counts.

The cost is constant: events are counted, but not decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.event_streams import HEARTBEAT, MEDIA_TYPE, event_text, stream_head
from waybill.backend.message import Request, Response, streamed
from waybill.backend.router import READ, Route

STEP_SECONDS: Final = 1.0
HEARTBEAT_STEPS: Final = 15


class ChangeRoutes:
    """The route for change notifications."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("GET", "/ojs/v1/admin/changes", self._follow, READ)]

    async def _follow(self, request: Request) -> Response:
        return streamed(self._changes(is_counted=not request.tenant), MEDIA_TYPE)

    async def _changes(self, *, is_counted: bool) -> AsyncIterator[bytes]:
        events = self._backend.events
        yield stream_head()
        told, quiet = -1, 0
        while not events.listeners.has_ended:
            if events.seen_count != told:
                told, quiet = events.seen_count, 0
                # Tenants must not see the activity of others.
                yield event_text("change", {"events": told} if is_counted else {})
            elif (quiet := quiet + 1) >= HEARTBEAT_STEPS:
                quiet = 0
                yield HEARTBEAT
            await asyncio.sleep(STEP_SECONDS)
        yield event_text("server.shutdown", {"grace_period_ms": 0})
