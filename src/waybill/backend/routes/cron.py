"""Cron jobs: register, list, show, change, pause, resume, trigger and remove them (ojs-cron section 8).

Registering an existing name changes its cron job, as in ojs-cron, so that applications can register theirs at startup;
in ojs-http-binding section 13.2 it is a conflict.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.cron_form import changed, cron_job_of, form_of_cron, form_of_firing
from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form, form_of
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_of
from waybill.backend.router import OPERATE, READ, Route
from waybill.backend.workflow_checks import check_cron
from waybill.ojs.coordinator.claims import DROPPED, Claim, key_of
from waybill.ojs.coordinator.job_fold import ENQUEUED
from waybill.ojs.coordinator.job_store import JobDetail
from waybill.ojs.cron.cron_fold import DUPLICATE

PUSHED_SECONDS: Final = 2.0
"""How long the answer to a trigger waits until the job is enqueued."""
BASES: Final = ("/ojs/v1/cron", "/ojs/v1/crons")


class CronRoutes:
    """The routes for cron jobs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            route
            for base in BASES
            for route in (
                Route("GET", base, self._list, READ),
                Route("POST", base, self._register, OPERATE),
                Route("GET", f"{base}/{{name}}", self._get, READ),
                Route("PATCH", f"{base}/{{name}}", self._change, OPERATE),
                Route("PUT", f"{base}/{{name}}", self._change, OPERATE),
                Route("DELETE", f"{base}/{{name}}", self._remove, OPERATE),
                Route("GET", f"{base}/{{name}}/history", self._history, READ),
                Route("POST", f"{base}/{{name}}/pause", self._pause, OPERATE),
                Route("POST", f"{base}/{{name}}/resume", self._resume, OPERATE),
                Route("POST", f"{base}/{{name}}/trigger", self._trigger, OPERATE),
            )
        ]

    async def _list(self, request: Request) -> Response:
        wanted = request.query.get("enabled")
        if wanted not in {None, "", "true", "false"}:
            raise invalid("enabled", "must be true or false")
        found = [form_of_cron(info) for info in await self._backend.jobs.crons.list()]
        found = [one for one in found if str(one["name"]).startswith(request.queue_prefix)]
        if wanted:
            found = [one for one in found if one["enabled"] is (wanted == "true")]
        page, pagination = page_of(request, found, lambda one: str(one["name"]), default=1000)
        lists: Form = dict.fromkeys(("crons", "cron_jobs", "entries", "items"), page)
        return answer({**lists, "count": len(page), "pagination": pagination})

    async def _register(self, request: Request) -> Response:
        job = cron_job_of(request.json(required=True))
        check_cron(job, self._backend.extensions.schemas, request.headers)
        await self._backend.coordinate_queue(job.queue)
        outcome = await self._backend.jobs.crons.register(job)
        return await self._answer(job.name, 201 if outcome == "created" else 200)

    async def _get(self, request: Request) -> Response:
        return await self._answer(request.parameters["name"])

    async def _change(self, request: Request) -> Response:
        name, body = request.parameters["name"], request.json(required=True)
        crons = self._backend.jobs.crons
        info = await crons.get(name)
        enabled = body.pop("enabled", None)
        if enabled is not None and not isinstance(enabled, bool):
            raise invalid("enabled", "must be true or false")
        if body:
            job = changed(info, body)
            check_cron(job, self._backend.extensions.schemas, request.headers)
            await self._backend.coordinate_queue(job.queue)
            await crons.register(job)
        if enabled is not None:
            await (crons.resume(name) if enabled else crons.pause(name))
        return await self._answer(name)

    async def _remove(self, request: Request) -> Response:
        name = request.parameters["name"]
        info = await self._backend.jobs.crons.get(name)
        await self._backend.jobs.crons.remove(name)
        return answer(_shown(form_of_cron(info)) | {"deleted": True})

    async def _history(self, request: Request) -> Response:
        """List the last runs, newest first."""
        name = request.parameters["name"]
        runs = [form_of_firing(one) for one in (await self._backend.jobs.crons.get(name)).firings]
        return answer({"name": name, "history": runs, "items": runs, "count": len(runs)})

    async def _pause(self, request: Request) -> Response:
        await self._backend.jobs.crons.pause(request.parameters["name"])
        return await self._answer(request.parameters["name"])

    async def _resume(self, request: Request) -> Response:
        await self._backend.jobs.crons.resume(request.parameters["name"])
        return await self._answer(request.parameters["name"])

    async def _trigger(self, request: Request) -> Response:
        name = request.parameters["name"]
        job_id = await self._backend.jobs.crons.run(name)
        detail = await self._pushed(job_id)
        if detail is None and await self._backend.view.row(key_of(job_id), Claim) is None:
            raise await self._duplicate(name)
        job: Form = {"id": job_id} if detail is None else form_of(detail, datetime.now(UTC))
        return answer({"id": job_id, "job_id": job_id, "name": name, "triggered": True, "job": job}, 201)

    async def _pushed(self, job_id: str) -> JobDetail | None:
        """Return a job that a coordinator pushes, once it is known; None if it is not pushed, or late."""
        view = self._backend.view
        ends = [view.expect(kind, job_id) for kind in (ENQUEUED, DROPPED)]
        claim = await view.row(key_of(job_id), Claim)
        if claim is not None and not claim.is_pushed:
            await asyncio.wait(ends, timeout=PUSHED_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for kind in (ENQUEUED, DROPPED):
            view.forget(kind, job_id)
        return await view.detail(job_id)

    async def _duplicate(self, name: str) -> RequestRefused:
        """Return the refusal of a run whose job is unique and was there already."""
        firings = (await self._backend.jobs.crons.get(name)).firings
        found = next((one.job_id for one in firings if one.reason == DUPLICATE), None)
        details: Form = {"existing_job_id": found}
        return RequestRefused("duplicate", f"The job of cron job {name!r} is unique and exists.", details=details)

    async def _answer(self, name: str, status: int = 200) -> Response:
        return answer(_shown(form_of_cron(await self._backend.jobs.crons.get(name))), status)


def _shown(form: Form) -> Form:
    """Return a cron job under each name that clients read, and flat, except for its expression, which is `cron`."""
    return {**form, "cron": form, "cron_job": form}
