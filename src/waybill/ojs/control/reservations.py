"""The client's side of unique jobs: a place is reserved with a coordinator before a job is published."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from waybill.ojs.control.control import Control
from waybill.ojs.errors import ControlFailed, DuplicateJob, PushFailed
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.spec.control_message import ControlReply, Reservation
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.states import State
from waybill.ojs.spec.unique import Unique, read_unique

ANSWER_SECONDS: Final = 10.0
LEASE_MARGIN_SECONDS: Final = 60.0
AT_A_TIME: Final = 500


async def reserve(
    control: Control, jobs: Sequence[Outgoing], deadline: float, definer: str | None = None
) -> dict[str, Envelope | PushFailed]:
    """Reserve the places of unique jobs; return, by job id, the outcome of those that got none.

    `deadline` is by the monotonic clock. A job that replaces a scheduled one may take over its time. `definer` is that
    of `Reservation`.
    """
    limit = asyncio.Semaphore(AT_A_TIME)
    outcomes: dict[str, Envelope | PushFailed] = {}

    async def reserve_one(one: Outgoing, key: str, policy: Unique) -> None:
        async with limit:
            outcome = await _reserve(control, one.envelope, key, policy, deadline, definer)
        if outcome is not None:
            outcomes[one.envelope.id] = outcome

    await asyncio.gather(
        *(
            reserve_one(one, one.unique_key, read_unique(one.envelope.unique))
            for one in jobs
            if one.unique_key is not None and one.envelope.unique is not None
        )
    )
    return outcomes


async def release(control: Control, jobs: Sequence[Outgoing]) -> None:
    """Release the places of jobs that were not enqueued; a place that cannot be released expires."""
    for one in jobs:
        if one.unique_key is not None:
            with contextlib.suppress(ControlFailed):
                await control.release(one.envelope.id, one.envelope.queue, LEASE_MARGIN_SECONDS)


async def _reserve(
    control: Control, envelope: Envelope, key: str, policy: Unique, deadline: float, definer: str | None
) -> Envelope | PushFailed | None:
    reservation = Reservation(
        job_type=envelope.type,
        unique_key=key,
        states=list(policy.states),
        on_conflict=policy.on_conflict,
        lease_seconds=max(0.0, deadline - time.monotonic()) + LEASE_MARGIN_SECONDS,
        period=None if policy.period is None else msgspec.to_builtins(policy.period),
        definer=definer,
    )
    try:
        reply = await _answer(control, envelope, reservation, deadline)
    except ControlFailed as error:
        # A coordinator may have taken the request but replied too late.
        with contextlib.suppress(ControlFailed):
            await control.release(envelope.id, envelope.queue, LEASE_MARGIN_SECONDS)
        text = f"it cannot be determined whether the job is unique: {error}"
        return PushFailed(envelope.id, "BACKEND_UNAVAILABLE", text)
    replaced = reply.replaced
    keeps_time = policy.on_conflict == "replace_except_schedule"
    if keeps_time and replaced is not None and replaced.state == State.SCHEDULED.value:
        envelope.scheduled_at = replaced.scheduled_at or envelope.scheduled_at
    if not reply.jobs:
        return None
    found = reply.jobs[0]
    if policy.on_conflict != "ignore":
        return DuplicateJob(envelope.id, found.id, found.state, key)
    there = Envelope(id=found.id, type=envelope.type, queue=found.queue or envelope.queue, state=found.state)
    there.is_duplicate = True
    return there


async def _answer(control: Control, envelope: Envelope, reservation: Reservation, deadline: float) -> ControlReply:
    """Repeat the request until it is answered: if a coordinator dies, the next one answers."""
    while True:
        left = deadline - time.monotonic()
        try:
            return await control.reserve(
                envelope.id, envelope.queue, reservation, min(ANSWER_SECONDS, max(left, 0.001))
            )
        except ControlFailed:
            if left <= ANSWER_SECONDS:
                raise
