"""Jobs: enqueue one or many, look at one, list them, cancel one (ojs-http-binding section 9)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.enqueue import envelope_of, envelopes_of
from waybill.backend.errors import RequestRefused, not_found
from waybill.backend.job_form import TERMINAL, Form, form_of, form_of_push
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import OPERATE, READ, Route
from waybill.ojs.coordinator.job_store import JobDetail
from waybill.ojs.push.publisher import BatchFailed
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.states import State

LIMIT: Final = 50
MOST: Final = 1000
CANCEL_SECONDS: Final = 2.0
"""How long a cancellation waits for a worker elsewhere to end the job."""

_ENQUEUED: Final = "job.enqueued"
_CANCELLED: Final = "job.cancelled"


class JobRoutes:
    """Answers them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return what answers which path."""
        return [
            Route("POST", "/ojs/v1/jobs", self._push, OPERATE),
            Route("POST", "/ojs/v1/jobs/batch", self._push_many, OPERATE),
            Route("GET", "/ojs/v1/jobs", self._list, READ),
            Route("GET", "/ojs/v1/jobs/{id}", self._get, READ),
            Route("DELETE", "/ojs/v1/jobs/{id}", self._cancel, OPERATE),
        ]

    # Enqueue. ---------------------------------------------------------------------------------------------------

    async def _push(self, request: Request) -> Response:
        body = request.json(required=True)
        job = envelope_of(body)
        job_id = str(job["id"])
        self._backend.jobs.check(job)
        await self._refuse_known([job_id] if body.get("id") is not None else [])
        await self._backend.know_queue(_queue_of(job))
        async with self._backend.folded([(_ENQUEUED, job_id)], is_certain=True):
            pushed = await self._backend.jobs.push_job(job)
            envelope = pushed.envelope
            if envelope is None or envelope.id != job_id:
                self._backend.view.forget(_ENQUEUED, job_id)
        if envelope is None or envelope.id != job_id:
            # It is there already, and its policy says to leave it at that.
            found = await self._known(pushed.id)
            return answer(_twice(form_of(found, datetime.now(UTC))) | {"duplicate": True})
        form = _form_of(envelope)
        return answer(_twice(form), 201, [("Location", f"/ojs/v1/jobs/{envelope.id}")])

    async def _push_many(self, request: Request) -> Response:
        body = request.json(required=True)
        jobs = envelopes_of(body)
        for index, job in enumerate(jobs):
            try:
                self._backend.jobs.check(job)
            except ValueError as error:
                details: dict[str, object] = {"index": index, "field": getattr(error, "field", "")}
                text = f"The job at index {index} is not valid: {error}."
                raise RequestRefused("invalid_request", text, details=details) from error
        given = body["jobs"]
        own = (
            [one["id"] for one in given if isinstance(one, Mapping)]
            if isinstance(given, list) and any(isinstance(one, Mapping) and one.get("id") is not None for one in given)
            else []
        )
        await self._refuse_known([one for one in own if isinstance(one, str)])
        for queue in {_queue_of(job) for job in jobs}:
            await self._backend.know_queue(queue)
        ids = [str(job["id"]) for job in jobs]
        async with self._backend.folded([(_ENQUEUED, job_id) for job_id in ids], is_certain=True):
            try:
                envelopes = await self._backend.jobs.push_many(jobs)
            except BatchFailed as error:
                raise _partly(error) from error
            pushed = {envelope.id for envelope in envelopes}
            for job_id in set(ids) - pushed:
                self._backend.view.forget(_ENQUEUED, job_id)
        forms = [_form_of(envelope) for envelope in envelopes]
        return answer({"jobs": forms, "count": len(forms)}, 201)

    async def _refuse_known(self, job_ids: list[str]) -> None:
        """Refuse ids of clients' own that are taken: what is told twice is enqueued once."""
        if job_ids:
            known = await self._backend.view.many(job_ids)
            if known:
                details: dict[str, object] = {"existing_job_id": known[0].id, "existing_state": known[0].state}
                raise RequestRefused("duplicate", f"There is a job with the id {known[0].id} already.", details=details)

    # Look. ------------------------------------------------------------------------------------------------------

    async def _get(self, request: Request) -> Response:
        return answer(_twice(form_of(await self._known(request.parameters["id"]), datetime.now(UTC))))

    async def _list(self, request: Request) -> Response:
        """Return the newest jobs of a queue, or of each, that match the filters."""
        query = request.query
        limit = request.number("limit", LIMIT, 1, MOST)
        queues = [query["queue"]] if query.get("queue") else await self._backend.queues()
        now = datetime.now(UTC)
        forms: list[Form] = []
        for queue in queues:
            infos = await self._backend.view.newest(queue, None, MOST)
            details = await self._backend.view.details([info.id for info in infos])
            forms += [form for detail in details if _matches(form := form_of(detail, now), query)]
        forms.sort(key=lambda form: str(form.get("enqueued_at", "")), reverse=True)
        page = forms[:limit]
        pagination = {"total": len(forms), "limit": limit, "offset": 0, "has_more": len(forms) > limit}
        return answer({"jobs": page, "items": page, "pagination": pagination})

    # Cancel. ----------------------------------------------------------------------------------------------------

    async def _cancel(self, request: Request) -> Response:
        job_id = request.parameters["id"]
        detail = await self._known(job_id)
        before = form_of(detail, datetime.now(UTC))["state"]
        if before in TERMINAL:
            details: dict[str, object] = {"job_id": job_id, "current_state": before}
            raise RequestRefused("conflict", f"A job that is {before} cannot be cancelled.", details=details)
        cancelled = self._backend.view.expect(_CANCELLED, job_id)
        await self._backend.coordinator.cancel(job_id, detail.info.queue)
        if not (await asyncio.wait([cancelled], timeout=CANCEL_SECONDS))[0]:
            self._backend.view.forget(_CANCELLED, job_id)
        form = form_of(await self._known(job_id), datetime.now(UTC))
        if form["state"] in TERMINAL - {State.CANCELLED.value}:
            details = {"job_id": job_id, "current_state": form["state"]}
            raise RequestRefused("conflict", f"The job has ended meanwhile: it is {form['state']}.", details=details)
        return answer(_twice(form | {"previous_state": before, "cancel_requested": True}))

    async def _known(self, job_id: str) -> JobDetail:
        detail = await self._backend.detail(job_id)
        if detail is None:
            raise not_found("job", job_id)
        return detail


def _form_of(envelope: Envelope) -> Form:
    return form_of_push(envelope, msgspec.json.decode(envelope.encode(), type=dict[str, object]))


def _twice(form: Form) -> Form:
    """Return a job under its name, for the text's clients, and flat, for others."""
    return {**form, "job": form}


def _queue_of(job: Form) -> str:
    queue = job.get("queue", "default")
    return queue if isinstance(queue, str) else "default"


def _matches(form: Form, query: Mapping[str, str]) -> bool:
    states = {one for one in query.get("state", "").split(",") if one}
    return (not states or form["state"] in states) and query.get("type") in {None, "", form["type"]}


def _partly(error: BatchFailed) -> Exception:
    """Say what became of a batch of which the broker took a part: AMQP has no batches that are all or nothing."""
    if not error.pushed:
        return error.failures[0]
    details: dict[str, object] = {
        "failed": [{"job_id": one.job_id, "code": one.code} for one in error.failures],
        "enqueued": [one.id for one in error.pushed],
    }
    return RequestRefused("backend_error", f"{len(error.failures)} jobs were not enqueued.", details=details)
