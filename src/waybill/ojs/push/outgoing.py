"""Jobs being sent to the broker: published in a window and confirmed, before their event is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from waybill.client import BasicProperties, ConnectionLost, MessageNacked, MessageReturned
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.errors import PushFailed
from waybill.ojs.handler import Options
from waybill.ojs.observe.event_forms import is_plain
from waybill.ojs.push.template import PushTemplate
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.events import JobEnqueued, JobScheduled
from waybill.ojs.spec.states import State
from waybill.ojs.topology.topology import Topology

WINDOW: Final = 5000
"""How many publishes of one batch wait for their confirms at a time."""
DRAIN_EVERY: Final = 100

SCHEDULED: Final = State.SCHEDULED.value


class Outgoing:
    """A valid job that nobody has published yet; what its message is made of is filled in on the way."""

    __slots__ = (
        *("body", "description", "envelope", "exchange", "future", "idempotency_key", "key", "options", "place"),
        *("properties", "reply_to", "template", "unique_key"),
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
        """The caller's own key, which goes out as a header."""
        self.template = template
        """What its body can be made with, as long as nobody has changed the envelope."""
        self.reply_to: str | None = None
        """The queue that its worker tells its outcome to."""
        self.unique_key: str | None = None
        """The fingerprint of a job that must be unique."""
        self.place: str | None = None
        """The same, of one that has a place at the broker."""
        self.body = b""
        self.description: bytes | None = None
        """The envelope as the event of its push is to carry it."""
        self.properties: BasicProperties | bytes = b""
        self.exchange = ""
        self.key = ""
        self.future: asyncio.Future[None] | None = None


class Publication:
    """One round of publishing: each job ends in one of the lists, or was confirmed and has its events recorded."""

    def __init__(self, broker: BrokerConnection, *, nack_is_loss: bool = False) -> None:
        """Nothing happens before `run`. `nack_is_loss`: what the broker refuses is lost, and no failure."""
        self.lost: list[Outgoing] = []
        """A lost connection has swallowed the job or its confirm, or the broker has."""
        self._nack_is_loss = nack_is_loss
        self.returned: list[Outgoing] = []
        self.failures: list[PushFailed] = []
        self.settled_count = 0
        """How many of the jobs, in order, have ended somewhere."""
        self._broker = broker

    async def run(self, jobs: Sequence[Outgoing], address: Callable[[Outgoing], None]) -> None:
        """Publish jobs in order; `address` fills in what a message is sent with, when its turn comes."""
        channel = self._broker.publishing
        start = 0
        try:
            for index, one in enumerate(jobs):
                if index % DRAIN_EVERY == DRAIN_EVERY - 1:
                    await channel.drain()
                address(one)
                one.future = channel.publish_nowait(
                    one.body, exchange=one.exchange, routing_key=one.key, properties=one.properties, mandatory=True
                )
                if index - start >= WINDOW:
                    # Half of them, so that there is a lot to write after each wait.
                    await self._settle(jobs[start : start + WINDOW // 2])
                    start += WINDOW // 2
            await self._settle(jobs[start:])
        finally:
            forget([one.future for one in jobs if one.future is not None])
            for one in jobs:
                one.future = None

    async def _settle(self, jobs: Sequence[Outgoing]) -> None:
        """Wait for the confirms of some publishes, and put each job where it belongs."""
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
            except ConnectionLost:
                self.lost.append(one)
            except MessageReturned:
                self.returned.append(one)
            except MessageNacked as error:
                if self._nack_is_loss:
                    self.lost.append(one)
                else:
                    self.failures.append(not_taken(one.envelope.id, error))
            else:
                record(self._broker, one)
            self.settled_count += 1


def nacks_pass(topology: Topology) -> bool:
    """Whether a refusal passes: queues of a cluster without limits refuse only while they change their leader."""
    return topology.replicas is not None and topology.max_length is None and topology.max_length_bytes is None


def not_taken(job_id: str, error: MessageNacked) -> PushFailed:
    """Return what is raised for a job that its queue refuses."""
    return PushFailed(job_id, "QUEUE_FULL", f"the queue refused it: {error}")


def record(broker: BrokerConnection, one: Outgoing) -> None:
    """Write the events of a confirmed job."""
    envelope = one.envelope
    events = broker.events
    unique_key = one.unique_key or one.idempotency_key
    # A worker may have started the job by now; its queue wait counts from the time of its envelope.
    time = envelope.enqueued_at
    if envelope.state != SCHEDULED and time is not None:
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
        JobEnqueued(
            job_type=envelope.type,
            queue=envelope.queue,
            priority=envelope.priority,
            scheduled_at=later,
            unique_key=unique_key,
            job=None if one.description is None else msgspec.Raw(one.description),
        ),
        envelope.enqueued_at,
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
