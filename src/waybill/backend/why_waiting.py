"""Explains why a job is not running."""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.job_form import TERMINAL, Form
from waybill.backend.workers import is_stale
from waybill.client import Inspector
from waybill.ojs.spec.states import State
from waybill.ojs.topology.job_queues import job_queue_counts

_LATER: Final = frozenset({State.SCHEDULED.value, State.RETRYABLE.value})


class Reason(msgspec.Struct, omit_defaults=True):
    """A reason: a code for programs, and a sentence. `until`: when it ends, if known."""

    code: str
    text: str
    until: str = ""


async def why_waiting(backend: Backend, form: Form) -> list[Reason]:
    """Return why a job is waiting, or that it is running or has ended."""
    state, queue = str(form["state"]), str(form["queue"])
    if state in TERMINAL:
        return [Reason("ended", f"The job has ended: it is {state}.")]
    if state == State.ACTIVE.value:
        return [Reason("running", f"Worker {form.get('worker_id', 'unknown')} runs it.")]
    if state == State.PENDING.value:
        return [Reason("pending", "It is pending until it is activated.")]
    reasons = []
    if state in _LATER:
        until = str(form.get("next_attempt_at" if state == State.RETRYABLE.value else "scheduled_at") or "")
        what = "Its next attempt" if state == State.RETRYABLE.value else "It"
        reasons.append(Reason("scheduled", f"{what} is due later.", until))
    if (await backend.operator_view.paused([queue]))[0]:
        reasons.append(Reason("paused", f"Queue {queue} is paused."))
    reasons += await _worker_reasons(backend, queue)
    if backend.leases.is_full():
        text = f"Workers have jobs of about {backend.leases.size >> 20} MiB: they get no more until some have ended."
        reasons.append(Reason("leased_memory", text))
    if state == State.AVAILABLE.value and not reasons:
        reasons += await _queue_reasons(backend, form, queue)
    return reasons


async def _worker_reasons(backend: Backend, queue: str) -> list[Reason]:
    """Check for workers of this queue: a consumer at the broker, or a worker that fetches from this server."""
    topology = backend.broker.declarer.topology
    found = await job_queue_counts(Inspector(backend.broker.connection), topology, queue)
    fetching = [one for one in backend.extensions.workers.all() if queue in one.queues and not is_stale(one)]
    if fetching or (found is not None and found.consumer_count):
        quiet = [one for one in fetching if backend.extensions.directives.get(one.id) is not None]
        consuming = 0 if found is None else found.consumer_count
        if fetching and len(quiet) == len(fetching) and not consuming:
            return [Reason("quiet", f"All workers of queue {queue} are quiet.")]
        return []
    known = [one for one in backend.events.workers.all().values() if not is_stale(one)]
    takes = "1 worker takes" if len(known) == 1 else f"{len(known)} workers take"
    others = f" {takes} jobs of other queues." if known else ""
    return [Reason("no_worker", f"No worker takes jobs of queue {queue}.{others}")]


async def _queue_reasons(backend: Backend, form: Form, queue: str) -> list[Reason]:
    """Return the jobs and limits that are ahead of the job."""
    reasons = []
    if form.get("rate_limit") is not None:
        waiting = backend.limits.waiting(queue=queue)
        reasons.append(
            Reason("rate_limit", f"It has a rate limit; {waiting} jobs of this queue wait for their limits.")
        )
    counts = (await backend.operator_view.counted()).by_queue.get(queue, {})
    ready = counts.get(State.AVAILABLE.value, 0)
    active = counts.get(State.ACTIVE.value, 0)
    reasons.append(Reason("queued", f"{ready} jobs wait in queue {queue}, and {active} run."))
    return reasons
