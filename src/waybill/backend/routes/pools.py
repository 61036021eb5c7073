"""Pools of workers, and recent dispatches (ojs-fair-scheduling section 10)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import not_found
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_of
from waybill.backend.router import ADMIN, READ, Route
from waybill.backend.scheduling.dispatches import WINDOW_SECONDS
from waybill.backend.scheduling.pool import read_pool
from waybill.backend.scheduling.scheduler import Scheduler
from waybill.ojs.spec.operator_events import SchedulingRebalanced
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_duration

BASE: Final = "/ojs/v1/admin/pools"


class PoolRoutes:
    """The routes for pools."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", BASE, self._list, READ),
            Route("GET", f"{BASE}/{{name}}", self._get, READ),
            Route("PUT", f"{BASE}/{{name}}", self._put, ADMIN),
            Route("DELETE", f"{BASE}/{{name}}", self._remove, ADMIN),
            Route("GET", "/ojs/v1/admin/scheduling/stats", self._stats, READ),
        ]

    async def _list(self, request: Request) -> Response:
        names = [name for name, _ in self._scheduler.pools.items()]
        page, pagination = page_of(request, names, str, default=20, most=100)
        return answer({"items": [self._scheduler.form_of(name) for name in page], "pagination": pagination})

    async def _get(self, request: Request) -> Response:
        return answer(self._scheduler.form_of(request.parameters["name"]))

    async def _put(self, request: Request) -> Response:
        """Create or replace a pool."""
        name = request.parameters["name"]
        before, pool = self._scheduler.pools.get(name), read_pool(name, request.json(required=True))
        await self._scheduler.pools.put(name, pool)
        if before is not None and (before.strategy, before.weights) != (pool.strategy, pool.weights):
            told = SchedulingRebalanced(pool=name, previous_strategy=before.strategy, new_strategy=pool.strategy)
            self._backend.broker.events.record(name, told)
        return answer(self._scheduler.form_of(name))

    async def _remove(self, request: Request) -> Response:
        """Remove a pool. Its workers keep their jobs; their next fetch uses the order of their own queues."""
        name = request.parameters["name"]
        if not await self._scheduler.pools.remove(name):
            raise not_found("pool", name)
        return answer({"deleted": True, "name": name})

    async def _stats(self, _request: Request) -> Response:
        counts = (await self._backend.extensions.job_counts()).by_queue
        active = {queue: states.get(State.ACTIVE.value, 0) for queue, states in counts.items()}
        return answer(
            {"queues": self._scheduler.stats(active), "window": format_duration(timedelta(seconds=WINDOW_SECONDS))}
        )

    @property
    def _scheduler(self) -> Scheduler:
        return self._backend.extensions.scheduler
