"""Workers for operators: list, quiet and resume them (ojs-admin-api section 9)."""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, invalid, not_found
from waybill.backend.extensions import Directive
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_of
from waybill.backend.router import ADMIN, READ, Route
from waybill.backend.workers import KnownWorker, is_stale
from waybill.ojs.control.worker_directives import direct_worker
from waybill.ojs.spec.control_message import QUIET, TERMINATE, WAKE

PER_PAGE: Final = 20
MOST_PER_PAGE: Final = 100
MOST_JOBS: Final = 500
DIRECTIVES: Final = {
    "quiet": ("quiet", QUIET),
    "terminate": ("terminate", TERMINATE),
    "running": ("running", WAKE),
    "resume": ("running", WAKE),
    "continue": ("running", WAKE),
}
"""By name, the directive of heartbeats and the message to workers over AMQP."""


class AdminWorkerRoutes:
    """The routes for workers of operators."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/ojs/v1/admin/workers", self._workers, READ),
            Route("GET", "/ojs/v1/admin/workers/{id}", self._worker, READ),
            Route("POST", "/ojs/v1/admin/workers/directive", self._direct_many, ADMIN),
            Route("POST", "/ojs/v1/admin/workers/{id}/quiet", self._quiet, ADMIN),
            Route("POST", "/ojs/v1/admin/workers/{id}/resume", self._wake, ADMIN),
            Route("POST", "/ojs/v1/admin/workers/{id}/terminate", self._terminate, ADMIN),
            Route("DELETE", "/ojs/v1/admin/workers/{id}", self._deregister, ADMIN),
        ]

    async def _workers(self, request: Request) -> Response:
        prefix = request.queue_prefix
        found = (one for _, one in sorted(self._backend.workers().items()) if one.takes_from(prefix))
        forms = [self._worker_form(worker, prefix) for worker in found]
        states = [form["state"] for form in forms]
        summary = {"total": len(forms), **{state: states.count(state) for state in ("running", "quiet", "stale")}}
        items, pagination = page_of(request, forms, lambda form: str(form["id"]), default=PER_PAGE, most=MOST_PER_PAGE)
        if request.query.get("jobs") == "true":
            await self._add_jobs(items, prefix)
        return answer({"items": items, "workers": items, "summary": summary, "pagination": pagination})

    async def _add_jobs(self, workers: list[Form], prefix: str) -> None:
        """Add to each worker its running jobs; if there are many, those that were pushed last."""
        jobs: dict[object, list[Form]] = {worker["id"]: [] for worker in workers}
        for job in await self._backend.view.look(lambda store: store.running(MOST_JOBS, prefix)):
            if job.worker_id in jobs:
                jobs[job.worker_id].append({name: value for name, value in job._asdict().items() if value is not None})
        for worker in workers:
            worker["jobs"] = jobs[worker["id"]]

    async def _worker(self, request: Request) -> Response:
        worker = self._one(request)
        jobs: list[Form] = [
            {
                "id": lease.execution.envelope.id,
                "type": lease.execution.envelope.type,
                "queue": lease.execution.queue,
                "attempt": lease.execution.attempt,
                "started_at": lease.started_at,
            }
            for lease in self._backend.leases.of_worker(worker.id)
        ]
        return answer(self._worker_form(worker) | {"jobs": jobs})

    async def _quiet(self, request: Request) -> Response:
        return await self._direct(self._one(request), "quiet", QUIET)

    async def _wake(self, request: Request) -> Response:
        return await self._direct(self._one(request), "running", WAKE)

    async def _terminate(self, request: Request) -> Response:
        """Tell a worker to finish its jobs and stop."""
        return await self._direct(self._one(request), "terminate", TERMINATE)

    async def _direct_many(self, request: Request) -> Response:
        """Send a directive to a worker, to several, or to all that this server knows."""
        body = request.json(required=True)
        unknown = sorted(set(body) - {"worker_id", "worker_ids", "directive"})
        if unknown:
            # A misspelt field would reach more workers than intended.
            raise invalid(unknown[0], "is not a field of a directive")
        directive, message = DIRECTIVES.get(str(body.get("directive")), ("", ""))
        if not directive:
            raise invalid("directive", f"must be one of {', '.join(DIRECTIVES)}")
        known = self._backend.workers()
        ids = body.get("worker_ids", [body["worker_id"]] if "worker_id" in body else list(known))
        if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
            raise invalid("worker_ids", "must be an array of strings")
        missing = next((one for one in ids if one not in known), None)
        if missing is not None:
            raise not_found("worker", missing)
        for worker_id in ids:
            await self._direct(known[worker_id], directive, message)
        return answer({"directive": directive, "worker_ids": ids, "workers_affected": len(ids)})

    async def _direct(self, worker: KnownWorker, directive: str, message: str) -> Response:
        """Send a directive to a worker: over HTTP with the response to its next heartbeat, over AMQP immediately."""
        if worker.protocol == "amqp":
            await direct_worker(self._backend.broker, worker.id, message)
        elif directive == "running":
            await self._backend.extensions.directives.remove(worker.id)
        else:
            await self._backend.extensions.directives.put(worker.id, Directive(directive))
        return answer(self._worker_form(worker) | {"directive": directive})

    async def _deregister(self, request: Request) -> Response:
        worker = self._one(request)
        if not is_stale(worker):
            details: Form = {"worker_id": worker.id, "last_heartbeat_at": worker.last_heartbeat_at}
            raise RequestRefused("conflict", "This worker is still sending heartbeats.", details=details)
        leases = self._backend.leases.of_worker(worker.id)
        for lease in leases:
            self._backend.leases.expire(lease)
        self._backend.extensions.workers.drop(worker.id)
        await self._backend.extensions.directives.remove(worker.id)
        return answer({"deleted": True, "id": worker.id, "jobs_rescheduled": len(leases)})

    def _one(self, request: Request) -> KnownWorker:
        found = self._backend.workers().get(request.parameters["id"])
        if found is None:
            raise not_found("worker", request.parameters["id"])
        return found

    def _worker_form(self, worker: KnownWorker, prefix: str = "") -> Form:
        is_quiet = worker.is_quiet or self._backend.extensions.directives.get(worker.id) is not None
        # The schema of a worker calls its id worker_id, the admin API id.
        form: Form = msgspec.to_builtins(worker) | {"worker_id": worker.id}
        reported = form.pop("reported", {})
        form.pop("is_quiet", None)
        form["queues"] = [queue for queue in worker.queues if queue.startswith(prefix)]
        if isinstance(reported, dict):
            form |= reported
        if worker.protocol == "http":
            form["active_jobs"] = len(self._backend.leases.of_worker(worker.id))
        form.setdefault("active_jobs", 0)
        form["state"] = "stale" if is_stale(worker) else "quiet" if is_quiet else "running"
        return form
