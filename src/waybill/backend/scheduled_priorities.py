"""Changes the priority of scheduled jobs, whose messages cannot be found where they wait.

    a change, to a durable queue           -> one server at a time takes it, another one if that dies
    REPLACE at the relay, confirmed        -> workers drop the message when it arrives
    job.enqueued at a later time, folded   -> this time tells the next message from the former ones
    the next message, confirmed            -> the change is acknowledged

If a server dies between two steps, the change is delivered again. What the events name by then is replaced, so all
messages but the last are dropped, and the change remains until the last one is safe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import FOLD_SECONDS, Backend
from waybill.backend.job_form import Form
from waybill.backend.repeated import Repeated
from waybill.client import BasicProperties, ClientError, Consumer, Delivery
from waybill.ojs.coordinator.expectations import Tell
from waybill.ojs.coordinator.job_store import JobDetail
from waybill.ojs.coordinator.markers import catch_up
from waybill.ojs.spec.control_message import REPLACE, ControlRequest
from waybill.ojs.spec.enqueued_event import enqueued_event
from waybill.ojs.spec.envelope import edit_envelope, read_envelope, seconds_until_scheduled
from waybill.ojs.spec.headers import push_properties
from waybill.ojs.spec.identifiers import new_id, new_traceparent
from waybill.ojs.spec.nesting import shown
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import time_after

QUEUE: Final = "ojs.priority-changes"
PAUSE_SECONDS: Final = 2.0
LEAST_SECONDS: Final = 5.0
"""How long before its time a job can be changed: all workers must know of it by then."""
SOON_SECONDS: Final = 1.0
"""A change that nobody has begun is dropped if it can only begin so shortly before the time of its job."""
ENQUEUED: Final = "job.enqueued"
CANCELLED: Final = "job.cancelled"
_BOUND_FIELDS: Final = ("unique", "workflow_id", "parent_results")
"""What other parts of the system keep for the message of a job."""

_log = logging.getLogger("waybill.backend")


class PriorityChange(msgspec.Struct):
    """The body of a message in the queue."""

    job_id: str
    priority: int


class ScheduledPriorities(Repeated):
    """The changes of one server, and those that it takes over."""

    def __init__(self, backend: Backend) -> None:
        """Call this within the event loop."""
        super().__init__(PAUSE_SECONDS, "changes of the priorities of scheduled jobs are delayed")
        self._backend = backend
        self._consumer: Consumer | None = None
        self._taking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop. A change that is not complete is delivered to another server."""
        await super().close()
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)

    async def work(self) -> None:
        """Take changes, also those of servers that died."""
        if not self._is_taking():
            await self._take_all()

    async def change(self, job_id: str, priority: int) -> str:
        """Give a job another priority; returns why that is impossible, if it is. Raises ClientError."""
        backend = self._backend
        detail = await backend.known(job_id)
        given = detail.envelope
        if given is None or not isinstance(given.get("args"), list):
            return "The server does not know the arguments of the job, as it was pushed over AMQP."
        if any(given.get(name) is not None for name in _BOUND_FIELDS):
            return (
                "The priority of a scheduled job that is unique, or of a workflow, can be changed when its time has "
                "come."
            )
        if seconds_until_scheduled(read_envelope(msgspec.json.encode(given)), datetime.now(UTC)) < LEAST_SECONDS:
            return "The time of the job has nearly come."
        if not self._is_taking():
            await self._take_all()
        async with self._awaiting(job_id) as over:
            await backend.broker.publishing.publish(
                msgspec.json.encode(PriorityChange(job_id, priority)),
                routing_key=self._queue,
                properties=BasicProperties(delivery_mode=2),
                mandatory=True,
            )
            await asyncio.wait([over], timeout=FOLD_SECONDS)
        if not over.done():
            return f"The priority was not changed within {FOLD_SECONDS:g} s: the job may still get it."
        if over.result() == CANCELLED:
            return "The job was cancelled meanwhile."
        return ""

    @asynccontextmanager
    async def _awaiting(self, job_id: str) -> AsyncIterator[asyncio.Future[str]]:
        """Return a future for the type of the next event that tells of a change: a new message, or the end."""
        expectations = self._backend.view.expectations
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def teller(kind: str) -> Tell:
            return lambda _job: None if over.done() else over.set_result(kind)

        tells = {(kind, job_id): teller(kind) for kind in (ENQUEUED, CANCELLED)}
        for key, tell in tells.items():
            expectations.tell(key, tell)
        try:
            yield over
        finally:
            for key, tell in tells.items():
                expectations.tell_no_more(key, tell)

    # --- taking changes ---

    @property
    def _queue(self) -> str:
        return self._backend.broker.declarer.topology.prefix + QUEUE

    def _is_taking(self) -> bool:
        return self._consumer is not None and not self._consumer.closed

    async def _take_all(self) -> None:
        """Declare the queue, and consume from it as soon as no other server does."""
        channel = await self._backend.broker.connection.channel(prefetch_count=1)
        await channel.declare_queue(self._queue, durable=True, arguments={"x-single-active-consumer": True})
        self._consumer = await channel.consume(self._queue)
        self._taking = asyncio.get_running_loop().create_task(self._follow(self._consumer))

    async def _follow(self, consumer: Consumer) -> None:
        async for delivery in consumer:
            try:
                await self._take(delivery)
            except (ClientError, TimeoutError) as error:
                _log.warning("the priority of a scheduled job is changed later: %r", error)
                await asyncio.sleep(PAUSE_SECONDS)
                delivery.nack(requeue=True)
            except Exception:  # noqa: BLE001 - later changes must be made
                _log.exception("a change of a scheduled job's priority cannot be made, skipped")
                delivery.ack()

    async def _take(self, delivery: Delivery) -> None:
        """Make a change, then acknowledge it. Raises ClientError, TimeoutError."""
        change = msgspec.json.decode(delivery.body, type=PriorityChange)
        # What another server has done with the job must be known here.
        await catch_up(self._backend.view, self._backend.broker.events)
        detail = await self._backend.view.detail(change.job_id)
        if detail is not None and detail.envelope is not None and detail.info.state == State.SCHEDULED.value:
            await self._replace(detail, detail.envelope, change.priority, has_begun=delivery.redelivered)
        else:
            _log.info("job %s is not scheduled any more: its priority is not changed", shown(change.job_id))
        delivery.ack()

    async def _replace(self, detail: JobDetail, given: Form, priority: int, *, has_begun: bool) -> None:
        broker, now = self._backend.broker, datetime.now(UTC)
        topology, told_at = broker.declarer.topology, time_after(given.get("enqueued_at"), now)
        body = edit_envelope(msgspec.json.encode(given), {"priority": priority, "enqueued_at": told_at})
        envelope = read_envelope(body)
        delay = seconds_until_scheduled(envelope, now)
        if delay < SOON_SECONDS and not has_begun:
            return
        waiting: dict[str, object] = {}
        exchange, key = topology.direct, envelope.queue
        if delay > 0:
            await broker.declarer.ensure_schedule(envelope.queue, as_found=True)
            exchange, key, waiting = topology.schedule_address(envelope.queue, delay)
        properties = push_properties(
            envelope, max_priority=topology.max_priority, traceparent=new_traceparent(), more_headers=waiting
        )
        before = ControlRequest(envelope.id, attempt=1, enqueued_at=str(given.get("enqueued_at")))
        await broker.tell_workers(REPLACE, before)
        event_id = f"evt_{new_id()}"
        # With its run, it does not begin anew a job that is cancelled meanwhile.
        told = enqueued_event(envelope, envelope.queue, body, run=detail.run)
        async with self._backend.folded([(ENQUEUED, event_id)]):
            broker.events.record(envelope.id, told, told_at, event_id=event_id)
        await broker.publishing.publish(body, exchange=exchange, routing_key=key, properties=properties, mandatory=True)
