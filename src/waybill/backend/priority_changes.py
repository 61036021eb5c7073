"""Changes the priority of waiting jobs (ojs-priority section 8.1): each is published again, then its message settled.

A job may be held by this server for the next fetch. Else its queue is searched. For scheduled jobs, see
`scheduled_priorities`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from waybill.backend.backend import FOLD_SECONDS, Backend
from waybill.backend.job_form import Form
from waybill.backend.scheduled_priorities import ENQUEUED, ScheduledPriorities
from waybill.backend.waiting_messages import WaitingMessage, find_waiting
from waybill.client import Delivery
from waybill.ojs.spec.enqueued_event import enqueued_event
from waybill.ojs.spec.envelope import edit_envelope
from waybill.ojs.spec.headers import requeue_properties, run_number
from waybill.ojs.spec.operator_events import PriorityChanged
from waybill.ojs.spec.priority import message_priority
from waybill.ojs.spec.states import State

MAX_SEARCHED: Final = 5000
NOT_FOUND: Final = f"A worker holds the job, or its queue has more than {MAX_SEARCHED} messages."


async def change_priority(
    backend: Backend, scheduled: ScheduledPriorities, forms: Sequence[Form], priority: int
) -> dict[str, str]:
    """Give waiting jobs another priority; returns the reasons for those that have not got it. Raises ClientError."""
    by_queue: dict[str, set[str]] = {}
    failed: dict[str, str] = {}
    for form in forms:
        job_id = str(form["id"])
        if form["state"] != State.SCHEDULED.value:
            by_queue.setdefault(str(form["queue"]), set()).add(job_id)
        elif why := await scheduled.change(job_id, priority):
            failed[job_id] = why
    for queue, ids in by_queue.items():
        republish = partial(_republish, backend, queue, priority)
        for job_id in [*ids]:
            execution = backend.limits.take_held(queue, job_id)
            if execution is not None:
                message = msgspec.convert(execution.envelope, WaitingMessage, from_attributes=True)
                await republish(execution.delivery, message)
                ids.discard(job_id)
        for name in backend.broker.declarer.topology.job_queues(queue):
            if ids:
                await find_waiting(backend.broker, queue, name, ids, MAX_SEARCHED, republish)
        failed |= dict.fromkeys(ids, NOT_FOUND)
    for form in forms:
        if str(form["id"]) not in failed and form["priority"] != priority:
            _tell(backend, form, priority)
    return failed


def _tell(backend: Backend, form: Form, priority: int) -> None:
    """Publish that a job has another priority than before."""
    job_id, before = str(form["id"]), form["priority"]
    data = PriorityChanged(
        job_id=job_id,
        job_type=str(form["type"]),
        queue=str(form["queue"]),
        previous_priority=before if isinstance(before, int) else 0,
        new_priority=priority,
    )
    backend.broker.events.record(job_id, data)


async def _republish(backend: Backend, queue: str, priority: int, delivery: Delivery, message: WaitingMessage) -> bool:
    """Publish a job with another priority, tell of it, and settle the message with the former one."""
    broker = backend.broker
    topology = broker.declarer.topology
    body = edit_envelope(delivery.body, {"priority": priority})
    properties = requeue_properties(delivery.properties)
    properties = dataclasses.replace(properties, priority=message_priority(priority, topology.max_priority))
    await broker.publishing.publish(
        body, exchange=topology.direct, routing_key=queue, properties=properties, mandatory=True
    )
    delivery.ack()
    backend.limits.note_priority(queue, priority)
    run = run_number(delivery.encoded_properties) or 0
    told = enqueued_event(msgspec.structs.replace(message, priority=priority), queue, body, run=run)
    folded = backend.view.expect(ENQUEUED, message.id)
    broker.events.record(message.id, told, message.enqueued_at)
    await asyncio.wait([folded], timeout=FOLD_SECONDS)
    return True
