"""Jobs for operators: search, show, cancel and retry them (ojs-admin-api section 7)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.bulk import cancel_one, refusal_of, retry
from waybill.backend.errors import RequestRefused, invalid, not_seen_yet
from waybill.backend.job_form import DEFAULT_POLICY, Form, form_of, times_of
from waybill.backend.job_list import list_jobs
from waybill.backend.job_search import filter_of, search
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_by_place
from waybill.backend.router import OPERATE, READ, Route
from waybill.ojs.coordinator.job_store import PAGE_BYTES

PER_PAGE: Final = 20
MOST_PER_PAGE: Final = 100
AT_A_TIME: Final = 10
SORTED_BY: Final = frozenset({"created_at", "scheduled_at", "priority"})
_SLOW: Final = frozenset({"type", "since", "until", "tenant", "sort", "order"})
FILTERS: Final = ("queue", "state", "type", "since", "until", "tenant")


class AdminJobRoutes:
    """The routes for jobs of operators."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/ojs/v1/admin/jobs", self._list, READ, is_large=True),
            Route("GET", "/ojs/v1/admin/jobs/{id}", self._get, READ),
            Route("POST", "/ojs/v1/admin/jobs/{id}/cancel", self._cancel, OPERATE),
            Route("POST", "/ojs/v1/admin/jobs/{id}/retry", self._retry, OPERATE),
        ]

    async def _list(self, request: Request) -> Response:
        query = request.query
        if not set(query) & _SLOW:
            items, pagination = await list_jobs(self._backend, request, PER_PAGE, MOST_PER_PAGE)
            return answer({"items": items, "jobs": items, "pagination": pagination})
        field, order = query.get("sort") or "created_at", query.get("order") or "desc"
        if field not in SORTED_BY:
            raise invalid("sort", f"must be one of {', '.join(sorted(SORTED_BY))}")
        if order not in {"asc", "desc"}:
            raise invalid("order", "must be asc or desc")
        wanted = filter_of({name: query[name] for name in FILTERS if query.get(name)})
        found = await search(self._backend, wanted)
        if field == "priority":
            found.sort(key=_priority, reverse=order == "desc")
        elif field == "scheduled_at":
            found.sort(key=lambda form: str(form.get("scheduled_at", "")), reverse=order == "desc")
        elif order == "asc":
            found.reverse()
        page, pagination = page_by_place(request, found, default=PER_PAGE, most=MOST_PER_PAGE)
        items = await self._whole(page)
        return answer({"items": items, "jobs": items, "pagination": pagination})

    async def _whole(self, found: list[Form]) -> list[Form]:
        """Return jobs of a search with their arguments and results, the rest without where these are too large."""
        whole: list[Form] = []
        size = 0
        for start in range(0, len(found), AT_A_TIME):
            part = [str(form["id"]) for form in found[start : start + AT_A_TIME]]
            for form in [form_of(one, datetime.now(UTC)) for one in await self._backend.view.details(part)]:
                whole.append(form)
                size += len(msgspec.json.encode(form))
            if size > PAGE_BYTES:
                break
        known = {str(form["id"]): form for form in whole}
        return [known.get(str(form["id"]), form | {"args": [], "args_known": False}) for form in found]

    async def _get(self, request: Request) -> Response:
        form = await self._known(request)
        given = form.get("retry")
        policy = {**DEFAULT_POLICY, **(given if isinstance(given, dict) else {})}
        found: Form = {
            "retry_policy": policy,
            "result": None,
            "errors": [],
            "meta": {},
            **form,
            "metadata": times_of(form),
            "job": form,
        }
        return answer(found)

    async def _cancel(self, request: Request) -> Response:
        form = await self._changeable(request, "cancel")
        after = await cancel_one(self._backend, str(form["id"]), str(form["queue"]))
        return answer({**after, "job": after, "previous_state": form["state"]})

    async def _retry(self, request: Request) -> Response:
        form = await self._changeable(request, "retry")
        why = (await retry(self._backend, [form])).get(str(form["id"]))
        after = await self._known(request)
        if why is not None:
            raise _conflict(after, why)
        if after.get("enqueued_at") == form.get("enqueued_at"):
            raise not_seen_yet(str(form["id"]), form["state"])
        return answer({**after, "job": after, "previous_state": form["state"]})

    async def _changeable(self, request: Request, action: str) -> Form:
        """Return a job that can be changed like this. Raises RequestRefused."""
        form = await self._known(request)
        if why := refusal_of(action, form):
            raise _conflict(form, why)
        return form

    async def _known(self, request: Request) -> Form:
        return form_of(await self._backend.known(request.parameters["id"]), datetime.now(UTC))


def _conflict(form: Form, why: str) -> RequestRefused:
    details: Form = {"job_id": form["id"], "current_state": form["state"]}
    return RequestRefused("conflict", why, details=details)


def _priority(form: Form) -> int:
    value = form.get("priority")
    return value if isinstance(value, int) else 0
