"""Metrics for Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from itertools import chain
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.message import Request, Response
from waybill.backend.metrics import MEDIA_TYPE, ServerMetrics, gauges, partitions, scheduling
from waybill.backend.portions import Steps
from waybill.backend.router import READ, Route
from waybill.ojs.coordinator.job_view import COUNT_SECONDS

PATHS: Final = ("/metrics", "/ojs/v1/metrics")
LINES_AT_ONCE: Final = 500
"""How many lines are made before other requests get their turn."""

_log = logging.getLogger("waybill.backend")


class MetricsRoutes:
    """The routes for metrics."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._jobs: ServerMetrics | None = None
        self._steps = Steps()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("GET", path, self._get, READ) for path in PATHS]

    async def _get(self, _request: Request) -> Response:
        backend = self._backend
        if self._jobs is None:
            self._jobs = ServerMetrics()
            backend.events.on_events.append(self._jobs.take)
        tenants = backend.extensions.push_checks.tenants.table.known
        bounds = {
            name: bound.max_depth for name, bound in backend.extensions.push_checks.bounds.items() if bound.max_depth
        }
        now = gauges(await self._counts(), tenants, bounds, len(backend.extensions.workers.all()))
        scheduler = backend.extensions.scheduler
        dispatched = scheduling(scheduler.dispatches.totals, scheduler.ratios(), scheduler.utilization())
        behind = partitions(backend.coordinator.lags())
        lines: list[str] = []
        for line in chain(now, behind, dispatched, self._jobs.lines()):
            if not len(lines) % LINES_AT_ONCE:
                await self._steps.begin()
            lines.append(line)
        text = "\n".join((*lines, ""))
        return Response(200, text.encode(errors="replace"), [("Content-Type", MEDIA_TYPE)])

    async def _counts(self) -> Mapping[tuple[str, str], int]:
        """Return the counts of jobs; none while the database cannot be read, so that other metrics are still served."""
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                return dict(await self._backend.counts())
        except Exception as error:  # noqa: BLE001 - a database may raise anything
            _log.warning("metrics have no job counts: %s", type(error).__name__)
            return {}
