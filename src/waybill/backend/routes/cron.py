"""Cron jobs: register, list, show, pause, resume and remove them (ojs-http-binding section 13)."""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.enqueue import envelope_of
from waybill.backend.errors import RequestRefused
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import OPERATE, READ, Route
from waybill.ojs.cron.definition import OPTIONS, CronInfo, CronJob, read_cron_job

_TEMPLATE: Final = ("type", "args", "meta", "options")


class CronRoutes:
    """Answers them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return what answers which path."""
        return [
            Route("GET", "/ojs/v1/cron", self._list, READ),
            Route("POST", "/ojs/v1/cron", self._register, OPERATE),
            Route("GET", "/ojs/v1/cron/{name}", self._get, READ),
            Route("DELETE", "/ojs/v1/cron/{name}", self._remove, OPERATE),
            Route("POST", "/ojs/v1/cron/{name}/pause", self._pause, OPERATE),
            Route("POST", "/ojs/v1/cron/{name}/resume", self._resume, OPERATE),
            Route("POST", "/ojs/v1/cron/{name}/trigger", self._trigger, OPERATE),
        ]

    async def _list(self, _request: Request) -> Response:
        found = [_form_of(info) for info in await self._backend.jobs.crons.list()]
        return answer({"crons": found, "cron_jobs": found, "entries": found, "count": len(found)})

    async def _register(self, request: Request) -> Response:
        job = _cron_job(request.json())
        await self._backend.know_queue(job.queue)
        await self._backend.jobs.crons.register(job)
        return await self._told(job.name, 201)

    async def _get(self, request: Request) -> Response:
        return await self._told(request.parameters["name"])

    async def _remove(self, request: Request) -> Response:
        name = request.parameters["name"]
        info = await self._backend.jobs.crons.get(name)
        await self._backend.jobs.crons.remove(name)
        return answer(_shown(_form_of(info)) | {"deleted": True})

    async def _pause(self, request: Request) -> Response:
        await self._backend.jobs.crons.pause(request.parameters["name"])
        return await self._told(request.parameters["name"])

    async def _resume(self, request: Request) -> Response:
        await self._backend.jobs.crons.resume(request.parameters["name"])
        return await self._told(request.parameters["name"])

    async def _trigger(self, request: Request) -> Response:
        job_id = await self._backend.jobs.crons.run(request.parameters["name"])
        return answer({"id": job_id, "job_id": job_id, "name": request.parameters["name"]}, 201)

    async def _told(self, name: str, status: int = 200) -> Response:
        return answer(_shown(_form_of(await self._backend.jobs.crons.get(name))), status)


def _cron_job(body: Form) -> CronJob:
    """Make a cron job of what a client sends: flat, or with a template of its jobs. Raises RequestRefused."""
    given = body.get("job_template", body.get("job"))
    template: Form = {name: body[name] for name in _TEMPLATE if name in body}
    if given is not None and not isinstance(given, dict):
        raise RequestRefused("invalid_request", "job_template: must be an object.", details={"field": "job_template"})
    template |= given or {}
    template.setdefault("args", [])
    job = envelope_of(template)
    options = {name: value for name, value in job.items() if name in OPTIONS - {"meta"}}
    if isinstance(body.get("queue"), str):
        options.setdefault("queue", body["queue"])
    made: Form = {
        "cron": body.get("expression", body.get("cron", body.get("schedule"))),
        "type": job["type"],
        "args": job["args"],
        "meta": job.get("meta", {}),
        "options": options,
    }
    for name in ("name", "overlap_policy", "missed_policy", "enabled", "description", "jitter"):
        if body.get(name) is not None:
            made[name] = body[name]
    made["timezone"] = body.get("timezone") or "UTC"
    return read_cron_job(made)


def _form_of(info: CronInfo) -> Form:
    form: Form = msgspec.to_builtins(info)
    form["expression"] = form["schedule"] = info.cron
    form["enabled"] = info.enabled is not False and info.status == "active"
    form["queue"] = info.queue
    form["job_template"] = {"type": info.type, "args": info.args, "meta": info.meta, "options": info.options}
    return {name: value for name, value in form.items() if value is not None}


def _shown(form: Form) -> Form:
    """Return a cron job under each name that clients look for, and flat."""
    return {**form, "cron": form, "cron_job": form}
