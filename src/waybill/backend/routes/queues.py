"""Queues: list them, count what is in one, pause and resume it, purge it (ojs-http-binding section 11)."""

from __future__ import annotations

import asyncio
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import not_found
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import OPERATE, READ, Route
from waybill.client import Inspector
from waybill.ojs.spec.states import State

LIMIT: Final = 50
MOST: Final = 500


class QueueRoutes:
    """Answers them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return what answers which path."""
        return [
            Route("GET", "/ojs/v1/queues", self._list, READ),
            Route("GET", "/ojs/v1/queues/{name}", self._stats, READ),
            Route("GET", "/ojs/v1/queues/{name}/stats", self._stats, READ),
            Route("POST", "/ojs/v1/queues/{name}/pause", self._pause, OPERATE),
            Route("POST", "/ojs/v1/queues/{name}/resume", self._resume, OPERATE),
        ]

    async def _list(self, request: Request) -> Response:
        limit = request.number("limit", LIMIT, 1, MOST)
        offset = request.number("offset", 0, 0, 10**9)
        names = await self._backend.queues()
        page = names[offset : offset + limit]
        paused = await asyncio.gather(*(self._backend.jobs.is_paused(name) for name in page))
        queues = [
            {"name": name, "status": "paused" if is_paused else "active", "paused": is_paused}
            for name, is_paused in zip(page, paused, strict=True)
        ]
        has_more = offset + limit < len(names)
        pagination = {"total": len(names), "limit": limit, "offset": offset, "has_more": has_more}
        return answer({"queues": queues, "pagination": pagination})

    async def _stats(self, request: Request) -> Response:
        """Count the jobs of a queue: those that wait as the broker does, the others as the events do."""
        name = request.parameters["name"]
        backend = self._backend
        topology = backend.broker.declarer.topology
        inspector = Inspector(backend.broker.connection)
        ready, dead = await asyncio.gather(
            inspector.queue(topology.job_queue(name)), inspector.queue(topology.dead_letter_queue(name))
        )
        counts = {state: count for (queue, state), count in (await backend.counts()).items() if queue == name}
        if ready is None and not counts:
            raise not_found("queue", name)
        is_paused = await backend.jobs.is_paused(name)
        stats = {state.value: counts.get(state.value, 0) for state in State}
        stats["available"] = 0 if ready is None else ready.message_count
        stats["dead_letter"] = 0 if dead is None else dead.message_count
        return answer(
            {
                "queue": name,
                "name": name,
                "status": "paused" if is_paused else "active",
                "paused": is_paused,
                "depth": stats["available"],
                "stats": stats,
                "computed_at": backend.now(),
            }
        )

    async def _pause(self, request: Request) -> Response:
        name = request.parameters["name"]
        await self._backend.jobs.pause(name)
        await self._backend.fetcher.look_at_pauses()
        return self._told(name, "paused", "paused_at")

    async def _resume(self, request: Request) -> Response:
        name = request.parameters["name"]
        await self._backend.jobs.resume(name)
        await self._backend.fetcher.look_at_pauses()
        return self._told(name, "active", "resumed_at")

    def _told(self, name: str, status: str, when: str) -> Response:
        found = {"name": name, "status": status, "paused": status == "paused", when: self._backend.now()}
        return answer({"queue": name, **found})
