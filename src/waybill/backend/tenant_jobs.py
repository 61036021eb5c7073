"""The list of a tenant's jobs: those in its queues, and those in others that name it."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.job_form import Form, form_of
from waybill.backend.job_list import total_of, wanted_of
from waybill.backend.job_pages import pages
from waybill.backend.message import Request
from waybill.backend.pages import cursor_of, few_skipped, limit_of, pagination_of
from waybill.backend.shared_jobs import tenant_named
from waybill.ojs.coordinator.job_store import JobFilter
from waybill.ojs.spec.states import State

PAGE: Final = 500
MOST_EXAMINED: Final = 200_000
"""The number of newest jobs to search for one page."""


async def list_tenant_jobs(backend: Backend, request: Request, tenant: str) -> tuple[list[Form], Form]:
    """Return a page of jobs, newest first, and its pagination. Raises RequestRefused."""
    wanted, states = wanted_of(request)
    wanted = wanted._replace(tenant=tenant)
    limit, before = limit_of(request), cursor_of(request)
    skipped, now = few_skipped(request, limit), datetime.now(UTC)
    found: list[Form] = []
    async with aclosing(pages(backend.view, wanted, PAGE, MOST_EXAMINED, before)) as parts:
        async for details in parts:
            forms = [form_of(one, now) for one in details]
            found += [one for one in forms if _is_of(one, tenant) and (not states or one["state"] in states)]
            if len(found) > skipped + limit:
                break
    page, has_more = found[skipped : skipped + limit], len(found) > skipped + limit
    is_whole = not has_more and not before
    total = len(found) if is_whole else await _total(backend, wanted._replace(prefix=f"{tenant}."), states, tenant)
    return page, pagination_of(total, limit, skipped, str(page[-1]["id"]) if has_more else None)


async def _total(backend: Backend, wanted: JobFilter, states: set[str], tenant: str) -> int | None:
    """Return about how many jobs there are, by the counts of the tenant's queues and of the others; None if unknown."""
    if wanted.type is not None or wanted.queue is not None:
        return None
    shared = backend.extensions.push_checks.tenants.shared
    await shared.look()
    completed, failed = shared.ended(tenant)
    others = shared.known(tenant) | {State.COMPLETED.value: completed, State.DISCARDED.value: failed}
    own = await total_of(backend, wanted, states)
    return own + sum(count for state, count in others.items() if not states or state in states)


def _is_of(form: Form, tenant: str) -> bool:
    return str(form["queue"]).startswith(f"{tenant}.") or tenant_named(form) == tenant
