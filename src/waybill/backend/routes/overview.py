"""The dashboard's overview: counts, rates, the longest queues and the workers."""

from __future__ import annotations

import time
from typing import Final

from waybill import __version__
from waybill.backend.backend import Backend
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import READ, Route
from waybill.backend.workers import is_stale
from waybill.ojs.coordinator.job_counts import JobCounts
from waybill.ojs.spec.states import State

WINDOW_SECONDS: Final = 3600
LEAST_WINDOW: Final = 300
BUSIEST: Final = 8
PER_PAGE: Final = 50
MOST_PER_PAGE: Final = 500
MAX_NAME: Final = 255
TIMED: Final = 50
"""The number of last jobs of a queue for percentiles."""


class OverviewRoutes:
    """The routes for the overview."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._view = backend.operator_view

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/ojs/v1/admin/overview", self._overview, READ),
            Route("GET", "/ojs/v1/admin/queue-summaries", self._queues, READ),
            Route("GET", "/ojs/v1/admin/session", self._session, READ),
        ]

    async def _session(self, request: Request) -> Response:
        """Return the identity and permissions of the client."""
        backend = self._backend
        return answer(
            {
                "name": request.actor,
                "role": request.role,
                "tenant": request.tenant or None,
                "broker": backend.has_broker and not request.tenant,
                "backend_id": backend.id,
                "trace_url": backend.trace_url,
                "version": __version__,
                "uptime_seconds": int(time.monotonic() - backend.started),
            }
        )

    async def _overview(self, request: Request) -> Response:
        backend = self._backend
        seconds = request.number("window", WINDOW_SECONDS, LEAST_WINDOW, WINDOW_SECONDS)
        prefix = request.queue_prefix
        counted = (await self._view.counted()).within(prefix)
        history = backend.extensions.history
        busiest = await self._summaries(counted.fullest(BUSIEST), counted, timed=0)
        ages = [str(one["oldest_at"]) for one in busiest if one.get("oldest_at")]
        return answer(
            {
                "now": backend.now(),
                "counts": counted.total,
                "rates": history.rates(prefix),
                "series": history.series(seconds, prefix),
                "oldest_at": min(ages, default=None),
                "queues_total": len(counted.by_queue),
                "queues": busiest,
                "workers": self._workers(prefix),
            }
        )

    def _workers(self, prefix: str) -> Form:
        found = [one for one in self._backend.workers().values() if one.takes_from(prefix)]
        stale = sum(map(is_stale, found))
        return {"total": len(found), "running": len(found) - stale, "stale": stale}

    async def _queues(self, request: Request) -> Response:
        """List a page of queues, sorted by name or by waiting jobs."""
        limit = request.number("limit", PER_PAGE, 1, MOST_PER_PAGE)
        offset = request.number("offset", 0, 0, 10**6)
        prefix, only = request.queue_prefix, request.query.get("name", "")
        part = request.query.get("search", "")[:MAX_NAME].lower()
        counted = (await self._view.counted()).within(prefix)
        known = {*self._backend.coordinator.queues, *counted.by_queue}
        if only:
            names = [prefix + only] if prefix + only in known else []
        else:
            start = len(prefix)
            names = sorted(one for one in known if one.startswith(prefix) and part in one[start:].lower() and one)
        if request.query.get("sort") == "waiting":
            waiting = State.AVAILABLE.value
            names.sort(key=lambda name: -counted.by_queue.get(name, {}).get(waiting, 0))
        items = await self._summaries(names[offset : offset + limit], counted, timed=TIMED)
        if only and items:
            items[0]["series"] = self._backend.extensions.history.series(WINDOW_SECONDS, queue=names[0])
        return answer({"items": items, "total": len(names), "has_more": offset + limit < len(names)})

    async def _summaries(self, names: list[str], counted: JobCounts, *, timed: int) -> list[Form]:
        paused = await self._view.paused(names)
        times = await self._view.times(names, timed)
        history = self._backend.extensions.history
        items = []
        for name, is_paused in zip(names, paused, strict=True):
            own = counted.by_queue.get(name, {})
            item: Form = {
                "name": name,
                "paused": is_paused,
                "counts": {state.value: own.get(state.value, 0) for state in State},
                "oldest_at": times[name].oldest_at,
            }
            if timed:
                item |= {"wait_ms": times[name].wait_ms, "run_ms": times[name].run_ms}
                item["throughput"] = history.throughput(name)
            items.append(item)
        return items
