"""The number of jobs of a queue by state, and their times (ojs-http-binding section 11.2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import not_found
from waybill.backend.job_form import UNFINISHED, Form, state_of
from waybill.backend.job_pages import pages
from waybill.client import Inspector
from waybill.ojs.coordinator.job_store import JobDetail, JobFilter
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import parse_timestamp
from waybill.ojs.topology.job_queues import job_queue_counts

MAX_SEARCHED: Final = 500
"""Scheduled jobs to check: more are counted as in the events, although some may be due."""
PAGE: Final = 100
SAMPLE: Final = 50
"""The number of ended jobs for mean times."""

_LATER: Final = (State.SCHEDULED.value, State.RETRYABLE.value)


async def stats_of(backend: Backend, name: str) -> tuple[Form, bool]:
    """Return the counts of a queue, and whether it is paused. Raises RequestRefused if it does not exist."""
    try:
        check_queue(name)
    except InvalidJob:
        raise not_found("queue", name) from None
    topology = backend.broker.declarer.topology
    inspector = Inspector(backend.broker.connection)
    ready, dead, paused, all_counts = await asyncio.gather(
        job_queue_counts(inspector, topology, name),
        inspector.queue(topology.dead_letter_queue(name)),
        backend.jobs.is_paused(name),
        backend.job_counts(),
    )
    counts = all_counts.by_queue.get(name, {})
    if ready is None and not counts:
        raise not_found("queue", name)
    stats: Form = {state.value: counts.get(state.value, 0) for state in State}
    stats |= await _waiting(backend, name, counts)
    # Jobs without events count, too; and jobs that are held here are available.
    stats["available"] = (0 if ready is None else ready.message_count) + backend.limits.waiting(queue=name)
    stats["dead_letter"] = 0 if dead is None else dead.message_count
    stats["total"] = sum(int(str(stats[state.value])) for state in State)
    # As ojs-queue-config section 9.3 shows them: all that have not ended.
    stats["depth"] = sum(int(str(stats[state])) for state in UNFINISHED)
    history = backend.extensions.history
    rate, today = history.rate(name, all_counts), history.today(name, all_counts)
    stats |= {
        "completed_today": today.completed,
        "failed_today": today.failed,
        "completed_last_hour": rate.completed,
        "failed_last_hour": rate.failed,
        "throughput_per_second": round(rate.completed / rate.seconds, 3),
    }
    return stats | await _means(backend, name), paused


async def _waiting(backend: Backend, name: str, counts: Mapping[str, int]) -> Form:
    """Count scheduled jobs, without those that are due."""
    if not 0 < sum(counts.get(state, 0) for state in _LATER) <= MAX_SEARCHED:
        return {}
    wanted = JobFilter(name, frozenset(_LATER))
    now = datetime.now(UTC)
    states: Counter[str] = Counter()
    async for found in pages(backend.view, wanted, PAGE, MAX_SEARCHED):
        states.update(state_of(one.info, one.envelope or {}, now) for one in found)
    return {state: states[state] for state in _LATER}


async def _means(backend: Backend, name: str) -> Form:
    """Return the mean run time and wait time of the last jobs."""
    wanted = JobFilter(name, frozenset({State.COMPLETED.value}))
    found, _ = await backend.view.read(lambda store: store.page(wanted, "", SAMPLE))
    ran = [one for one in (_between(job, "started_at", "ended_at") for job in found) if one is not None]
    waited = [one for one in (_between(job, "enqueued_at", "started_at") for job in found) if one is not None]
    return {
        "avg_duration_ms": round(sum(ran) / len(ran)) if ran else 0,
        "avg_wait_ms": round(sum(waited) / len(waited)) if waited else 0,
    }


def _between(job: JobDetail, first: str, second: str) -> float | None:
    begins, ends = getattr(job.info, first), getattr(job.info, second)
    if begins is None or ends is None:
        return None
    try:
        passed = parse_timestamp(ends, second) - parse_timestamp(begins, first)
    except InvalidJob:
        return None
    return max(0.0, passed.total_seconds() * 1000)
