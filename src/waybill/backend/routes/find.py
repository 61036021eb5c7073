"""Finding jobs: by parts of what they are, as groups of failures, and why one does not run (for the dashboard)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, invalid, not_found
from waybill.backend.extensions import Directive, Dismissed
from waybill.backend.job_form import Form, form_of
from waybill.backend.job_list import BECOMES, STATES
from waybill.backend.job_search import filter_of
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import cursor_of, limit_of, write_cursor
from waybill.backend.router import ADMIN, OPERATE, READ, Route
from waybill.backend.waiting import why_waiting
from waybill.ojs.coordinator.failure_group import FailureGroup
from waybill.ojs.coordinator.job_store import JobFilter
from waybill.ojs.spec.timestamps import format_timestamp

PER_PAGE: Final = 100
MOST_PER_PAGE: Final = 500
LOOKED_AT: Final = 20_000
"""How many jobs a request looks at for a text: the next one goes on from there."""
GROUPS: Final = 200
PREVIEW: Final = 160
_TEXTS: Final = ("queue", "type", "id", "fingerprint", "text")
_SHOWN: Final = (
    "id", "type", "queue", "state", "attempt", "max_attempts", "priority", "enqueued_at", "scheduled_at",
    "started_at", "completed_at", "cancelled_at", "discarded_at", "next_attempt_at", "worker_id", "progress", "tags",
)  # fmt: skip


class FindRoutes:
    """Answers them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return what answers which path."""
        return [
            Route("GET", "/ojs/v1/admin/search", self._search, READ),
            Route("GET", "/ojs/v1/admin/failures", self._failures, READ),
            Route("POST", "/ojs/v1/admin/failures/{fingerprint}/dismiss", self._dismiss, OPERATE),
            Route("GET", "/ojs/v1/admin/jobs/{id}/why", self._why, READ),
            Route("POST", "/ojs/v1/admin/workers/{id}/terminate", self._terminate, ADMIN),
        ]

    async def _search(self, request: Request) -> Response:
        """Tell of a page of jobs, the newest first, and of how far it has looked."""
        query = request.query
        for name in _TEXTS:
            if not query.get(name, "").isprintable():
                raise invalid(name, "is no text")
        states = frozenset(one for one in query.get("state", "").split(",") if one)
        if not states <= STATES:
            text = f"state: must be one of {', '.join(sorted(STATES))}."
            raise RequestRefused("invalid_request", text, details={"field": "state"})
        limit = limit_of(request, PER_PAGE, MOST_PER_PAGE)
        times = filter_of({name: query[name] for name in ("since", "until") if query.get(name)})
        stored = frozenset(one for state in states for one in BECOMES.get(state, {state}))
        wanted = JobFilter(
            queue=query.get("queue") or None,
            states=stored or None,
            type=query.get("type") or None,
            id_prefix=query.get("id") or None,
            fingerprint=query.get("fingerprint") or None,
            since=None if times.since is None else format_timestamp(times.since),
            until=None if times.until is None else format_timestamp(times.until),
            text=query.get("text") or None,
        )
        cursor = cursor_of(request)
        view = self._backend.view
        found, last = await view.read(lambda store: store.search(wanted, cursor, limit, LOOKED_AT))
        now = datetime.now(UTC)
        forms = [form_of(one, now) for one in found]
        items = [_row(form) for form in forms if not states or form["state"] in states]
        body: Form = {"items": items, "has_more": bool(last), "total": await self._total(wanted, states)}
        if last:
            body["next_cursor"] = write_cursor(last)
        return answer(body)

    async def _total(self, wanted: JobFilter, states: frozenset[str]) -> int | None:
        """Return how many there are by the states that the events tell, None if nobody has counted them."""
        if wanted != JobFilter(wanted.queue, wanted.states):
            return None
        counts = (await self._backend.counts()).items()
        queue = wanted.queue
        return sum(
            count for (name, state), count in counts if queue in {None, name} and (not states or state in states)
        )

    # Failures. --------------------------------------------------------------------------------------------------

    async def _failures(self, request: Request) -> Response:
        groups = await self._backend.view.read(lambda store: store.failures(GROUPS))
        dismissed = self._backend.extensions.dismissed
        shows_all = request.query.get("all") == "true"
        items = []
        for group in groups:
            told = dismissed.get(group.fingerprint)
            is_dismissed = told is not None and group.last_at <= told.until
            if shows_all or not is_dismissed:
                items.append({**msgspec.to_builtins(group), "dismissed": is_dismissed})
        return answer({"items": items, "total": len(items), "has_more": len(groups) == GROUPS})

    async def _dismiss(self, request: Request) -> Response:
        """Show a group no more until it grows."""
        fingerprint = request.parameters["fingerprint"]
        group = await self._group(fingerprint)
        await self._backend.extensions.dismissed.put(fingerprint, Dismissed(group.last_at))
        return answer({**msgspec.to_builtins(group), "dismissed": True})

    async def _group(self, fingerprint: str) -> FailureGroup:
        groups = await self._backend.view.read(lambda store: store.failures(GROUPS))
        found = next((one for one in groups if one.fingerprint == fingerprint), None)
        if found is None:
            raise not_found("group of failures", fingerprint)
        return found

    # One job, one worker. ---------------------------------------------------------------------------------------

    async def _why(self, request: Request) -> Response:
        detail = await self._backend.detail(request.parameters["id"])
        if detail is None:
            raise not_found("job", request.parameters["id"])
        form = form_of(detail, datetime.now(UTC))
        reasons = await why_waiting(self._backend, form)
        return answer({"id": form["id"], "state": form["state"], "reasons": msgspec.to_builtins(reasons)})

    async def _terminate(self, request: Request) -> Response:
        """Tell a worker over HTTP, with its next heartbeat, to finish its jobs and end."""
        worker_id = request.parameters["id"]
        if all(worker.id != worker_id for worker in self._backend.extensions.workers.all()):
            raise not_found("worker", worker_id)
        await self._backend.extensions.directives.put(worker_id, Directive("terminate"))
        return answer({"id": worker_id, "directive": "terminate"})


def _row(form: Form) -> Form:
    """Return what a list shows of a job."""
    row: Form = {name: form[name] for name in _SHOWN if name in form}
    error = form.get("error")
    if isinstance(error, dict):
        row["error"] = {name: str(error.get(name) or "")[:PREVIEW] for name in ("type", "code", "message")}
    if form.get("args_known") is not False:
        row["args_preview"] = msgspec.json.encode(form.get("args")).decode()[:PREVIEW]
    return row
