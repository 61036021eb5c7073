"""Jobs of tenants outside the queues of the tenant: `meta.tenant_id` names it (ojs-multi-tenancy section 5).

No index knows them, so a search counts those of all tenants, once a server was asked to push one. The counts are used
for a second, and longer if the search was long: it takes a tenth of the time at most, whatever tenants send.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final, NamedTuple

from waybill.backend.job_pages import pages
from waybill.ojs.coordinator.job_store import JobFilter
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.spec.states import TERMINAL, State

FRESH_SECONDS: Final = 1.0
COST: Final = 10
"""A search is repeated after this many times its duration, at the earliest."""
CHEAP_SECONDS: Final = 0.02
PAGE: Final = 500
MOST_EXAMINED: Final = 1_000_000
_MARK: Final = '"tenant_id":"'
OPEN: Final = frozenset(state.value for state in State if state not in TERMINAL)


class _Counted(NamedTuple):
    """The jobs by tenant and state, and when they were counted, by a clock that nobody sets."""

    jobs: Counter[tuple[str, str]]
    at: float
    seconds: float


class SharedJobs:
    """The counts of one server."""

    def __init__(self, view: JobView) -> None:
        self._view = view
        self._counted: _Counted | None = None

    def known(self, tenant: str) -> dict[str, int]:
        """Return the open jobs of a tenant by state, as they were counted last."""
        counted = self._counted
        return {state: 0 if counted is None else counted.jobs[tenant, state] for state in OPEN}

    async def count(self, *, after: float = -1.0) -> float:
        """Count all jobs, if the last time is too long ago, or not `after` that; returns when they were counted."""
        counted, now = self._counted, time.monotonic()
        if counted is not None:
            is_fresh = counted.at > after and now - counted.at < FRESH_SECONDS
            is_dear = counted.seconds > CHEAP_SECONDS and now - counted.at < COST * counted.seconds
            if is_fresh or is_dear:
                return counted.at
        jobs: Counter[tuple[str, str]] = Counter()
        async with aclosing(pages(self._view, JobFilter(states=OPEN, text=_MARK), PAGE, MOST_EXAMINED)) as found:
            async for details in found:
                for one in details:
                    tenant = tenant_named(one.envelope or {})
                    if tenant and not one.info.queue.startswith(f"{tenant}."):
                        jobs[tenant, one.info.state] += 1
        self._counted = _Counted(jobs, now, time.monotonic() - now)
        return now

    def add(self, pushed: Mapping[tuple[str, str], int]) -> None:
        """Add jobs that were pushed since, by tenant and state."""
        if self._counted is not None:
            self._counted.jobs.update(pushed)


def tenant_named(job: Mapping[str, object]) -> str:
    """Return the tenant that a job names, "" for none."""
    meta = job.get("meta")
    found = meta.get("tenant_id") if isinstance(meta, dict) else None
    return found if isinstance(found, str) else ""
