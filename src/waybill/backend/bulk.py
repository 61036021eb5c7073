"""Changes of many jobs (cancel, retry, delete), selected by ids or by a filter.

A dry run shows the effect without changing anything.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.dead_letter_list import DeadFilter, DeadLetterList
from waybill.backend.errors import RequestRefused, ended_since, invalid, not_seen_yet
from waybill.backend.job_form import TERMINAL, UNFINISHED, Form, form_of
from waybill.backend.job_search import filter_of, search
from waybill.client import ClientError
from waybill.ojs.coordinator.job_fold import DELETED
from waybill.ojs.coordinator.job_store import JobDetail
from waybill.ojs.coordinator.markers import catch_up
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.envelope import SYSTEM_MANAGED
from waybill.ojs.spec.server_events import JobDeleted
from waybill.ojs.spec.states import State

MOST_IDS: Final = 1000
MOST_MATCHED: Final = 10_000
AT_A_TIME: Final = 200
ARRIVAL_SECONDS: Final = 0.05
ARRIVAL_LOOKS: Final = 10
"""How often to look again for a dead letter that the broker has perhaps not moved to its queue yet."""
CANCEL_SECONDS: Final = 2.0
"""How long to wait for a slow database."""
ENQUEUED: Final = "job.enqueued"
DEFAULT_STATES: Final = {
    "cancel": frozenset({State.AVAILABLE.value, State.SCHEDULED.value}),
    "retry": frozenset({State.DISCARDED.value}),
    "delete": TERMINAL,
    "update": frozenset({State.AVAILABLE.value}),
}
WAITING: Final = UNFINISHED - {State.ACTIVE.value}
DONE: Final = {"cancel": "cancelled", "retry": "retried", "delete": "deleted"}

_DROPPED: Final = {*SYSTEM_MANAGED, "scheduled_at", "delay_until"} - {"created_at", "enqueued_at"}


class Selection(msgspec.Struct):
    """The selected jobs. `missing`: unknown ids. `has_more`: the filter matches more jobs."""

    jobs: list[Form]
    missing: list[str]
    has_more: bool = False


class Outcome(msgspec.Struct, omit_defaults=True):
    """The outcome for a job."""

    job_id: str
    status: str
    reason: str = ""


async def select(backend: Backend, body: Form, action: str) -> Selection:
    """Find the selected jobs. Raises RequestRefused."""
    ids, wanted = body.get("job_ids", body.get("ids")), body.get("filter")
    if (ids is None) == (wanted is None):
        raise invalid("job_ids", "either this or filter is required, not both")
    if ids is not None:
        return await _select_by_ids(backend, ids)
    if not isinstance(wanted, dict):
        raise invalid("filter", "must be an object")
    read = filter_of(wanted, DEFAULT_STATES[action])
    found = await search(backend, read, MOST_MATCHED + 1)
    return Selection(found[:MOST_MATCHED], [], len(found) > MOST_MATCHED)


async def _select_by_ids(backend: Backend, ids: object) -> Selection:
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) and 0 < len(one) <= 255 for one in ids):
        raise invalid("job_ids", "must be an array with at least one id")
    if len(ids) > MOST_IDS:
        details: Form = {"code": "BATCH_SIZE_EXCEEDED", "max_batch_size": MOST_IDS, "batch_size": len(ids)}
        headers = [("X-OJS-Max-Batch-Size", str(MOST_IDS))]
        text = f"This request has {len(ids)} jobs: {MOST_IDS} are allowed."
        raise RequestRefused("payload_too_large", text, details=details, headers=headers)
    unique = list(dict.fromkeys(ids))
    now = datetime.now(UTC)
    forms = {one.info.id: form_of(one, now) for one in await backend.view.details(unique)}
    return Selection([forms[one] for one in unique if one in forms], [one for one in unique if one not in forms])


def refusal_of(action: str, form: Form) -> str:
    """Return why a job cannot be changed like this, empty if it can."""
    state = str(form["state"])
    if action == "cancel":
        return "" if state in UNFINISHED else f"The job has ended: it is {state}."
    if action == "delete":
        return "" if state in TERMINAL else f"The job has not ended: it is {state}."
    if state == State.RETRYABLE.value:
        return "The job will be retried automatically."
    if state == State.CANCELLED.value:
        return "Workers skip every job with this id, because it was cancelled: push it again with another id."
    return "" if state == State.DISCARDED.value else f"A job that is {state} cannot be retried."


async def apply(backend: Backend, action: str, selection: Selection) -> list[Outcome]:
    """Change jobs; returns the outcome of each, unknown jobs last."""
    refused = {str(form["id"]): why for form in selection.jobs if (why := refusal_of(action, form))}
    changing = [form for form in selection.jobs if form["id"] not in refused]
    change = {"cancel": cancel, "retry": retry, "delete": delete}[action]
    failed: dict[str, str] = {}
    for start in range(0, len(changing), AT_A_TIME):
        failed |= await change(backend, changing[start : start + AT_A_TIME])
    outcomes = []
    for form in selection.jobs:
        job_id = str(form["id"])
        why = refused.get(job_id, "")
        if why:
            outcomes.append(Outcome(job_id, "skipped", why))
        elif job_id in failed:
            outcomes.append(Outcome(job_id, "failed", failed[job_id]))
        else:
            outcomes.append(Outcome(job_id, DONE[action]))
    return outcomes + [Outcome(one, "failed", "The job does not exist.") for one in selection.missing]


async def cancel(backend: Backend, forms: Sequence[Form]) -> dict[str, str]:
    """Cancel jobs; returns the reasons for those that are not cancelled then."""
    states = await _cancel_all(backend, [(str(form["id"]), str(form["queue"])) for form in forms])
    running = "Its worker has been told to stop the job, and is still running it."
    return {
        job_id: running if state == State.ACTIVE.value else _not_cancelled(job_id, state).message
        for job_id, state in states.items()
        if state != State.CANCELLED.value
    }


async def cancel_one(backend: Backend, job_id: str, queue: str) -> Form:
    """Cancel a job, and return it: a worker over AMQP may still be running it. Raises RequestRefused."""
    states = await _cancel_all(backend, [(job_id, queue)])
    form = form_of(await backend.known(job_id), datetime.now(UTC))
    state = states[job_id]
    if state not in {State.CANCELLED.value, State.ACTIVE.value}:
        raise _not_cancelled(job_id, state)
    return form


def _not_cancelled(job_id: str, state: str) -> RequestRefused:
    return ended_since(job_id, state) if state in TERMINAL else not_seen_yet(job_id, state)


async def _cancel_all(backend: Backend, jobs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Cancel jobs, each given by its id and queue; returns their states then.

    A job that is still active is one whose worker over AMQP has not stopped it. A job that waits was not cancelled yet
    as far as the database knows.
    """
    view = backend.view
    await asyncio.gather(*(backend.coordinator.cancel(*one) for one in jobs))
    states = {info.id: info.state for info in await view.many([job_id for job_id, _ in jobs])}
    late = [job_id for job_id, state in states.items() if state in WAITING]
    settled = [view.settled(one, lambda job: job is None or job.state not in WAITING, CANCEL_SECONDS) for one in late]
    return states | {info.id: info.state for info in await asyncio.gather(*settled) if info is not None}


async def delete(backend: Backend, forms: Sequence[Form]) -> dict[str, str]:
    """Delete jobs that have ended, and their dead letters; returns the reasons for those that were not deleted."""
    dead: defaultdict[str, list[str]] = defaultdict(list)
    for form in forms:
        if form["state"] == State.DISCARDED.value:
            dead[str(form["queue"])].append(str(form["id"]))
    for queue, ids in dead.items():
        await DeadLetterList(backend).discard(queue, ids)
    async with backend.folded([(DELETED, str(form["id"])) for form in forms], is_certain=True):
        for form in forms:
            data = JobDeleted(job_type=str(form["type"]), queue=str(form["queue"]))
            backend.broker.events.record(str(form["id"]), data)
    left = await backend.view.many([str(form["id"]) for form in forms])
    return {info.id: f"The job has been retried since: it is {info.state}." for info in left}


async def retry(backend: Backend, forms: Sequence[Form]) -> dict[str, str]:
    """Retry jobs, from their dead letters or as they were pushed; returns the reasons for those that could not be."""
    by_queue: defaultdict[str, list[str]] = defaultdict(list)
    failed: dict[str, str] = {}
    for form in forms:
        job_id = str(form["id"])
        if job_id in backend.retrying:
            failed[job_id] = "The job is being retried."
        else:
            by_queue[str(form["queue"])].append(job_id)
    mine = [job_id for ids in by_queue.values() for job_id in ids]
    backend.retrying.update(mine)
    try:
        for queue, ids in by_queue.items():
            done = set(await _retry_dead_letters(backend, queue, ids))
            for _ in range(ARRIVAL_LOOKS):
                arriving = await _arriving(backend, [job_id for job_id in ids if job_id not in done])
                if not arriving:
                    break
                await asyncio.sleep(ARRIVAL_SECONDS)
                done.update(await _retry_dead_letters(backend, queue, arriving))
            for job_id in ids:
                if job_id not in done and (why := await push_again(backend, job_id)):
                    failed[job_id] = why
    finally:
        backend.retrying.difference_update(mine)
    return failed


async def _arriving(backend: Backend, job_ids: list[str]) -> list[str]:
    """Return those jobs whose dead letters are on their way to the queue, unless someone has deleted them.

    A job that was pushed again before its dead letter arrives could be retried twice.
    """
    known = await backend.view.many(job_ids) if job_ids else []
    dead = [info for info in known if info.state == State.DISCARDED.value and info.error is not None]
    return [info.id for info in dead if (info.error or {}).get("dead_letter") is True]


async def _retry_dead_letters(backend: Backend, queue: str, job_ids: list[str]) -> list[str]:
    """Put dead letters back into their queue; returns those of which that is certain."""
    dead = DeadLetterList(backend)
    found = {str(form["id"]) for form in await dead.find(DeadFilter(queue))}
    dead_ids = [job_id for job_id in job_ids if job_id in found]
    if not dead_ids:
        return dead_ids
    expected = [backend.view.expect(ENQUEUED, job_id) for job_id in dead_ids]
    if await dead.retry(queue, dead_ids) < len(dead_ids):
        # Another request was faster with some. Where they are then, `push_again` sees.
        for job_id in dead_ids:
            backend.view.forget(ENQUEUED, job_id)
        await catch_up(backend.view, backend.broker.events)
        known = {info.id: info.state for info in await backend.view.many(dead_ids)}
        return [job_id for job_id in dead_ids if known.get(job_id) != State.DISCARDED.value]
    _, late = await asyncio.wait(expected, timeout=CANCEL_SECONDS)
    if late:
        for job_id in dead_ids:
            backend.view.forget(ENQUEUED, job_id)
    return dead_ids


async def push_again(backend: Backend, job_id: str) -> str:
    """Push a job again as it was pushed first; returns the reason if that is impossible."""
    info = await backend.view.get(job_id)
    if info is None:
        return "The job does not exist."
    try:
        # One server at a time, which then knows what the others have done.
        async with backend.folded([(ENQUEUED, job_id)], is_certain=True), backend.dead_letters(info.queue) as dead:
            await catch_up(backend.view, backend.broker.events)
            detail = await backend.view.detail(job_id)
            if detail is None or (why := _no_second_push(detail)):
                backend.view.forget(ENQUEUED, job_id)
                return "The job does not exist." if detail is None else why
            job = {name: value for name, value in (detail.envelope or {}).items() if name not in _DROPPED}
            await dead.push_again(job, detail.run + 1)
    except (InvalidJob, ClientError, TimeoutError) as error:
        return f"{str(error) or 'The broker did not answer in time'}."
    return ""


def _no_second_push(detail: JobDetail) -> str:
    """Return why a job cannot be pushed again, empty if it can."""
    if not isinstance((detail.envelope or {}).get("args"), list):
        return "The job is not a dead letter, and the server does not know its arguments, as it was pushed over AMQP."
    # Another request may have been faster.
    return refusal_of("retry", form_of(detail, datetime.now(UTC)))
