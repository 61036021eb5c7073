"""Workflows: start, list, show, cancel and retry them (ojs-http-binding section 14)."""

from __future__ import annotations

from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, not_found
from waybill.backend.job_form import Form
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import few_skipped, limit_of, pagination_of
from waybill.backend.router import OPERATE, READ, Route
from waybill.backend.workflow_checks import check_workflow
from waybill.backend.workflow_progress import progress_of, reporting_ids
from waybill.backend.workflow_request import definition_of
from waybill.backend.workflows import Workflows
from waybill.ojs.workflow.numbering import is_workflow_id
from waybill.ojs.workflow.progress import WORKFLOW_ENDS, WorkflowState

LIMIT: Final = 50
MOST: Final = 1000
UNSTOPPABLE: Final = frozenset({*WORKFLOW_ENDS, WorkflowState.COMPENSATING})
"""The states in which a workflow cannot be cancelled."""


class WorkflowRoutes:
    """The routes for workflows."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._workflows = Workflows(backend)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("POST", "/ojs/v1/workflows", self._begin, OPERATE),
            Route("GET", "/ojs/v1/workflows", self._list, READ, is_large=True),
            Route("GET", "/ojs/v1/workflows/{id}", self._get, READ, is_large=True),
            Route("GET", "/ojs/v1/workflows/{id}/progress", self._progress, READ),
            Route("DELETE", "/ojs/v1/workflows/{id}", self._cancel, OPERATE),
            Route("POST", "/ojs/v1/workflows/{id}/cancel", self._cancel, OPERATE),
            Route("POST", "/ojs/v1/workflows/{id}/retry", self._retry, OPERATE),
        ]

    async def _begin(self, request: Request) -> Response:
        body = request.json(required=True)
        definition = await definition_of(body, self._backend.jobs.make)
        await check_workflow(definition, self._backend.extensions.schemas, body, request.headers)
        workflow_id = await self._workflows.begin(definition)
        form = await self._known(workflow_id)
        return answer({**form, "workflow": form}, 201, [("Location", f"/ojs/v1/workflows/{workflow_id}")])

    async def _list(self, request: Request) -> Response:
        limit = limit_of(request, LIMIT, MOST)
        skipped = few_skipped(request, limit)
        cursor = request.query.get("cursor", "")
        if cursor and not is_workflow_id(cursor):
            details: Form = {"field": "cursor"}
            raise RequestRefused("invalid_request", "cursor: does not belong to this list.", details=details)
        query = request.query
        found, total = await self._workflows.newest(
            cursor, limit + 1, query.get("state", ""), query.get("name", ""), request.queue_prefix, skipped
        )
        page = found[:limit]
        has_more = len(found) > limit
        pagination = pagination_of(total, limit, skipped, None)
        pagination["has_more"] = has_more
        if has_more:
            pagination["next_cursor"] = page[-1]["id"]
        return answer({"workflows": page, "items": page, "count": len(page), "pagination": pagination})

    async def _get(self, request: Request) -> Response:
        return _answer(await self._known(request.parameters["id"]))

    async def _progress(self, request: Request) -> Response:
        form = await self._known(request.parameters["id"])
        ids = reporting_ids(form)
        for job_id in ids:
            await self._backend.extensions.progress.wait_until_applied(job_id)
        jobs = {job.id: job for job in await self._backend.view.many(ids)}
        return answer(progress_of(form, jobs), headers=[("Cache-Control", "no-cache")])

    async def _cancel(self, request: Request) -> Response:
        workflow_id = request.parameters["id"]
        before = await self._known(workflow_id)
        if before["state"] in UNSTOPPABLE:
            raise _conflict(before, "cancelled")
        await self._workflows.cancel(workflow_id)
        form = await self._known(workflow_id)
        if form["state"] != "cancelled":
            raise _conflict(form, "cancelled")
        states = _states(form)
        counts = {
            "steps_cancelled": states.count("cancelled"),
            "steps_already_completed": states.count("completed"),
        }
        return _answer(form | counts)

    async def _retry(self, request: Request) -> Response:
        workflow_id = request.parameters["id"]
        before = await self._known(workflow_id)
        if before["state"] != "failed":
            raise _conflict(before, "retried")
        await self._workflows.retry(workflow_id)
        return _answer(await self._known(workflow_id))

    async def _known(self, workflow_id: str) -> Form:
        form = await self._workflows.form(workflow_id)
        if form is None:
            raise not_found("workflow", workflow_id)
        return form


def _answer(form: Form) -> Response:
    """Return a workflow under `workflow`, and flat, for other clients."""
    return answer({**form, "workflow": form})


def _states(form: Form) -> list[object]:
    steps = form["steps"]
    return [one.get("state") for one in steps] if isinstance(steps, list) else []


def _conflict(form: Form, what: str) -> RequestRefused:
    details: Form = {"workflow_id": form["id"], "current_state": form["state"]}
    return RequestRefused("conflict", f"A workflow that is {form['state']} cannot be {what}.", details=details)
