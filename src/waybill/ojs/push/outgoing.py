"""Jobs being sent to the broker: published in a window, and confirmed before their events are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from waybill.client import BasicProperties, ConnectionLost, MessageNacked, MessageReturned, RequestTimeout
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.errors import PushFailed
from waybill.ojs.handler import Options
from waybill.ojs.observe.event_forms import is_plain
from waybill.ojs.push.template import PushTemplate
from waybill.ojs.spec.enqueued_event import enqueued_event
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.events import JobScheduled
from waybill.ojs.spec.headers import as_repeated
from waybill.ojs.spec.identifiers import push_event_id
from waybill.ojs.spec.states import State
from waybill.ojs.topology.topology import Topology

WINDOW: Final = 5000
"""The maximum number of unconfirmed publishes of one batch."""
DRAIN_EVERY: Final = 100

SCHEDULED: Final = State.SCHEDULED.value


class Outgoing:
    """A valid job that is not published yet; the parts of its message are filled in step by step."""

    __slots__ = (
        *("body", "description", "envelope", "exchange", "future", "has_new_id", "idempotency_key", "key"),
        *("may_be_there", "options", "place", "properties", "reply_to", "template", "unique_key"),
    )

    def __init__(
        self,
        envelope: Envelope,
        options: Options,
        template: PushTemplate | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        self.envelope = envelope
        self.options = options
        self.idempotency_key = idempotency_key
        """The caller's own key, which is sent as a header."""
        self.template = template
        """The template for its body, as long as its envelope is unchanged."""
        self.reply_to: str | None = None
        """The queue to which its worker reports the outcome."""
        self.unique_key: str | None = None
        """The fingerprint of a unique job."""
        self.place: str | None = None
        """The same, if the job has a place on the broker."""
        self.body = b""
        self.description: bytes | None = None
        """The envelope to include in the event of its push."""
        self.properties: BasicProperties | bytes = b""
        self.exchange = ""
        self.key = ""
        self.has_new_id = False
        """Whether its id was made for this push, so that no other job has it."""
        self.may_be_there = False
        """Whether it was published before, without a confirm."""
        self.future: asyncio.Future[None] | None = None


class Publication:
    """One round of publishing: each job ends in one of the lists, or is confirmed and its events are recorded."""

    def __init__(self, broker: BrokerConnection, *, nack_is_loss: bool = False) -> None:
        """Call `run` to begin. With `nack_is_loss`, a refused job counts as lost, not as failed."""
        self.lost: list[Outgoing] = []
        """The job or its confirm was lost with the connection, the broker lost it, or does not confirm it."""
        self.is_unconfirmed = False
        """The broker does not confirm some of them in time."""
        self._nack_is_loss = nack_is_loss
        self.returned: list[Outgoing] = []
        self.failures: list[PushFailed] = []
        self.settled_count = 0
        """How many of the jobs, in order, have an outcome."""
        self._broker = broker

    async def run(self, jobs: Sequence[Outgoing], address: Callable[[Outgoing], None]) -> None:
        """Publish jobs in order; `address` fills in the properties of a message just before it is published."""
        channel = self._broker.publishing
        start = 0
        try:
            for index, one in enumerate(jobs):
                if index % DRAIN_EVERY == DRAIN_EVERY - 1:
                    await channel.drain()
                address(one)
                properties = as_repeated(one.properties) if one.may_be_there else one.properties
                one.future = channel.publish_nowait(
                    one.body, exchange=one.exchange, routing_key=one.key, properties=properties, mandatory=True
                )
                if index - start >= WINDOW:
                    # Wait for half of them, so that there is a lot to write after each wait.
                    await self._settle(jobs[start : start + WINDOW // 2])
                    start += WINDOW // 2
            await self._settle(jobs[start:])
        finally:
            forget([one.future for one in jobs if one.future is not None])
            for one in jobs:
                one.future = None

    async def _settle(self, jobs: Sequence[Outgoing]) -> None:
        """Wait for the confirms of some publishes, and sort the jobs by outcome."""
        for one in jobs:
            future = one.future
            if future is None:
                continue
            if future.done() and future.exception() is None:
                one.future = None
                record(self._broker, one)
                self.settled_count += 1
                continue
            try:
                await future
            except (ConnectionLost, RequestTimeout) as error:
                self.is_unconfirmed = self.is_unconfirmed or isinstance(error, RequestTimeout)
                self._lose(one)
            except MessageReturned:
                self.returned.append(one)
            except MessageNacked as error:
                if self._nack_is_loss:
                    self._lose(one)
                else:
                    self.failures.append(not_taken(one.envelope.id, error))
            else:
                record(self._broker, one)
            self.settled_count += 1

    def _lose(self, one: Outgoing) -> None:
        one.may_be_there = True
        self.lost.append(one)


def nacks_pass(topology: Topology) -> bool:
    """Return whether refusals are temporary: queues of a cluster without limits refuse only during an election."""
    return topology.replicas is not None and topology.max_length is None and topology.max_length_bytes is None


def not_taken(job_id: str, error: MessageNacked) -> PushFailed:
    """Return the error for a job that its queue refuses."""
    return PushFailed(job_id, "QUEUE_FULL", f"the queue refused it: {error}")


def record(broker: BrokerConnection, one: Outgoing) -> None:
    """Write the events of a confirmed job."""
    envelope = one.envelope
    events = broker.events
    unique_key = one.unique_key or one.idempotency_key
    # A worker may already have started the job; its queue wait counts from the time in its envelope.
    time = envelope.enqueued_at
    if envelope.state != SCHEDULED and time is not None and not one.may_be_there:
        if one.description is not None and unique_key is None:
            events.record_described(
                envelope.id, time, envelope.type, envelope.queue, envelope.priority, one.description
            )
            return
        if one.description is None and (unique_key is None or is_plain(unique_key)):
            events.record_enqueued(envelope.id, time, envelope.type, envelope.queue, envelope.priority, unique_key)
            return
    later = envelope.scheduled_at if envelope.state == SCHEDULED else None
    if later is not None:
        data = JobScheduled(job_type=envelope.type, queue=envelope.queue, scheduled_at=later)
        events.record(envelope.id, data, envelope.enqueued_at)
    events.record(
        envelope.id,
        enqueued_event(envelope, envelope.queue, one.description, unique_key),
        envelope.enqueued_at,
        event_id=push_event_id(envelope.id) if one.may_be_there else None,
    )


def forget(futures: Iterable[asyncio.Future[None]]) -> None:
    """Ignore errors of publishes whose push was cancelled or has failed."""
    for future in futures:
        if future.done():
            _look_at(future)
        else:
            future.add_done_callback(_look_at)


def _look_at(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
