"""The list of a tenant's jobs: those in its queues, and those in others that name it."""

from __future__ import annotations

import functools
import time
from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.job_form import Form, form_of
from waybill.backend.job_list import list_jobs, total_of, wanted_of
from waybill.backend.message import Request
from waybill.backend.pages import cursor_of, few_skipped, limit_of, pagination_of
from waybill.backend.shared_jobs import tenant_named
from waybill.backend.tenancy import prefix_of
from waybill.ojs.coordinator.job_store import JobDetail, JobFilter, JobStore
from waybill.ojs.spec.states import State

PAGE: Final = 20_000
LOOK_SECONDS: Final = 1.0
"""How long to search for a page: if little matches, clients continue with the cursor."""


async def list_tenant_jobs(backend: Backend, request: Request, tenant: str) -> tuple[list[Form], Form]:
    """Return a page of jobs, newest first, and its pagination. Raises RequestRefused.

    An index has the jobs in the queues of the tenant; no others are looked for before a server was asked to push one.
    """
    shared = backend.extensions.push_checks.tenants.shared
    if not shared.is_in_use:
        request.queue_prefix = prefix_of(tenant)
        return await list_jobs(backend, request)
    wanted, states = wanted_of(request)
    wanted = wanted._replace(tenant=tenant)
    limit, cursor = limit_of(request), cursor_of(request)
    skipped, now = few_skipped(request, limit), datetime.now(UTC)
    most, before, ends_at = skipped + limit, cursor, time.monotonic() + LOOK_SECONDS
    found: list[Form] = []
    while len(found) <= most:
        details, before = await backend.view.read(functools.partial(_page, wanted, before, most + 1))
        forms = [form_of(one, now) for one in details]
        found += [one for one in forms if _is_of(one, tenant) and (not states or one["state"] in states)]
        if not before or time.monotonic() > ends_at:
            break
    page = found[skipped:most]
    next_key = str(page[-1]["id"]) if len(found) > most else before or None
    is_whole = next_key is None and not cursor
    total = len(found) if is_whole else await _total(backend, wanted._replace(prefix=prefix_of(tenant)), states, tenant)
    return page, pagination_of(total, limit, skipped, next_key)


def _page(wanted: JobFilter, before: str, limit: int, store: JobStore) -> tuple[list[JobDetail], str]:
    return store.search(wanted, before, limit, PAGE)


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
    return str(form["queue"]).startswith(prefix_of(tenant)) or tenant_named(form) == tenant
