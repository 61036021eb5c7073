"""Lists of jobs with filters, a page at a time.

Jobs are ordered by id, newest first: ids never change, so pages are stable while states change.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.job_form import Form, form_of
from waybill.backend.message import Request
from waybill.backend.pages import LIMIT, MOST, cursor_of, limit_of, offset_of, pagination_of
from waybill.ojs.coordinator.job_store import JobDetail, JobFilter
from waybill.ojs.spec.states import State

STATES: Final = frozenset(state.value for state in State)
PAGE: Final = 500
MOST_PAGES: Final = 40
"""The maximum number of store pages per request: if little matches, clients continue with the cursor."""

_LATER: Final = {State.SCHEDULED.value, State.RETRYABLE.value}
STORED_STATES: Final = {
    State.AVAILABLE.value: {State.AVAILABLE.value, *_LATER},
    State.DISCARDED.value: {State.DISCARDED.value, State.AVAILABLE.value, *_LATER},
}
"""The states in the events of jobs whose current state may be different."""


async def list_jobs(
    backend: Backend, request: Request, default: int = LIMIT, most: int = MOST
) -> tuple[list[Form], Form]:
    """Return a page of jobs and its pagination. Raises RequestRefused."""
    wanted, states = wanted_of(request)
    worker = request.query.get("worker_id", "")
    limit = limit_of(request, default, most)
    cursor = cursor_of(request)
    skipped = 0 if cursor else offset_of(request, limit)
    found, is_over = await _find(backend, wanted, cursor, skipped, limit, (states, worker))
    page = found[:limit]
    last = page[-1] if page else None
    more = len(found) > limit or not is_over
    next_key = str(last["id"]) if more and last is not None else None
    total = await total_of(backend, wanted, states) if wanted.type is None and not worker else None
    return page, pagination_of(total, limit, skipped, next_key)


def wanted_of(request: Request) -> tuple[JobFilter, set[str]]:
    """Return the filter of a request, and the states that the found jobs must have. Raises RequestRefused."""
    query = request.query
    states = {one for name in ("state", "states") for one in query.get(name, "").split(",") if one}
    if not states <= STATES:
        details: Form = {"field": "state"}
        text = f"state: must be one of {', '.join(sorted(STATES))}."
        raise RequestRefused("invalid_request", text, details=details)
    for name in ("queue", "type"):
        if not query.get(name, "").isprintable():
            raise invalid(name, "is not a valid name")
    stored = frozenset(one for state in states for one in STORED_STATES.get(state, {state}))
    wanted = JobFilter(query.get("queue") or None, stored or None, query.get("type") or None, request.queue_prefix)
    return wanted, states


async def _find(
    backend: Backend, wanted: JobFilter, before: str, skipped: int, limit: int, also: tuple[set[str], str]
) -> tuple[list[Form], bool]:
    """Return the matching jobs after the skipped ones, one more than `limit` or fewer, and whether these are all."""
    states, worker = also
    now = datetime.now(UTC)
    found: list[Form] = []
    for _ in range(MOST_PAGES):
        size = min(PAGE, skipped + limit + 1 - len(found)) if not states and not worker else PAGE
        details, before = await _page(backend, wanted, before, size)
        forms = [form for form in (form_of(detail, now) for detail in details) if _fits(form, states, worker)]
        found += forms[skipped:]
        skipped = max(0, skipped - len(forms))
        if not before:
            return found, True
        # Large jobs end a page early.
        if len(found) > limit or (found and len(details) < size):
            break
    return found, False


def _fits(form: Form, states: set[str], worker: str) -> bool:
    return (not states or form["state"] in states) and worker in {"", form.get("worker_id")}


async def _page(backend: Backend, wanted: JobFilter, before: str, limit: int) -> tuple[list[JobDetail], str]:
    return await backend.view.read(lambda store: store.page(wanted, before, limit))


async def total_of(backend: Backend, wanted: JobFilter, states: set[str]) -> int:
    """Return the number of jobs, by the states in the events."""
    counts = await backend.counts()
    return sum(
        count
        for (name, state), count in counts.items()
        if wanted.queue in {None, name} and name.startswith(wanted.prefix) and (not states or state in states)
    )
