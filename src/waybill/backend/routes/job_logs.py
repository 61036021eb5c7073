"""Logs of jobs: append and read them."""

from __future__ import annotations

from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused
from waybill.backend.job_form import Form
from waybill.backend.job_logs import MOST_ENTRIES, SEVERITIES, JobLogs, read_entry, severity_of
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import cursor_of, limit_of, write_cursor
from waybill.backend.router import OPERATE, READ, Route

PATH: Final = "/ojs/v1/jobs/{id}/logs"
LIMIT: Final = 100


class JobLogRoutes:
    """The routes for logs of jobs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route("POST", PATH, self._append, OPERATE), Route("GET", PATH, self._read, READ)]

    async def _append(self, request: Request) -> Response:
        body = request.json(required=True)
        given = body.get("entries", body.get("logs", [body] if "message" in body else None))
        if not isinstance(given, list) or not 0 < len(given) <= MOST_ENTRIES:
            details: Form = {"field": "entries"}
            text = f"entries: must be an array of 1 to {MOST_ENTRIES} log records."
            raise RequestRefused("invalid_request", text, details=details)
        job = (await self._backend.known(request.parameters["id"])).info
        known = {"job_id": job.id, "job_type": job.type, "queue": job.queue, "worker_id": job.worker_id}
        told: Form = {name: value for name, value in known.items() if value} | {"attempt": job.attempt}
        now = self._backend.now()
        entries = [read_entry(one, told, now, index) for index, one in enumerate(given)]
        made = await JobLogs(self._backend.extensions.records).append(job.id, entries)
        return answer({"job_id": job.id, "appended": len(made), "entries": made}, 201)

    async def _read(self, request: Request) -> Response:
        level = request.query.get("level") or request.query.get("severity") or "TRACE"
        least = SEVERITIES[severity_of(level, "level")]
        limit, after = limit_of(request, LIMIT), cursor_of(request)
        job = (await self._backend.known(request.parameters["id"])).info
        found, has_more = await JobLogs(self._backend.extensions.records).read(job.id, least, after, limit)
        pagination: Form = {"limit": limit, "has_more": has_more}
        if has_more:
            pagination["next_cursor"] = write_cursor(str(found[-1]["id"]))
        return answer(
            {"job_id": job.id, "entries": found, "items": found, "count": len(found), "pagination": pagination}
        )
