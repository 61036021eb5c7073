"""The layer of a federation, used in programs and by the proxy. It has the routes of a server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Final

from waybill import __version__
from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.message import SPEC_VERSION, Request, Response, answer
from waybill.backend.router import OPEN, OPERATE, READ, Route
from waybill.client.service import Service
from waybill.federation.configuration import Federation
from waybill.federation.doubts import Doubts
from waybill.federation.failovers import Failovers
from waybill.federation.fetches import Fetches
from waybill.federation.heartbeats import Heartbeats
from waybill.federation.homes import Homes
from waybill.federation.lookups import Lookups
from waybill.federation.metrics import MEDIA_TYPE, lines_of
from waybill.federation.overview import Overview
from waybill.federation.pushes import Pushes
from waybill.federation.region import HEALTHY
from waybill.federation.regions import Regions
from waybill.federation.routing import Routing
from waybill.federation.wanted import wanted_of

EXTENSION: Final = "urn:ojs:ext:experimental:federation"
DEAD_LETTER: Final = "/ojs/v1/dead-letter"
CAPABILITIES: Final = {"batch_enqueue": True, "dead_letter": True, "pause_resume": True}

_JOB: Final = "/ojs/v1/jobs/{id}"
_ABOUT_JOBS: Final = (
    ("GET", "", READ),
    ("DELETE", "", OPERATE),
    ("POST", "/cancel", OPERATE),
    ("POST", "/activate", OPERATE),
    ("GET", "/result", READ),
    ("GET", "/retries", READ),
    ("GET", "/progress", READ),
    ("PUT", "/progress", OPERATE),
    ("GET", "/checkpoint", READ),
    ("POST", "/checkpoint", OPERATE),
    ("DELETE", "/checkpoint", OPERATE),
)
_ELSEWHERE: Final = ("/ojs/v1/cron", "/ojs/v1/workflows")
"""Features that belong to one region."""


class Layer(Service):
    """A running federation: `async with Layer(federation) as layer: ...`."""

    def __init__(
        self,
        federation: Federation,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        """Nothing is sent before `start`. Raises InvalidFederation for invalid keys and certificates."""
        self.regions = Regions(federation, clock)
        self.routing = Routing(self.regions, chance)
        self.homes = Homes()
        self.doubts = Doubts()
        self.failovers = Failovers(clock)
        self._pushes = Pushes(self.regions, self.routing, self.homes, self.doubts, self.failovers)
        self.fetches = Fetches(self.regions, self.homes)
        self._lookups = Lookups(self.regions, self.homes)
        self._heartbeats = Heartbeats(self.regions, self.homes)
        self._overview = Overview(self.regions)
        self.regions.on_healthy = self.doubts.settle_soon

    async def start(self) -> None:
        """Check all regions, and start regular checks."""
        await self.regions.start()

    async def close(self) -> None:
        """Requeue unused jobs, and close the connections."""
        await self.fetches.close()
        await self.doubts.close()
        await self.regions.close()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            *(
                route
                # As the specification writes the paths, and as all other paths begin.
                for base in ("/v1/federation", "/ojs/v1/federation")
                for route in (
                    Route("GET", f"{base}/regions", self._list_regions, READ),
                    Route("POST", f"{base}/route", self._route, READ),
                    Route("GET", f"{base}/health", self._tell_health, OPEN),
                )
            ),
            Route("GET", "/ojs/federation/backends", self._list_backends, READ),
            Route("GET", "/ojs/federation/stats", self._tell_stats, READ),
            Route("GET", "/metrics", self._tell_metrics, READ),
            Route("GET", "/ojs/manifest", self._tell_manifest, OPEN),
            Route("GET", "/ojs/v1/health", self._tell_server_health, OPEN),
            Route("POST", "/ojs/v1/jobs", self._push, OPERATE),
            Route("POST", "/ojs/v1/jobs/batch", self._push_many, OPERATE),
            Route("GET", "/ojs/v1/jobs", self._list_jobs, READ),
            *(Route(method, f"{_JOB}{rest}", self._about_job, role) for method, rest, role in _ABOUT_JOBS),
            Route("POST", "/ojs/v1/workers/fetch", self._fetch, OPERATE),
            Route("POST", "/ojs/v1/workers/ack", self._end, OPERATE),
            Route("POST", "/ojs/v1/workers/nack", self._end, OPERATE),
            Route("POST", "/ojs/v1/workers/heartbeat", self._beat, OPERATE),
            Route("GET", "/ojs/v1/queues/{name}/stats", self._queue_stats, READ),
            Route("POST", "/ojs/v1/queues/{name}/pause", self._switch_queue, OPERATE),
            Route("POST", "/ojs/v1/queues/{name}/resume", self._switch_queue, OPERATE),
            Route("GET", DEAD_LETTER, self._list_dead_letters, READ),
            Route("GET", f"{DEAD_LETTER}/{{id}}", self._about_dead_letter, READ),
            Route("POST", f"{DEAD_LETTER}/{{id}}/retry", self._about_dead_letter, OPERATE),
            Route("DELETE", f"{DEAD_LETTER}/{{id}}", self._about_dead_letter, OPERATE),
            *(Route(method, path, _refuse, READ) for path in _ELSEWHERE for method in ("GET", "POST")),
        ]

    # --- the federation ---

    def registry(self) -> dict[str, object]:
        """Return the regions with their health (section 10.1)."""
        federation = self.regions.federation
        return {
            "federation_id": federation.federation_id,
            "local_region": federation.local_region,
            "default_strategy": federation.default_strategy,
            "regions": [one.form() for one in self.regions],
        }

    def resolve(self, job: dict[str, Any]) -> dict[str, object]:
        """Return where a job would go (section 10.2). Raises RequestRefused."""
        plan = self.routing.plan(wanted_of(job), is_dry=True)
        target = plan.targets[0].id if plan.targets else None
        return {"target_region": target, "strategy": plan.strategy, "candidates": plan.candidates()}

    async def _list_regions(self, _request: Request) -> Response:
        return answer(self.registry())

    async def _route(self, request: Request) -> Response:
        return answer(self.resolve(request.json(required=True)))

    async def _tell_health(self, _request: Request) -> Response:
        """Return the health; there is no replication lag, because nothing is replicated (section 10.3)."""
        regions = [{"id": one.id, "status": one.status, "replication_lag_ms": None} for one in self.regions]
        healthy = len(self.regions.healthy)
        status = "ok" if healthy == len(self.regions) else "degraded" if healthy else "unhealthy"
        return answer(
            {"status": status, "healthy_regions": healthy, "total_regions": len(self.regions), "regions": regions}
        )

    async def _list_backends(self, _request: Request) -> Response:
        backends = [{"name": one.id, **one.form(), "healthy": one.status == HEALTHY} for one in self.regions]
        return answer({"backends": backends, "count": len(backends)})

    async def _tell_stats(self, _request: Request) -> Response:
        found = await self._overview.stats()
        return answer({**found, "failovers": self.failovers.form(), "doubtful_jobs": len(self.doubts)})

    async def _tell_metrics(self, _request: Request) -> Response:
        text = "\n".join(lines_of(self.regions, self.failovers.counts, len(self.doubts)))
        return Response(200, text.encode(), [("Content-Type", MEDIA_TYPE)])

    async def _tell_manifest(self, _request: Request) -> Response:
        federation = self.regions.federation
        return answer(
            {
                "specversion": SPEC_VERSION,
                "ojs_version": SPEC_VERSION,
                "implementation": {"name": "waybill-federation", "version": __version__, "language": "python"},
                "protocols": ["http"],
                "backend": "federation",
                "capabilities": CAPABILITIES,
                "extensions": [EXTENSION],
                "federation": {"id": federation.federation_id, "regions": [one.id for one in self.regions]},
                "endpoints": {"base_url": "/ojs/v1", "manifest": "/ojs/manifest", "health": "/ojs/v1/health"},
            }
        )

    async def _tell_server_health(self, _request: Request) -> Response:
        is_well = any(one.is_available for one in self.regions)
        body = {
            "status": "ok" if is_well else "degraded",
            "version": SPEC_VERSION,
            "backend": {"type": "federation", "healthy_regions": len(self.regions.healthy)},
        }
        return answer(body, 200 if is_well else 503)

    # --- jobs ---

    async def _push(self, request: Request) -> Response:
        return await self._pushes.push(request)

    async def _push_many(self, request: Request) -> Response:
        return await self._pushes.push_many(request)

    async def _list_jobs(self, request: Request) -> Response:
        return await self._overview.merged(request, "/ojs/v1/jobs", "created_at")

    async def _about_job(self, request: Request) -> Response:
        rest = request.path.removeprefix("/ojs/v1/jobs/").partition("/")[2]
        return await self._lookups.forward(request, "/ojs/v1/jobs", f"/{rest}" if rest else "")

    async def _fetch(self, request: Request) -> Response:
        return await self.fetches.fetch(request.json())

    async def _end(self, request: Request) -> Response:
        body = request.json()
        job_id, worker_id = body.get("job_id", body.get("id")), body.get("worker_id")
        if not isinstance(job_id, str) or not job_id:
            raise invalid("job_id", "must be a string")
        worker = worker_id if isinstance(worker_id, str) else ""
        return await self._lookups.send(job_id, worker, "POST", request.path, request.body)

    async def _beat(self, request: Request) -> Response:
        return await self._heartbeats.beat(request.json())

    # --- queues and dead letters ---

    async def _queue_stats(self, request: Request) -> Response:
        return await self._overview.queue(request.parameters["name"])

    async def _switch_queue(self, request: Request) -> Response:
        action = request.path.rpartition("/")[2]
        return await self._overview.switch(request.parameters["name"], action, request.body)

    async def _list_dead_letters(self, request: Request) -> Response:
        return await self._overview.merged(request, DEAD_LETTER, "discarded_at")

    async def _about_dead_letter(self, request: Request) -> Response:
        rest = "/retry" if request.method == "POST" else ""
        return await self._lookups.forward(request, DEAD_LETTER, rest)


async def _refuse(request: Request) -> Response:
    """Refuse cron jobs and workflows: each belongs to one server."""
    what = "Cron jobs" if request.path.endswith("cron") else "Workflows"
    text = f"{what} are not shared between regions."
    hint = "Use the URL of the region that keeps them. GET /v1/federation/regions lists the regions."
    raise RequestRefused("unsupported", text, hint=hint)
