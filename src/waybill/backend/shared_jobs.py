"""Jobs of tenants outside the queues of the tenant: `meta.tenant_id` names it (ojs-multi-tenancy section 5).

No index knows them, so a search counts those of all tenants, once a server was asked to push one. The counts are used
for a second, and longer if the search was long: it takes a tenth of the time at most, whatever tenants send. Operators
get what is known if it takes longer than LOOK_SECONDS.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from waybill.backend.job_pages import pages
from waybill.ojs.coordinator.job_store import JobFilter
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.spec.states import TERMINAL, State
from waybill.ojs.spec.timestamps import format_timestamp

FRESH_SECONDS: Final = 1.0
COST: Final = 10
"""A search is repeated after this many times its duration, at the earliest."""
CHEAP_SECONDS: Final = 0.02
PAGE: Final = 20_000
"""Each page costs a look at all ids."""
MOST_EXAMINED: Final = 1_000_000
MOST_ENDED: Final = 200_000
"""The number of ended jobs to examine."""
LOOK_SECONDS: Final = 1.0
"""How long an operator waits for the counts."""
_MARK: Final = '"tenant_id":"'
OPEN: Final = frozenset(state.value for state in State if state not in TERMINAL)
_ENDED: Final = frozenset({State.COMPLETED.value, State.DISCARDED.value})


class _Counted(NamedTuple):
    """The jobs by tenant and state, and when they were counted, by a clock that nobody sets."""

    jobs: Counter[tuple[str, str]]
    at: float
    seconds: float


class SharedJobs:
    """The counts of one server."""

    def __init__(self, view: JobView) -> None:
        self._view = view
        self.is_in_use = False
        """Whether this server was asked to push such a job of a tenant with settings."""
        self._looking: asyncio.Task[None] | None = None
        self._open: _Counted | None = None
        self._ended: _Counted | None = None

    def known(self, tenant: str) -> dict[str, int]:
        """Return the open jobs of a tenant by state, as they were counted last."""
        counted = self._open
        return {state: 0 if counted is None else counted.jobs[tenant, state] for state in OPEN}

    def ended(self, tenant: str) -> tuple[int, int]:
        """Return how many jobs of a tenant were enqueued and completed, or finally failed, within a day."""
        if self._ended is None:
            return 0, 0
        jobs = self._ended.jobs
        return jobs[tenant, State.COMPLETED.value], jobs[tenant, State.DISCARDED.value]

    async def look(self) -> None:
        """Count all jobs for an operator, who wants to see what has just happened."""
        if not self.is_in_use:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.wait([self._looking], timeout=LOOK_SECONDS)

    async def close(self) -> None:
        """End a search."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> None:
        now = time.monotonic()
        await self.count(after=now)
        if not _is_usable(self._ended, now):
            day_ago = datetime.now(UTC) - timedelta(days=1)
            wanted = JobFilter(states=_ENDED, text=_MARK, since=format_timestamp(day_ago))
            self._ended = await self._count(wanted, MOST_ENDED, _first_id(day_ago))

    async def count(self, *, after: float = -1.0) -> float:
        """Count the open jobs, if the last time is too long ago, or not `after` that; returns when that was."""
        if self._open is None or not _is_usable(self._open, after):
            self._open = await self._count(JobFilter(states=OPEN, text=_MARK), MOST_EXAMINED)
        return self._open.at

    def add(self, pushed: Mapping[tuple[str, str], int]) -> None:
        """Add jobs that were pushed since, by tenant and state."""
        if self._open is not None:
            self._open.jobs.update(pushed)

    async def _count(self, wanted: JobFilter, most: int, oldest: str = "") -> _Counted:
        jobs: Counter[tuple[str, str]] = Counter()
        now = time.monotonic()
        async with aclosing(pages(self._view, wanted, PAGE, most, oldest=oldest)) as found:
            async for details in found:
                for one in details:
                    tenant = tenant_named(one.envelope or {})
                    if tenant and not one.info.queue.startswith(f"{tenant}."):
                        jobs[tenant, one.info.state] += 1
        return _Counted(jobs, now, time.monotonic() - now)


def tenant_named(job: Mapping[str, object]) -> str:
    """Return the tenant that a job names, "" for none."""
    meta = job.get("meta")
    found = meta.get("tenant_id") if isinstance(meta, dict) else None
    return found if isinstance(found, str) else ""


def _is_usable(counted: _Counted | None, after: float) -> bool:
    if counted is None:
        return False
    age = time.monotonic() - counted.at
    is_fresh = counted.at > after and age < FRESH_SECONDS
    return is_fresh or (counted.seconds > CHEAP_SECONDS and age < COST * counted.seconds)


def _first_id(moment: datetime) -> str:
    """Return what the ids of jobs of that moment or later are not below: an id begins with its time."""
    digits = f"{int(moment.timestamp() * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}"
