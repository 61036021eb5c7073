"""Metrics for Prometheus."""

from __future__ import annotations

from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.message import Request, Response
from waybill.backend.metrics import MEDIA_TYPE, ServerMetrics, gauges, scheduling
from waybill.backend.router import READ, Route

PATHS: Final = ("/metrics", "/ojs/v1/metrics")


class MetricsRoutes:
    """The routes for metrics."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._jobs: ServerMetrics | None = None

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("GET", path, self._get, READ) for path in PATHS]

    async def _get(self, _request: Request) -> Response:
        backend = self._backend
        if self._jobs is None:
            self._jobs = ServerMetrics()
            backend.events.on_events.append(self._jobs.take)
        tenants = [name for name, _ in backend.extensions.push_checks.tenants.shelf.items()]
        bounds = {name: bound.max_depth for name, bound in backend.extensions.push_checks.bounds.items()}
        now = gauges(await backend.counts(), tenants, bounds, len(backend.extensions.workers.all()))
        scheduler = backend.extensions.scheduler
        dispatched = scheduling(scheduler.dispatches.totals, scheduler.ratios(), scheduler.utilization())
        text = "\n".join((*now, *dispatched, *self._jobs.lines(), ""))
        return Response(200, text.encode(errors="replace"), [("Content-Type", MEDIA_TYPE)])
