"""Bulk operations (ojs-bulk-operations, ojs-admin-api section 8): enqueue, cancel, retry and delete many jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.bulk import DONE, MOST_IDS, Outcome, Selection, apply, refusal_of, select
from waybill.backend.enqueue import envelope_of
from waybill.backend.errors import CODES_OF_JOB_ERRORS, RequestRefused, duplicate_of, invalid
from waybill.backend.job_form import Form, form_of_push
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import ADMIN, OPERATE, Route
from waybill.ojs.errors import DuplicateJob, InvalidJob, PushFailed
from waybill.ojs.push.publisher import BatchFailed
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.server_events import BulkCancelled, BulkDeleted, BulkEnqueued, BulkRetried

ATOMIC: Final = "atomic"
MODES: Final = frozenset({ATOMIC, "partial"})
_ENQUEUED: Final = "job.enqueued"

BulkEnded = BulkEnqueued | BulkCancelled | BulkRetried | BulkDeleted
_EVENTS: Final[dict[str, Callable[[int, int, int], BulkEnded]]] = {
    "cancel": lambda total, done, skipped: BulkCancelled(total=total, cancelled=done, skipped=skipped),
    "retry": lambda total, done, skipped: BulkRetried(total=total, retried=done, skipped=skipped),
    "delete": lambda total, done, skipped: BulkDeleted(total=total, deleted=done, skipped=skipped),
}


class BulkRoutes:
    """The routes for bulk operations."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        routes = [Route("POST", "/ojs/v1/jobs/bulk", self._enqueue, OPERATE)]
        for action, role in (("cancel", OPERATE), ("retry", OPERATE), ("delete", ADMIN)):
            change, change_confirmed = partial(self._change, action), partial(self._change_confirmed, action)
            routes += [
                Route("POST", f"/ojs/v1/jobs/bulk/{action}", change, role),
                Route("POST", f"/ojs/v1/admin/jobs/bulk/{action}", change_confirmed, ADMIN),
            ]
        return routes

    # --- change ---

    async def _change(self, action: str, request: Request) -> Response:
        return await self._changed(action, request, request.json(required=True))

    async def _change_confirmed(self, action: str, request: Request) -> Response:
        return await self._changed(action, request, _confirmed(request), is_admin=True)

    async def _changed(self, action: str, request: Request, body: Form, *, is_admin: bool = False) -> Response:
        is_dry = _flag(body, "dry_run")
        is_atomic = _mode(body) == ATOMIC
        selection = await select(self._backend, body, action)
        if is_dry:
            return answer(_plan(action, selection))
        if is_atomic and (selection.missing or any(refusal_of(action, form) for form in selection.jobs)):
            outcomes = _refused_together(action, selection)
        else:
            outcomes = await apply(self._backend, action, selection)
        done = sum(one.status == DONE[action] for one in outcomes)
        status = 200 if done == len(outcomes) or is_admin else 207 if done else 422
        total, skipped = len(outcomes), sum(one.status == "skipped" for one in outcomes)
        self._tell(request, _EVENTS[action](total, done, skipped))
        headers = [("X-OJS-Batch-Size", str(len(outcomes)))]
        return answer(_summary(action, outcomes, done, has_more=selection.has_more), status, headers)

    # --- enqueue ---

    async def _enqueue(self, request: Request) -> Response:
        body = request.json(required=True)
        given = body.get("jobs")
        if not isinstance(given, list) or not given:
            raise invalid("jobs", "must be an array with at least one job")
        if len(given) > MOST_IDS:
            details: Form = {"code": "BATCH_SIZE_EXCEEDED", "max_batch_size": MOST_IDS, "batch_size": len(given)}
            text = f"This request has {len(given)} jobs: {MOST_IDS} are allowed."
            headers = [("X-OJS-Max-Batch-Size", str(MOST_IDS))]
            raise RequestRefused("payload_too_large", text, details=details, headers=headers)
        mode = _mode(body)
        jobs: dict[int, Form] = {}
        items: dict[int, Form] = {}
        for index, one in enumerate(given):
            try:
                jobs[index] = self._checked(one, jobs)
            except (RequestRefused, InvalidJob) as error:
                items[index] = {"index": index, "status": "failed", "error": _error_of(error, request)}
        own = [str(job["id"]) for index, job in jobs.items() if given[index].get("id") is not None]
        ids = self._backend.extensions.chosen_ids
        async with ids.reserved(own, are_shared=not request.are_ids_made) as taken:
            for info in taken:
                index = next(index for index, job in jobs.items() if job["id"] == info.id)
                del jobs[index]
                job: Form = {"id": info.id, "type": info.type, "state": info.state}
                items[index] = {"index": index, "status": "duplicate", "job": job}
            return await self._enqueue_new(request, jobs, items, mode)

    async def _enqueue_new(
        self, request: Request, jobs: dict[int, Form], items: dict[int, Form], mode: str
    ) -> Response:
        if mode == ATOMIC and items:
            rest: list[Form] = [
                {"index": index, "status": "failed", "error": {"code": "rolled_back", "message": "Others failed."}}
                for index in jobs
            ]
            return self._enqueued(request, [*items.values(), *rest], mode)
        items |= await self._push(jobs, request)
        return self._enqueued(request, list(items.values()), mode)

    def _enqueued(self, request: Request, items: list[Form], atomicity: str) -> Response:
        items.sort(key=lambda item: int(str(item["index"])))
        failed = sum(item["status"] == "failed" for item in items)
        succeeded, total = len(items) - failed, len(items)
        self._tell(request, BulkEnqueued(total=total, succeeded=succeeded, failed=failed, atomicity=atomicity))
        status = 201 if not failed else 207 if succeeded else 422
        found = {"total": total, "succeeded": succeeded, "failed": failed, "items": items}
        return answer(found, status, [("X-OJS-Batch-Size", str(total))])

    def _tell(self, request: Request, data: BulkEnded) -> None:
        """Publish that a bulk operation has ended; the request is its subject."""
        self._backend.broker.events.record(request.id, data)

    def _checked(self, given: object, before: dict[int, Form]) -> Form:
        if not isinstance(given, dict):
            raise RequestRefused("invalid_request", "A job must be an object.")
        job = envelope_of(given)
        self._backend.jobs.check(job)
        if any(one["id"] == job["id"] for one in before.values()):
            raise RequestRefused("duplicate", "Another job of this request has the same id.")
        return job

    async def _push(self, jobs: dict[int, Form], request: Request) -> dict[int, Form]:
        """Push jobs; returns the response for each."""
        backend = self._backend
        for queue in {str(job.get("queue", "default")) for job in jobs.values()}:
            await backend.coordinate_queue(queue)
        ids = [str(job["id"]) for job in jobs.values()]
        failures: Sequence[PushFailed] = ()
        pushed: list[Envelope] = []
        if ids:
            async with backend.folded([(_ENQUEUED, job_id) for job_id in ids], is_certain=True):
                try:
                    pushed = await backend.jobs.push_many(list(jobs.values()))
                except BatchFailed as error:
                    pushed, failures = list(error.pushed), error.failures
                for job_id in set(ids) - {envelope.id for envelope in pushed}:
                    backend.view.forget(_ENQUEUED, job_id)
        made = {one.id: one for one in pushed if not one.is_duplicate}
        existing = iter([one for one in pushed if one.is_duplicate])
        failed = {error.job_id: error for error in failures}
        items: dict[int, Form] = {}
        for index, job in jobs.items():
            job_id = str(job["id"])
            failure = failed.get(job_id)
            if failure is not None:
                items[index] = {"index": index, "status": "failed", "error": _error_of(failure, request)}
            elif job_id in made:
                envelope = made[job_id]
                form = form_of_push(envelope, msgspec.json.decode(envelope.encode(), type=Form))
                items[index] = {"index": index, "status": "created", "job": form}
            else:
                found = next(existing)
                there: Form = {"id": found.id, "type": found.type, "state": found.state}
                items[index] = {"index": index, "status": "duplicate", "job": there}
        return items


def _error_of(error: RequestRefused | InvalidJob | PushFailed, request: Request) -> object:
    if isinstance(error, InvalidJob):
        code = CODES_OF_JOB_ERRORS.get(error.code, "invalid_request")
        error = RequestRefused(code, f"{error}.", details={"field": error.field})
    elif isinstance(error, DuplicateJob):
        error = duplicate_of(error)
    elif isinstance(error, PushFailed):
        error = RequestRefused(CODES_OF_JOB_ERRORS.get(error.code, "backend_error"), f"{error}.")
    return error.body(request.id)["error"]


def _plan(action: str, selection: Selection) -> Form:
    """Return the effect of a dry run."""
    wanted = [form for form in selection.jobs if not refusal_of(action, form)]
    items = [{name: form.get(name) for name in ("id", "type", "queue", "state")} for form in wanted[:MOST_IDS]]
    matched = len(selection.jobs) + len(selection.missing)
    return {
        "dry_run": True,
        "action": action,
        "matched": matched,
        "total_matched": matched,
        "would_change": len(wanted),
        "jobs": items,
        "has_more": selection.has_more,
    }


def _refused_together(action: str, selection: Selection) -> list[Outcome]:
    why = {str(form["id"]): refusal_of(action, form) for form in selection.jobs}
    found = [
        Outcome(job_id, "skipped", text or "Not changed, as other jobs of this request cannot be changed.")
        for job_id, text in why.items()
    ]
    return found + [Outcome(job_id, "failed", "The job does not exist.") for job_id in selection.missing]


def _summary(action: str, outcomes: Sequence[Outcome], done: int, *, has_more: bool) -> Form:
    items = [{"index": index, **msgspec.to_builtins(one)} for index, one in enumerate(outcomes)]
    errors = [{"job_id": one.job_id, "error": one.reason} for one in outcomes if one.reason]
    skipped = sum(one.status == "skipped" for one in outcomes)
    return {
        "action": action,
        "matched": len(outcomes),
        "total_matched": len(outcomes),
        "succeeded": done,
        DONE[action]: done,
        "skipped": skipped,
        "failed": len(outcomes) - done,
        "errors": errors,
        "items": items,
        "has_more": has_more,
    }


def _confirmed(request: Request) -> Form:
    body = request.json(required=True)
    if body.get("confirm") is not True and not _flag(body, "dry_run"):
        raise invalid("confirm", "must be true: this changes many jobs")
    return body


def _flag(body: Form, name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise invalid(name, "must be true or false")
    return value


def _mode(body: Form) -> str:
    mode = body.get("atomicity", "partial")
    if not isinstance(mode, str) or mode not in MODES:
        raise invalid("atomicity", "must be atomic or partial")
    return mode
