"""Changes the priority of waiting jobs (ojs-priority section 8.1): each is published again, then its message settled.

A job may be held by this server for the next fetch. Else its queue is searched. The message of a scheduled job cannot
be found where it waits: workers are told to drop it when it arrives, as they are of a replaced attempt.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import msgspec

from waybill.backend.backend import FOLD_SECONDS, Backend
from waybill.backend.job_form import Form
from waybill.backend.waiting_messages import WaitingMessage, find_waiting
from waybill.client import Delivery
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.control_message import REPLACE, ControlRequest
from waybill.ojs.spec.envelope import MAX_DELAY_SECONDS, edit_envelope, read_envelope, seconds_until_scheduled
from waybill.ojs.spec.events import JobEnqueued
from waybill.ojs.spec.headers import push_properties, requeue_properties
from waybill.ojs.spec.identifiers import new_traceparent
from waybill.ojs.spec.priority import message_priority
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_timestamp, parse_timestamp

MAX_SEARCHED: Final = 5000
ENQUEUED: Final = "job.enqueued"
LEAST_SECONDS: Final = 5.0
"""How long before its time a scheduled job can be changed: all workers must know of it by then."""
NOT_FOUND: Final = f"A worker holds the job, or its queue has more than {MAX_SEARCHED} messages."
_BOUND_FIELDS: Final = ("unique", "workflow_id", "parent_results")
"""What other parts of the system keep for the message of a job."""


async def change_priority(backend: Backend, forms: Sequence[Form], priority: int) -> dict[str, str]:
    """Give waiting jobs another priority; returns the reasons for those that have not got it. Raises ClientError."""
    by_queue: dict[str, set[str]] = {}
    later = [form for form in forms if form["state"] == State.SCHEDULED.value]
    for form in [one for one in forms if one not in later]:
        by_queue.setdefault(str(form["queue"]), set()).add(str(form["id"]))
    failed: dict[str, str] = {}
    for form in later:
        why = await _change_scheduled(backend, form, priority)
        if why:
            failed[str(form["id"])] = why
    for queue, ids in by_queue.items():
        republish = partial(_republish, backend, queue, priority)
        for job_id in [*ids]:
            execution = backend.limits.take_held(queue, job_id)
            if execution is not None:
                envelope = execution.envelope
                message = WaitingMessage(
                    envelope.id, envelope.type, enqueued_at=envelope.enqueued_at, scheduled_at=envelope.scheduled_at
                )
                await republish(execution.delivery, message)
                ids.discard(job_id)
        for name in backend.broker.declarer.topology.job_queues(queue):
            if ids:
                await find_waiting(backend.broker, queue, name, ids, MAX_SEARCHED, republish)
        failed |= dict.fromkeys(ids, NOT_FOUND)
    return failed


async def _change_scheduled(backend: Backend, form: Form, priority: int) -> str:
    """Give a scheduled job another priority; returns why that is impossible, if it is. Raises ClientError."""
    detail = await backend.known(str(form["id"]))
    given, now = detail.envelope, datetime.now(UTC)
    if given is None or not isinstance(given.get("args"), list):
        return "The server does not know the arguments of the job, as it was pushed over AMQP."
    if any(given.get(name) is not None for name in _BOUND_FIELDS):
        return (
            "The priority of a scheduled job that is unique, or of a workflow, can be changed when its time has come."
        )
    broker = backend.broker
    topology, told_at = broker.declarer.topology, time_after(given.get("enqueued_at"), now)
    body = edit_envelope(msgspec.json.encode(given), {"priority": priority, "enqueued_at": told_at})
    envelope = read_envelope(body)
    delay = min(seconds_until_scheduled(envelope, now), MAX_DELAY_SECONDS)
    if delay < LEAST_SECONDS:
        return "The time of the job has nearly come."
    exchange, key, waiting = topology.schedule_address(envelope.queue, delay)
    properties = push_properties(
        envelope, max_priority=topology.max_priority, traceparent=new_traceparent(), more_headers=waiting
    )
    await broker.publishing.publish(body, exchange=exchange, routing_key=key, properties=properties, mandatory=True)
    before = ControlRequest(envelope.id, attempt=1, enqueued_at=str(given.get("enqueued_at")))
    await broker.tell_workers(REPLACE, before)
    data = JobEnqueued(
        job_type=envelope.type,
        queue=envelope.queue,
        priority=priority,
        scheduled_at=envelope.scheduled_at,
        job=msgspec.Raw(body),
    )
    folded = backend.view.expect(ENQUEUED, envelope.id)
    broker.events.record(envelope.id, data, told_at)
    await asyncio.wait([folded], timeout=FOLD_SECONDS)
    return ""


def time_after(before: object, now: datetime) -> str:
    """Return the current time, or the next millisecond after `before`: the time tells a message from the former one."""
    try:
        last = parse_timestamp(str(before), "enqueued_at")
    except InvalidJob:
        last = now
    text = format_timestamp(now)
    return text if format_timestamp(last) < text else format_timestamp(last + timedelta(milliseconds=1))


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
    told = JobEnqueued(
        job_type=message.type,
        queue=queue,
        priority=priority,
        scheduled_at=message.scheduled_at,
        job=msgspec.Raw(body),
    )
    folded = backend.view.expect(ENQUEUED, message.id)
    broker.events.record(message.id, told, message.enqueued_at)
    await asyncio.wait([folded], timeout=FOLD_SECONDS)
    return True
