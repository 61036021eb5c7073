"""What an operator sees first: counts, rates, the queues that wait longest, who is there (the dashboard's overview)."""

from __future__ import annotations

import asyncio
from typing import Final

from waybill import __version__
from waybill.backend.backend import Backend
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response, answer
from waybill.backend.operator_view import OperatorView
from waybill.backend.router import READ, Route
from waybill.backend.workers import is_stale, workers_of
from waybill.ojs.spec.states import State

WINDOW_SECONDS: Final = 3600
LEAST_WINDOW: Final = 300
BUSIEST: Final = 8
PER_PAGE: Final = 50
MOST_PER_PAGE: Final = 500
MAX_NAME: Final = 255
TIMED: Final = 50
"""How many of the last jobs of a queue the percentiles are of."""


class OverviewRoutes:
    """Answers it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._view = OperatorView(backend)

    def routes(self) -> list[Route]:
        """Return what answers which path."""
        return [
            Route("GET", "/ojs/v1/admin/overview", self._overview, READ),
            Route("GET", "/ojs/v1/admin/queue-summaries", self._queues, READ),
            Route("GET", "/ojs/v1/admin/session", self._session, READ),
        ]

    async def _session(self, request: Request) -> Response:
        """Tell a client who it is, and what it may do."""
        backend = self._backend
        return answer({"name": request.actor, "role": request.role, "backend_id": backend.id, "version": __version__})

    async def _overview(self, request: Request) -> Response:
        backend = self._backend
        seconds = request.number("window", WINDOW_SECONDS, LEAST_WINDOW, WINDOW_SECONDS)
        counts = await self._view.counts()
        by_queue = _by_queue(counts)
        pulse = backend.extensions.pulse
        waiting = sorted(by_queue, key=lambda name: (-by_queue[name].get(State.AVAILABLE.value, 0), name))
        busiest = await self._summaries(waiting[:BUSIEST], by_queue, timed=0)
        ages = [str(one["oldest_at"]) for one in busiest if one.get("oldest_at")]
        return answer(
            {
                "now": backend.now(),
                "counts": _total(by_queue),
                "rates": pulse.rates(counts),
                "series": pulse.series(seconds),
                "oldest_at": min(ages, default=None),
                "queues_total": len(by_queue),
                "queues": busiest,
                "workers": self._workers(),
            }
        )

    def _workers(self) -> Form:
        found = workers_of(self._backend.events.read())
        found |= {worker.id: worker for worker in self._backend.extensions.workers.all()}
        stale = sum(map(is_stale, found.values()))
        return {"total": len(found), "running": len(found) - stale, "stale": stale}

    async def _queues(self, request: Request) -> Response:
        """Tell of a page of queues, in the order of their names or of what waits there."""
        limit = request.number("limit", PER_PAGE, 1, MOST_PER_PAGE)
        offset = request.number("offset", 0, 0, 10**6)
        part = request.query.get("search", "")[:MAX_NAME].lower()
        by_queue = _by_queue(await self._view.counts())
        names = sorted(name for name in {*self._backend.coordinator.queues, *by_queue} if name and part in name.lower())
        if request.query.get("sort") == "waiting":
            names.sort(key=lambda name: -by_queue.get(name, {}).get(State.AVAILABLE.value, 0))
        items = await self._summaries(names[offset : offset + limit], by_queue, timed=TIMED)
        return answer({"items": items, "total": len(names), "has_more": offset + limit < len(names)})

    async def _summaries(self, names: list[str], by_queue: dict[str, dict[str, int]], *, timed: int) -> list[Form]:
        backend = self._backend
        paused = await asyncio.gather(*(backend.jobs.is_paused(name) for name in names))
        times = await self._view.times(names, timed)
        counts = {(name, state): count for name in names for state, count in by_queue.get(name, {}).items()}
        items = []
        for name, is_paused in zip(names, paused, strict=True):
            own = by_queue.get(name, {})
            item: Form = {
                "name": name,
                "paused": is_paused,
                "counts": {state.value: own.get(state.value, 0) for state in State},
                "oldest_at": times[name].oldest_at,
            }
            if timed:
                item |= {"wait_ms": times[name].wait_ms, "run_ms": times[name].run_ms}
                item["throughput"] = backend.extensions.history.throughput(counts, name)
            items.append(item)
        return items


def _by_queue(counts: dict[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (queue, state), count in counts.items():
        found.setdefault(queue, {})[state] = count
    return found


def _total(by_queue: dict[str, dict[str, int]]) -> dict[str, int]:
    total = {state.value: 0 for state in State}
    for own in by_queue.values():
        for state, count in own.items():
            total[state] = total.get(state, 0) + count
    return total
