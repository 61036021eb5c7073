"""Maintenance mode (ojs-admin-api section 12.1): workers get no jobs and no schedule fires, but pushes are accepted.

Queues and cron jobs that were not paused before are paused, also for workers over AMQP, and resumed at the end.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.cron_form import form_of_cron
from waybill.backend.errors import invalid
from waybill.backend.extensions import MAINTENANCE, Maintenance
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import ADMIN, READ, Route
from waybill.ojs.errors import CronNotFound, InvalidJob
from waybill.ojs.spec.timestamps import format_timestamp, parse_duration

PATHS: Final = ("/ojs/v1/admin/system/maintenance", "/ojs/v1/admin/maintenance")
"""The specification's, and that of the public command line."""
MOST_REASON: Final = 1000


class MaintenanceRoutes:
    """The routes for maintenance."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            route
            for path in PATHS
            for route in (
                Route("GET", path, self._get, READ),
                Route("POST", path, self._set, ADMIN),
                Route("PUT", path, self._set, ADMIN),
            )
        ]

    async def _get(self, _request: Request) -> Response:
        return answer(_form_of(self._backend.extensions.maintenance.get(MAINTENANCE)))

    async def _set(self, request: Request) -> Response:
        body = request.json(required=True)
        enabled = body.get("enabled")
        if not isinstance(enabled, bool):
            raise invalid("enabled", "must be true or false")
        table = self._backend.extensions.maintenance
        before = table.get(MAINTENANCE)
        if enabled:
            found = await self._read(body, before)
            # First record what to resume at the end, then pause it.
            await table.put(MAINTENANCE, found)
            await self._pause(found)
        elif before is not None:
            await self._resume(before)
            await table.remove(MAINTENANCE)
        return answer(_form_of(table.get(MAINTENANCE)))

    async def _read(self, body: Form, before: Maintenance | None) -> Maintenance:
        reason, duration = body.get("reason", ""), body.get("estimated_duration")
        if not isinstance(reason, str) or len(reason) > MOST_REASON:
            raise invalid("reason", f"must be a string of at most {MOST_REASON} characters")
        end = ""
        if duration is not None:
            try:
                end = format_timestamp(datetime.now(UTC) + parse_duration(str(duration), "estimated_duration"))
            except (InvalidJob, OverflowError):
                raise invalid("estimated_duration", "must be an ISO 8601 duration") from None
        if before is not None:
            return Maintenance(before.enabled_at, reason, end, before.queues, before.crons)
        jobs = self._backend.jobs
        queues = [name for name in await self._backend.job_queues() if not await jobs.is_paused(name)]
        crons = [cron.name for cron in await jobs.crons.list() if form_of_cron(cron)["enabled"]]
        return Maintenance(self._backend.now(), reason, end, queues, crons)

    async def _pause(self, found: Maintenance) -> None:
        for queue in found.queues:
            await self._backend.jobs.pause(queue)
        for name in found.crons:
            await self._change_cron(name, pauses=True)
        await self._backend.fetcher.refresh_pauses(found.queues)

    async def _resume(self, found: Maintenance) -> None:
        for queue in found.queues:
            await self._backend.jobs.resume(queue)
        for name in found.crons:
            await self._change_cron(name, pauses=False)
        await self._backend.fetcher.refresh_pauses(found.queues)

    async def _change_cron(self, name: str, *, pauses: bool) -> None:
        crons = self._backend.jobs.crons
        try:
            await (crons.pause(name) if pauses else crons.resume(name))
        except CronNotFound:
            # It was removed meanwhile.
            return


def _form_of(found: Maintenance | None) -> Form:
    if found is None:
        return {"maintenance": False, "enabled": False}
    form: Form = {"maintenance": True, "enabled": True, "reason": found.reason, "enabled_at": found.enabled_at}
    if found.estimated_end:
        form["estimated_end"] = found.estimated_end
    return form | {"queues_paused": found.queues, "cron_jobs_paused": found.crons}
