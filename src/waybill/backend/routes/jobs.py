"""Jobs: enqueue, show, list, activate and cancel them (ojs-http-binding section 9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.bulk import cancel_one
from waybill.backend.end_wait import wait_for_end
from waybill.backend.enqueue import check_sizes, envelope_of, envelopes_of, is_pending
from waybill.backend.errors import RequestRefused, duplicate_of, ended_since, partial_failure
from waybill.backend.job_form import TERMINAL, Form, about_result, form_of, form_of_push
from waybill.backend.job_list import list_jobs
from waybill.backend.message import Request, Response, answer
from waybill.backend.portions import Steps
from waybill.backend.push_group import PushGroups
from waybill.backend.router import OPERATE, READ, Route
from waybill.backend.staging import Staging
from waybill.ojs.errors import DuplicateJob
from waybill.ojs.push.publisher import BatchFailed
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.states import State

WAIT_SECONDS: Final = 30
MOST_WAIT_SECONDS: Final = 60
MOST_RESULTS: Final = 1000
IN_LINE_SECONDS: Final = 5.0
"""How long a batch waits for the batches before it."""
CHECKED_AT_ONCE: Final = 100
"""How many jobs of a batch are checked before other requests get their turn."""

_AGAIN: Final = ("Retry-After", "1")
"""When to look again at a job that has not ended (ojs-results section 8.1)."""
_ENQUEUED: Final = "job.enqueued"
_REPEATED: Final = "x-waybill-repeated"
"""Whether a push has perhaps arrived before. Where it says no, its ids are new: no other request has them."""


class JobRoutes:
    """The routes for jobs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._staging = Staging(backend)
        self._steps = Steps()
        self._line = asyncio.Lock()
        self._groups = PushGroups(backend)

    def routes(self) -> list[Route]:
        """Return the routes."""
        groups = self._groups
        return [
            Route("POST", "/ojs/v1/jobs", self._push, OPERATE, groups.push, groups.shorten),
            Route("POST", "/ojs/v1/jobs/batch", self._push_many, OPERATE, groups.push_many, groups.shorten_many),
            Route("GET", "/ojs/v1/jobs", self._list, READ, is_large=True),
            Route("GET", "/ojs/v1/jobs/{id}", self._get, READ),
            Route("DELETE", "/ojs/v1/jobs/{id}", self._cancel, OPERATE),
            Route("POST", "/ojs/v1/jobs/{id}/cancel", self._cancel, OPERATE),
            Route("POST", "/ojs/v1/jobs/{id}/activate", self._activate, OPERATE),
            Route("GET", "/ojs/v1/jobs/{id}/result", self._result, READ),
            Route("POST", "/ojs/v1/jobs/results", self._results, READ),
            Route("GET", "/ojs/v1/jobs/{id}/retries", self._retries, READ),
        ]

    # --- enqueue ---

    async def _push(self, request: Request) -> Response:
        body = request.json(required=True)
        job = envelope_of(body)
        job_id = str(job["id"])
        self._backend.jobs.check(job)
        async with self._named(request, [job_id] if body.get("id") is not None else []):
            return await self._push_new(body, job, job_id, may_be_there=request.headers.get(_REPEATED) == "true")

    async def _push_new(self, body: Form, job: Form, job_id: str, *, may_be_there: bool) -> Response:
        await self._backend.coordinate_queue(_queue_of(job))
        if is_pending(body):
            return answer(_twice(await self._staging.stage(job)), 201, [("Location", f"/ojs/v1/jobs/{job_id}")])
        async with self._backend.folded([(_ENQUEUED, job_id)], is_certain=True):
            pushed = await self._backend.jobs.push_job(job, may_be_there=may_be_there)
            envelope = pushed.envelope
            if envelope is None or envelope.id != job_id:
                self._backend.view.forget(_ENQUEUED, job_id)
        if envelope is None or envelope.id != job_id:
            # It exists already, and its policy says to ignore the duplicate.
            found = await self._backend.known(pushed.id)
            return answer(_twice(form_of(found, datetime.now(UTC))) | {"duplicate": True, "deduplicated": True})
        self._backend.limits.note_pushed(envelope)
        form = _form_of(envelope)
        return answer(_twice(form), 201, [("Location", f"/ojs/v1/jobs/{envelope.id}")])

    async def _push_many(self, request: Request) -> Response:
        await self._steps.begin()
        check_sizes(request.body)
        body = request.json(required=True)
        jobs = envelopes_of(body)
        for index, job in enumerate(jobs):
            if not index % CHECKED_AT_ONCE:
                await self._steps.begin()
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
        async with self._named(request, [one for one in own if isinstance(one, str)]):
            return await self._push_all_new(request, jobs, given)

    async def _push_all_new(self, request: Request, jobs: list[Form], given: object) -> Response:
        for queue in {_queue_of(job) for job in jobs}:
            await self._backend.coordinate_queue(queue)
        waits = [is_pending(one) for one in given] if isinstance(given, list) else []
        staged = [await self._staging.stage(job) for job, is_staged in zip(jobs, waits, strict=True) if is_staged]
        forms, errors = await self._push_all([job for job, is_staged in zip(jobs, waits, strict=True) if not is_staged])
        by_id = {form["id"]: form for form in (*staged, *forms)}
        found_forms = [by_id.pop(job["id"]) for job in jobs if job["id"] in by_id] + list(by_id.values())
        found: Form = {"jobs": found_forms, "count": len(found_forms)}
        if errors:
            places = {job["id"]: index for index, job in enumerate(jobs)}
            found["errors"] = [
                {"index": places.get(one.job_id), "job_id": one.job_id, **duplicate_of(one).body(request.id)}
                for one in errors
            ]
        return answer(found, 201)

    async def _push_all(self, jobs: list[Form]) -> tuple[list[Form], list[DuplicateJob]]:
        """Enqueue jobs; returns the enqueued or existing ones, and the refused duplicates.

        Raises RequestRefused if all are refused, or if the broker has not accepted some.
        """
        ids = [str(job["id"]) for job in jobs]
        duplicates: list[DuplicateJob] = []
        if not ids:
            return [], duplicates
        async with self._in_line(), self._backend.folded([(_ENQUEUED, job_id) for job_id in ids], is_certain=True):
            await self._steps.begin()
            try:
                envelopes = await self._backend.jobs.push_many(jobs)
            except BatchFailed as error:
                duplicates = [one for one in error.failures if isinstance(one, DuplicateJob)]
                if not error.pushed or len(duplicates) < len(error.failures):
                    raise partial_failure(error.failures, [one.id for one in error.pushed]) from error
                envelopes = list(error.pushed)
            pushed = {envelope.id for envelope in envelopes if not envelope.is_duplicate}
            for job_id in set(ids) - pushed:
                self._backend.view.forget(_ENQUEUED, job_id)
        await self._steps.begin()
        return [await self._form_of_pushed(envelope) for envelope in envelopes], duplicates

    async def _form_of_pushed(self, envelope: Envelope) -> Form:
        """Return the pushed job, or the existing one."""
        if not envelope.is_duplicate:
            self._backend.limits.note_pushed(envelope)
            return _form_of(envelope)
        detail = await self._backend.detail(envelope.id)
        form: Form = {"id": envelope.id} if detail is None else form_of(detail, datetime.now(UTC))
        return form | {"duplicate": True, "deduplicated": True}

    @asynccontextmanager
    async def _in_line(self) -> AsyncIterator[None]:
        """Let one batch at a time be pushed: the jobs of other requests would stand behind those of all batches.

        A broker that does not take one batch keeps the next ones waiting for a limited time.
        """
        try:
            async with asyncio.timeout(IN_LINE_SECONDS):
                await self._line.acquire()
        except TimeoutError:
            yield
            return
        try:
            yield
        finally:
            self._line.release()

    @asynccontextmanager
    async def _named(self, request: Request, job_ids: list[str]) -> AsyncIterator[None]:
        """Reserve the ids that a client has chosen. Raises RequestRefused for existing ones."""
        ids = self._backend.extensions.chosen_ids
        are_shared = not request.are_ids_made and request.headers.get(_REPEATED) != "false"
        async with ids.reserved(job_ids, are_shared=are_shared) as known:
            if known:
                details: dict[str, object] = {"existing_job_id": known[0].id, "existing_state": known[0].state}
                raise RequestRefused("duplicate", f"A job with the id {known[0].id} already exists.", details=details)
            yield

    # --- lookup ---

    async def _get(self, request: Request) -> Response:
        detail = await self._backend.known(request.parameters["id"])
        lease = self._backend.leases.get(detail.info.id)
        if detail.envelope is None and lease is not None:
            # Its events have no arguments, but its message does.
            detail = detail._replace(envelope=msgspec.json.decode(lease.execution.delivery.body))
        form = form_of(detail, datetime.now(UTC)) | about_result(detail.info)
        return answer(_twice(form), headers=[] if form["state"] in TERMINAL else [_AGAIN])

    async def _list(self, request: Request) -> Response:
        page, pagination = await list_jobs(self._backend, request)
        return answer({"jobs": page, "items": page, "count": len(page), "pagination": pagination})

    async def _result(self, request: Request) -> Response:
        """Return the outcome of a job, if it has ended; `wait` waits for the end."""
        job_id = request.parameters["id"]
        await self._backend.known(job_id)
        if request.query.get("wait", "") in {"true", "1"}:
            await wait_for_end(self._backend, job_id, request.number("timeout", WAIT_SECONDS, 0, MOST_WAIT_SECONDS))
        detail = await self._backend.known(job_id)
        form = form_of(detail, datetime.now(UTC))
        error = form.get("error")
        if isinstance(error, dict) and error.get("code") == "RESULT_PRUNED":
            raise RequestRefused("result_pruned", "The result of this job has expired.")
        names = ("state", "result", "error", "completed_at", "discarded_at", "cancelled_at", "attempt")
        found = {name: form[name] for name in names if name in form}
        about: Form = {"result": form.get("result"), **about_result(detail.info)}
        return answer({"id": form["id"], "job_id": form["id"], **found, **about})

    async def _results(self, request: Request) -> Response:
        """Return the outcomes of many jobs: a null result for those that have not ended, null for unknown ones."""
        ids = request.json(required=True).get("ids")
        if not isinstance(ids, list) or len(ids) > MOST_RESULTS or not all(isinstance(one, str) for one in ids):
            text = f"ids: must be an array of at most {MOST_RESULTS} ids."
            raise RequestRefused("invalid_request", text, details={"field": "ids"})
        now = datetime.now(UTC)
        found: dict[str, object] = dict.fromkeys(ids)
        for detail in await self._backend.view.details(list(found)):
            form = form_of(detail, now)
            names = ("state", "result", "error", "completed_at") if form["state"] in TERMINAL else ("state",)
            found[detail.info.id] = {"result": None} | {name: form[name] for name in names if name in form}
        return answer({"results": found})

    async def _retries(self, request: Request) -> Response:
        """List the failed attempts."""
        form = form_of(await self._backend.known(request.parameters["id"]), datetime.now(UTC))
        names = ("state", "attempt", "max_attempts", "next_attempt_at", "retry")
        found = {name: form[name] for name in names if name in form}
        errors = form.get("errors", [])
        return answer({"job_id": form["id"], **found, "retries": errors, "items": errors, "errors": errors})

    # --- cancel ---

    async def _cancel(self, request: Request) -> Response:
        job_id = request.parameters["id"]
        detail = await self._backend.known(job_id)
        before = form_of(detail, datetime.now(UTC))["state"]
        if before in TERMINAL:
            details: dict[str, object] = {"job_id": job_id, "current_state": before}
            raise RequestRefused("conflict", f"A job that is {before} cannot be cancelled.", details=details)
        form = await cancel_one(self._backend, job_id, detail.info.queue)
        return answer(_twice(form | {"previous_state": before, "cancel_requested": True}))

    async def _activate(self, request: Request) -> Response:
        job_id = request.parameters["id"]
        before = form_of(await self._backend.known(job_id), datetime.now(UTC))["state"]
        if before != State.PENDING.value:
            details: dict[str, object] = {"job_id": job_id, "current_state": before}
            text = f"A job that is {before} cannot be activated: only one that is pending can."
            raise RequestRefused("conflict", text, details=details)
        state = await self._staging.activate(job_id)
        form = form_of(await self._backend.known(job_id), datetime.now(UTC))
        if form["state"] == State.CANCELLED.value:
            raise ended_since(job_id, form["state"])
        if form["state"] == before:
            # The broker has it, and the database is late.
            form["state"] = state
        return answer(_twice(form | {"previous_state": before, "activated_at": self._backend.now()}))


def _form_of(envelope: Envelope) -> Form:
    return form_of_push(envelope, msgspec.json.decode(envelope.encode(), type=dict[str, object]))


def _twice(form: Form) -> Form:
    """Return a job under `job`, for clients of the specification, and flat, for others."""
    return {**form, "job": form}


def _queue_of(job: Form) -> str:
    queue = job.get("queue", "default")
    return queue if isinstance(queue, str) else "default"
