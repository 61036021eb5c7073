"""The operators' view: statistics, queues, the audit log (ojs-admin-api)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

from waybill import __version__
from waybill.backend.audit import entries
from waybill.backend.backend import Backend
from waybill.backend.errors import invalid, not_found
from waybill.backend.event_streams import MEDIA_TYPE, event_text, stream_head
from waybill.backend.history import DAY, PERIODS
from waybill.backend.job_form import Form
from waybill.backend.listeners import ShuttingDown
from waybill.backend.message import Request, Response, answer, streamed
from waybill.backend.pages import limit_of, page_of, pagination_of
from waybill.backend.router import ADMIN, OPERATE, READ, Route
from waybill.backend.routes.overview import TIMED
from waybill.backend.routes.queue_configs import is_configured, shown_config
from waybill.backend.routes.queues import created
from waybill.ojs.control.pauses import paused_among
from waybill.ojs.coordinator.queue_times import QueueTimes
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import parse_timestamp

PER_PAGE: Final = 20
MOST_PER_PAGE: Final = 100
HOUR: Final = 3600.0
PERCENTILES: Final = ("p50", "p95", "p99")
STREAM_SECONDS: Final = 2.0


class AdminRoutes:
    """The routes for statistics, queues and the audit log."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/ojs/v1/admin/stats", self._stats, READ),
            Route("GET", "/ojs/v1/admin/stats/history", self._history, READ),
            Route("GET", "/ojs/v1/admin/queues", self._queues, READ),
            Route("GET", "/ojs/v1/admin/queues/{name}", self._queue, READ),
            Route("POST", "/ojs/v1/admin/queues/{name}/pause", self._pause, OPERATE),
            Route("POST", "/ojs/v1/admin/queues/{name}/resume", self._resume, OPERATE),
            Route("GET", "/ojs/v1/admin/system/config", self._config, READ),
            Route("GET", "/ojs/v1/admin/config", self._config, READ),
            Route("GET", "/ojs/v1/admin/stats/stream", self._stats_stream, READ),
            Route("GET", "/ojs/v1/middleware", self._middleware, READ),
            Route("GET", "/ojs/v1/admin/middleware", self._middleware, READ),
            Route("GET", "/ojs/v1/admin/audit", self._audit, ADMIN),
        ]

    # --- statistics ---

    async def _stats(self, _request: Request) -> Response:
        return answer(await self._counted())

    async def _counted(self) -> Form:
        backend = self._backend
        return {
            "queues": len(await backend.queues()),
            "workers": len(backend.workers()),
            "jobs": (await backend.job_counts()).total,
            "throughput": backend.extensions.history.throughput(),
            "uptime_seconds": int(time.monotonic() - backend.started),
        }

    async def _stats_stream(self, _request: Request) -> Response:
        """Stream the statistics, for pages that show them."""
        return streamed(self._all_stats(), MEDIA_TYPE)

    async def _all_stats(self) -> AsyncIterator[bytes]:
        yield stream_head()
        with self._backend.events.listeners.listening(lambda _event: False) as listener:
            while True:
                found = await self._counted()
                # Pages listen for the event by its name, or for events without one, which are of the type message.
                yield event_text("stats", found) + event_text("message", found)
                try:
                    await listener.next(STREAM_SECONDS)
                except ShuttingDown:
                    return

    async def _history(self, request: Request) -> Response:
        period = request.query.get("period", "5m")
        if period not in PERIODS:
            raise invalid("period", f"must be one of {', '.join(PERIODS)}")
        # What has just been done is within the default time range.
        await self._backend.job_counts()
        await self._backend.extensions.time_jobs()
        until = _moment(request, "until", time.time())
        since = _moment(request, "since", until - HOUR)
        queue = request.query.get("queue") or None
        extensions = self._backend.extensions
        older = await extensions.history_records.hours(since) if since < time.time() - DAY + HOUR else []
        data = extensions.history.periods(PERIODS[period], since, until, queue, older)
        return answer({"period": period, "data": data})

    # --- queues ---

    async def _queues(self, request: Request) -> Response:
        counts = await self._backend.counts()
        names, pagination = page_of(request, await self._backend.queues(), str, default=PER_PAGE, most=MOST_PER_PAGE)
        paused = await paused_among(self._backend.broker, names)
        times = await self._backend.operator_view.times(names, TIMED)
        made = await self._backend.extensions.known_queues.created_at(names)
        items = [
            self._form_of(name, counts, times[name], is_paused=name in paused)
            | ({"created_at": made[name]} if name in made else {})
            for name in names
        ]
        return answer({"items": items, "queues": items, "pagination": pagination})

    async def _queue(self, request: Request) -> Response:
        name = await self._known_queue(request)
        is_paused = await self._backend.jobs.is_paused(name)
        times = (await self._backend.operator_view.times([name], TIMED))[name]
        form = self._form_of(name, await self._backend.counts(), times, is_paused=is_paused)
        return answer(form | await created(self._backend, name) | {"oldest_available_at": times.oldest_at})

    def _form_of(self, name: str, counts: Mapping[tuple[str, str], int], times: QueueTimes, *, is_paused: bool) -> Form:
        own: Form = {state.value: counts.get((name, state.value), 0) for state in State}
        return {
            "name": name,
            "state": "paused" if is_paused else "active",
            "paused": is_paused,
            "counts": own,
            "configuration": shown_config(self._backend, name)["configuration"],
            "throughput": self._backend.extensions.history.throughput(name),
            **({} if times.wait_ms is None else {"latency_ms": dict(zip(PERCENTILES, times.wait_ms, strict=True))}),
        }

    async def _pause(self, request: Request) -> Response:
        name = await self._known_queue(request)
        await self._backend.jobs.pause(name)
        await self._backend.fetcher.refresh_pauses([name])
        return answer({"name": name, "state": "paused", "paused": True, "paused_at": self._backend.now()})

    async def _resume(self, request: Request) -> Response:
        name = await self._known_queue(request)
        await self._backend.jobs.resume(name)
        await self._backend.fetcher.refresh_pauses([name])
        return answer({"name": name, "state": "active", "paused": False, "resumed_at": self._backend.now()})

    async def _known_queue(self, request: Request) -> str:
        name = request.parameters["name"]
        check_queue(name)
        if name not in await self._backend.queues() and not is_configured(self._backend, name):
            raise not_found("queue", name)
        return name

    # --- the system ---

    async def _middleware(self, request: Request) -> Response:
        """List the middleware of this server: it has none, as middleware runs in clients and workers."""
        pagination = pagination_of(0, limit_of(request, PER_PAGE, MOST_PER_PAGE), 0, None)
        return answer({"items": [], "enqueue": [], "execution": [], "pagination": pagination})

    async def _config(self, _request: Request) -> Response:
        backend = self._backend
        return answer(
            {
                "implementation": {"name": "waybill", "version": __version__},
                "backend_id": backend.id,
                "test_mode": backend.is_test,
                "queues": len(await backend.queues()),
                "leases": len(backend.leases),
            }
        )

    async def _audit(self, request: Request) -> Response:
        limit = request.number("limit", request.number("per_page", 50, 1, 1000), 1, 1000)
        found = await entries(self._backend.extensions.records, limit, request.query.get("after", ""))
        return answer({"items": found, "count": len(found)})


def _moment(request: Request, name: str, default: float) -> float:
    text = request.query.get(name)
    if not text:
        return default
    try:
        return parse_timestamp(text, name).timestamp()
    except (InvalidJob, OverflowError, ValueError):
        raise invalid(name, "must be an RFC 3339 time") from None
