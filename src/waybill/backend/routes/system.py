"""The manifest, health and events (ojs-http-binding sections 8 and 21, ojs-events section 7)."""

from __future__ import annotations

from typing import Final

from waybill import __version__
from waybill.backend.backend import Backend
from waybill.backend.capabilities import extensions_of
from waybill.backend.compression import CODINGS
from waybill.backend.health import Health
from waybill.backend.message import SPEC_VERSION, Request, Response, answer
from waybill.backend.pages import cursor_of, few_skipped, limit_of, pagination_of
from waybill.backend.router import OPEN, READ, Route
from waybill.backend.server.limits import MAX_BODY_BYTES
from waybill.ojs.spec.envelope import MAX_META_BYTES, MAX_QUEUE_LENGTH, MAX_TYPE_LENGTH

LIMIT: Final = 100
MOST: Final = 1000

CAPABILITIES: Final = {
    "batch_enqueue": True,
    "cron_jobs": True,
    "dead_letter": True,
    "delayed_jobs": True,
    "job_ttl": True,
    "priority_queues": True,
    "rate_limiting": True,
    "schema_validation": True,
    "unique_jobs": True,
    "workflows": True,
    "pause_resume": True,
}


class SystemRoutes:
    """The routes for the server."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._health = Health(backend)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/ojs/manifest", self._manifest, OPEN),
            Route("GET", "/ojs/v1/health", self._tell_health, OPEN),
            Route("GET", "/ojs/v1/events", self._events, READ, is_large=True),
        ]

    async def _manifest(self, _request: Request) -> Response:
        region = self._backend.region
        return answer(
            {
                "specversion": SPEC_VERSION,
                "ojs_version": SPEC_VERSION,
                "implementation": {
                    "name": "waybill",
                    "version": __version__,
                    "language": "python",
                },
                "conformance_level": 4,
                "conformance_tier": "runtime",
                "schema_validation": True,
                "unique_job_strength": "strong",
                "protocols": ["http", "amqp"],
                "backend": "amqp",
                "capabilities": CAPABILITIES,
                "extensions": extensions_of(region),
                **({} if region is None else {"region": region}),
                "payload_limits": {
                    "max_envelope_bytes": MAX_BODY_BYTES,
                    "max_meta_bytes": MAX_META_BYTES,
                    "max_queue_name_bytes": MAX_QUEUE_LENGTH,
                    "max_job_type_bytes": MAX_TYPE_LENGTH,
                    "supported_compression": CODINGS,
                    "external_references": True,
                    "chunking": False,
                    "per_queue_limits": False,
                },
                "endpoints": {"base_url": "/ojs/v1", "manifest": "/ojs/manifest", "health": "/ojs/v1/health"},
            }
        )

    async def _tell_health(self, _request: Request) -> Response:
        form, is_well = await self._health.look()
        return answer(form, 200 if is_well else 503)

    async def _events(self, request: Request) -> Response:
        types, queues = request.listed("types"), request.listed("queues")
        limit = limit_of(request, LIMIT, MOST)
        skipped = few_skipped(request, limit)
        subject = request.query.get("subject") or request.query.get("job_id")
        cursor = cursor_of(request)
        most = skipped + limit + 1
        found = await self._backend.events.newest(types, queues, subject, most, request.queue_prefix, cursor)
        page, has_more = found[skipped : most - 1], len(found) == most
        pagination = pagination_of(None, limit, skipped, str(page[-1]["id"]) if has_more else None)
        return answer({"events": page, "items": page, "count": len(page), "pagination": pagination})
