"""Search for jobs, failure groups, and why a job is not running (for the dashboard)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import not_found
from waybill.backend.extensions import Dismissed
from waybill.backend.job_form import Form, form_of
from waybill.backend.job_query import JobQuery
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import cursor_of, limit_of, write_cursor
from waybill.backend.router import OPERATE, READ, Route
from waybill.backend.why_waiting import why_waiting
from waybill.ojs.coordinator.failure_group import series_of
from waybill.ojs.coordinator.job_store import JobFilter

PER_PAGE: Final = 100
MOST_PER_PAGE: Final = 500
MAX_SEARCHED: Final = 20_000
"""Jobs that one request searches for a text or a time. A request with the cursor continues there."""
ROUNDS: Final = 10
GROUPS: Final = 200
PREVIEW: Final = 160
_SHOWN: Final = (
    "id", "type", "queue", "state", "attempt", "max_attempts", "priority", "enqueued_at", "scheduled_at",
    "started_at", "completed_at", "cancelled_at", "discarded_at", "next_attempt_at", "worker_id", "progress", "tags",
)  # fmt: skip


class SearchRoutes:
    """The routes for searches."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/ojs/v1/admin/search", self._search, READ, is_large=True),
            Route("GET", "/ojs/v1/admin/failures", self._failures, READ),
            Route("POST", "/ojs/v1/admin/failures/{fingerprint}/dismiss", self._dismiss, OPERATE),
            Route("GET", "/ojs/v1/admin/jobs/{id}/why", self._why, READ),
        ]

    async def _search(self, request: Request) -> Response:
        """Return a page of jobs, newest first, and how far the search went."""
        query = JobQuery.read(request.query, request.queue_prefix)
        limit = limit_of(request, PER_PAGE, MOST_PER_PAGE)
        cursor = cursor_of(request)
        items, last = await self._found(query, cursor, limit)
        body: Form = {"items": items, "has_more": bool(last), "total": await self._total(query)}
        if last:
            body["next_cursor"] = write_cursor(last)
        return answer(body)

    async def _found(self, query: JobQuery, cursor: str, limit: int) -> tuple[list[Form], str]:
        """Return the first rows below a cursor, and the next cursor; empty at the end.

        A found job may have changed its state since, and is left out. If too few are left, the query is continued.
        """
        view = self._backend.view
        items: list[Form] = []
        for _ in range(1 if query.wanted.is_looked_for else ROUNDS):
            found, cursor = await view.read(
                lambda store, before=cursor: store.search(query.wanted, before, max(limit, PER_PAGE), MAX_SEARCHED)  # type: ignore[misc]
            )
            items += [_row(form) for form in query.forms(found)]
            if len(items) > limit:
                return items[:limit], str(items[limit - 1]["id"])
            if len(items) == limit or not cursor:
                break
        return items, cursor

    async def _total(self, query: JobQuery) -> int | None:
        """Return the number of jobs by the states in the events, None if it is not counted."""
        wanted, states = query
        if wanted != JobFilter(wanted.queue, wanted.states, prefix=wanted.prefix):
            return None
        counted = (await self._backend.operator_view.counted()).within(wanted.prefix)
        own = counted.total if wanted.queue is None else counted.by_queue.get(wanted.queue, {})
        return sum(count for state, count in own.items() if not states or state in states)

    # --- failures ---

    async def _failures(self, request: Request) -> Response:
        prefix, limit = request.queue_prefix, request.number("limit", GROUPS, 1, GROUPS)
        groups, hours = await self._backend.operator_view.failures(limit, prefix)
        dismissed = self._backend.extensions.dismissed
        shows_all, now = request.query.get("all") == "true", time.time()
        items = []
        for group in groups:
            told = dismissed.get(group.fingerprint)
            is_dismissed = told is not None and group.last_at <= told.until
            if shows_all or not is_dismissed:
                series = series_of(hours[group.fingerprint], now)
                items.append({**msgspec.to_builtins(group), "dismissed": is_dismissed, "series": series})
        return answer({"items": items, "total": len(items), "has_more": len(groups) == limit})

    async def _dismiss(self, request: Request) -> Response:
        """Dismiss a group until it grows."""
        fingerprint, prefix = request.parameters["fingerprint"], request.queue_prefix
        groups = await self._backend.view.read(lambda store: store.failures(GROUPS, prefix))
        group = next((one for one in groups if one.fingerprint == fingerprint), None)
        if group is None:
            raise not_found("group of failures", fingerprint)
        await self._backend.extensions.dismissed.put(fingerprint, Dismissed(group.last_at))
        return answer({**msgspec.to_builtins(group), "dismissed": True})

    # --- one job ---

    async def _why(self, request: Request) -> Response:
        form = form_of(await self._backend.known(request.parameters["id"]), datetime.now(UTC))
        reasons = await why_waiting(self._backend, form)
        return answer({"id": form["id"], "state": form["state"], "reasons": msgspec.to_builtins(reasons)})


def _row(form: Form) -> Form:
    """Return a job as an item of a list."""
    row: Form = {name: form[name] for name in _SHOWN if name in form}
    error = form.get("error")
    if isinstance(error, dict):
        row["error"] = {name: str(error.get(name) or "")[:PREVIEW] for name in ("type", "code", "message")}
    if form.get("args_known") is not False:
        row["args_preview"] = msgspec.json.encode(form.get("args")).decode()[:PREVIEW]
    return row
