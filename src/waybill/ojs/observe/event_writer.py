"""Writes events to the stream: many per message, with confirms, followed by the callbacks that depend on them.

A job may be acknowledged only when its event is safe, so the acknowledgement is passed together with the event, and is
called when the broker has confirmed the event:

    record(job.completed) ; after(delivery.ack) ... end of the loop's turn: one message ... confirm: all the acks

A few messages are in flight at a time. Meanwhile events are collected, so messages are small when the rate is low and
large when it is high. Large messages overlap: the broker stores one while the next is filled. Messages that were lost
with a connection are published again, in order, before anything new; a reader may see such an event twice with one id.

Each partition has a channel of its own. If a stream's leader fails, RabbitMQ 3.10 publishes what it has not confirmed
to the next leader, and numbers these messages as the channel does, not as the stream does. If the channel has published
more than the stream has got, RabbitMQ then confirms messages that it does not store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import time as clock
from typing import Final, Self

import msgspec
from mypy_extensions import mypyc_attr

from waybill.client import BasicProperties, Channel, MessageReturned, NotFound
from waybill.ojs.connection.identity import Identity
from waybill.ojs.observe.counters import Counters
from waybill.ojs.observe.event_batch import Batch, Place, cut, messages_of
from waybill.ojs.observe.event_forms import MAX_FORMS, EventForms, JobKind, is_plain
from waybill.ojs.observe.event_retries import EventRetries
from waybill.ojs.observe.own_events import EventFollower, OwnEvent
from waybill.ojs.spec.envelope import CONTENT_TYPE
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.event_partitions import HEADER, partition_of_job
from waybill.ojs.spec.events import (
    BATCH_TYPE,
    JobCompleted,
    JobStarted,
    ReceivedEvent,
    ViewMarked,
    encode_event,
    make_event,
)
from waybill.ojs.spec.headers import PERSISTENT
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.timestamps import format_unix_time
from waybill.ojs.topology.declarer import TopologyDeclarer

MAX_IN_FLIGHT: Final = 4
FEW_EVENTS: Final = 16
"""If more messages than this are in flight, the rate is high: the next message waits for a confirm, or until it is
large.
"""
MANY_EVENTS: Final = 200
"""The events of a large message, which is sent beside others. Otherwise jobs would wait for their acknowledgements in
turn.
"""
LINGER_SECONDS: Final = 0.005
"""How long events without a waiter are collected: a message of events costs the broker a sync, as a job does."""
MAX_SHORT_STRING: Final = 255
"""The maximum bytes of a text property."""

OpenChannel = Callable[[], Awaitable[Channel]]
DescribedJob = tuple[str, str, JobKind, bytes]
"""A pushed job: its id, its time, its kind and its envelope."""

_log = logging.getLogger("waybill.ojs.events")


@mypyc_attr(allow_interpreted_subclasses=True)
class EventWriter:
    """Publishes events of one source, on a channel with confirms for each partition."""

    def __init__(
        self,
        open_channel: OpenChannel,
        channels: Sequence[Channel],
        declarer: TopologyDeclarer,
        source: str,
        identity: Identity | None,
    ) -> None:
        """Use `open`."""
        self.counters = Counters()
        self.follower: EventFollower | None = None
        """Told of messages that contain only events of the usual types."""
        self._open_channel = open_channel
        self._channels = list(channels)
        self._returned: set[int] = set()
        """The partitions that a message was returned for: their channels have published more than the streams have."""
        self._declarer = declarer
        self._exchange = declarer.topology.events
        self._partitions = declarer.topology.event_partitions
        self._most_in_flight = MAX_IN_FLIGHT * self._partitions
        self._identity = identity
        self._source = source
        self._forms = EventForms(source)
        self._data: dict[JobKind, dict[str, object]] = {}
        self._loop = asyncio.get_running_loop()
        self._gathering = Batch()
        self._in_flight: set[Batch] = set()
        self._failed: deque[Batch] = deque()
        self._retries = EventRetries(self._loop.time)
        self._flush_handle: asyncio.Handle | None = None
        self._linger_handle: asyncio.TimerHandle | None = None
        """Set while events without a waiter are collected."""
        self._has_unawaited = False
        self._published_at = -LINGER_SECONDS
        self._few_events = FEW_EVENTS
        self._gathers = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._millisecond = 0
        self._time = ""

    @classmethod
    async def open(
        cls, open_channel: OpenChannel, declarer: TopologyDeclarer, source: str, identity: Identity | None = None
    ) -> Self:
        """Open the channels; `source` is a URI: see `event_source`. Raises what `open_channel` raises."""
        channels = [await open_channel() for _ in range(declarer.topology.event_partitions)]
        return cls(open_channel, channels, declarer, source, identity)

    @property
    def gathering(self) -> object:
        """Identifies the batch of events being collected: a different object once it is sent."""
        return self._gathering

    def gather(self) -> None:
        """Keep one message in flight at a time, unless there are many events, and collect events before it is sent.

        For servers with many clients: each message costs as much as ten jobs, and otherwise there would be many small
        ones. A message is sent after an iteration of the loop, which reads what all clients have sent, without new
        events.
        """
        self._gathers = True
        self._few_events = 0

    def record(self, subject: str, data: EventData, time: str | None = None, event_id: str | None = None) -> None:
        """Add one event about `subject`; it is published at the end of this iteration of the event loop.

        `time` is when it happened (RFC 3339), by default now. Pass `event_id` if several processes may write the same
        event, so that readers count it once.
        """
        event = make_event(self._source, time or self.timestamp(), subject, data, event_id)
        self._add(event.id, event.type, encode_event(event), subject if event.type.startswith("job.") else "")

    def mark(self, partition: int, event_id: str) -> None:
        """Add an event to a partition that changes nothing: whoever reads it has read all before it."""
        event = make_event(self._source, self.timestamp(), event_id, ViewMarked(), event_id)
        self._add(event.id, event.type, encode_event(event), "", partition)

    def record_enqueued(
        self, job_id: str, time: str, job_type: str, queue: str, priority: int, unique_key: str | None = None
    ) -> None:
        """Add job.enqueued for a job that is due immediately: like `record`, but faster. `unique_key` must be plain."""
        event_id = "evt_" + new_id()
        text = self._forms.enqueued(event_id, time, job_id, job_type, queue, priority, unique_key)
        self._add(event_id, "job.enqueued", text, job_id)

    def record_described(self, job_id: str, time: str, job_type: str, queue: str, priority: int, job: bytes) -> None:
        """Add job.enqueued for a job that is due immediately, with its envelope."""
        self.record_all_described([(job_id, time, (job_type, queue, priority), job)])

    def record_all_described(self, jobs: Iterable[DescribedJob]) -> None:
        """Do the same for many jobs, whose ids are plain."""
        batch = self._gathering
        follows = self.follower is not None
        for job_id, time, kind, job in jobs:
            event_id = "evt_" + new_id()
            text = self._forms.described(event_id, time, job_id, kind, job.decode())
            if follows:
                event = ReceivedEvent(event_id, "job.enqueued", self._source, time, job_id, self._data_of(kind))
                batch.own.append(OwnEvent(event, text, job))
            self._add(event_id, "job.enqueued", text, job_id)

    def _data_of(self, kind: JobKind) -> dict[str, object]:
        """Return the data of job.enqueued, without the job, which the events of a kind share: nobody changes it."""
        found = self._data.get(kind)
        if found is None:
            if len(self._data) >= MAX_FORMS:
                self._data.clear()
            job_type, queue, priority = kind
            found = self._data[kind] = {"job_type": job_type, "queue": queue, "priority": priority}
        return found

    def record_started(
        self, job_id: str, time: str, job_type: str, queue: str, attempt: int, worker_id: str, run: int | None = None
    ) -> None:
        """Add job.started: like `record`, but faster."""
        if run is not None or not is_plain(job_id):
            begun = JobStarted(job_type=job_type, queue=queue, worker_id=worker_id, attempt=attempt, run=run)
            self.record(job_id, begun, time)
            return
        event_id = "evt_" + new_id()
        text = self._forms.started(event_id, time, job_id, job_type, queue, attempt, worker_id)
        if self.follower is not None:
            data: dict[str, object] = {
                "job_type": job_type,
                "queue": queue,
                "worker_id": worker_id,
                "attempt": attempt,
            }
            event = ReceivedEvent(event_id, "job.started", self._source, time, job_id, data)
            self._gathering.own.append(OwnEvent(event, text))
        self._add(event_id, "job.started", text, job_id)

    def record_attempt(
        self, job_id: str, started_at: str, job_type: str, queue: str, attempt: int, worker_id: str, duration_ms: int
    ) -> None:
        """Add job.started and job.completed of an attempt that has already ended, without a result."""
        if not is_plain(job_id):
            self.record_started(job_id, started_at, job_type, queue, attempt, worker_id)
            self.record_completed(job_id, job_type, queue, attempt, duration_ms)
            return
        event_id = "evt_" + new_id()
        started, completed = (event_id, started_at), ("evt_" + new_id(), self.timestamp())
        text = self._forms.attempt((job_type, queue, attempt, worker_id), job_id, started, completed, duration_ms)
        self._add(event_id, BATCH_TYPE, text, job_id)

    def record_completed(
        self, job_id: str, job_type: str, queue: str, attempt: int, duration_ms: int, result: bytes | None = None
    ) -> None:
        """Add job.completed: like `record`, but faster. `result` is JSON, None for a job without one."""
        if not is_plain(job_id):
            kept = None if result is None else msgspec.Raw(result)
            ended = JobCompleted(job_type=job_type, queue=queue, attempt=attempt, duration_ms=duration_ms, result=kept)
            self.record(job_id, ended)
            return
        event_id, time = "evt_" + new_id(), self.timestamp()
        encoded = None if result is None else result.decode()
        text = self._forms.completed(event_id, time, job_id, (job_type, queue, attempt), duration_ms, encoded)
        if self.follower is not None:
            data: dict[str, object] = {"job_type": job_type, "queue": queue, "attempt": attempt}
            if result is not None:
                data["result"] = msgspec.Raw(result)
            event = ReceivedEvent(event_id, "job.completed", self._source, time, job_id, data)
            self._gathering.own.append(OwnEvent(event, text))
        self._add(event_id, "job.completed", text, job_id)

    def record_result(self, job_id: str, data: JobCompleted) -> None:
        """Add job.completed with a result that expires, or with the reason why there is none."""
        event = make_event(self._source, self.timestamp(), job_id, data)
        text = encode_event(event)
        if self.follower is not None and data.result_error is None:
            fields = {name: getattr(data, name) for name in data.__struct_fields__}
            found = ReceivedEvent(event.id, event.type, event.source, event.time, job_id, fields)
            self._gathering.own.append(OwnEvent(found, text))
        self._add(event.id, event.type, text, job_id)

    def _add(self, event_id: str, event_type: str, text: str, job_id: str, partition: int = 0) -> None:
        """Add an event; `job_id` is empty for one that is about no job."""
        batch = self._gathering
        if self._partitions > 1:
            number = partition_of_job(job_id, self._partitions) if job_id else partition
            batch.places.append(Place(number, event_id, event_type))
        if not batch.events:
            batch.first_id, batch.type = event_id, event_type
        batch.events.append(text)
        if self._flush_handle is None:
            self._schedule()

    def after(self, action: Callable[[], object]) -> None:
        """Call `action` once all events recorded so far are confirmed."""
        self._gathering.actions.append(action)
        if self._flush_handle is None:
            self._schedule()

    @property
    def is_behind(self) -> bool:
        """Return whether the broker accepts events more slowly than they arrive: then writers have to wait."""
        is_full = len(self._in_flight) >= self._most_in_flight
        return is_full or bool(self._failed) or len(self._gathering.events) > MANY_EVENTS

    @property
    def refusal(self) -> str | None:
        """Return why the broker refuses events, None if it does not."""
        return self._retries.refusal

    def linger(self) -> None:
        """Collect the events of this iteration, which nobody waits for, until LINGER_SECONDS after the last message.

        An earlier message that somebody waits for includes them.
        """
        self._has_unawaited = True
        handle = self._flush_handle
        due = self._published_at + LINGER_SECONDS
        if handle is None or self._gathering.actions or due <= self._loop.time():
            return
        handle.cancel()
        self._flush_handle = None
        if self._linger_handle is None:
            self._linger_handle = self._loop.call_at(due, self._flush)

    def push_out(self) -> None:
        """Publish the recorded events now, not at the end of this iteration, unless many messages are in flight."""
        handle = self._flush_handle
        if handle is not None and not self._gathers and len(self._gathering.events) <= FEW_EVENTS:
            handle.cancel()
            self._flush()

    def timestamp(self) -> str:
        """Return the current time as in events; it is computed once a millisecond."""
        now = clock()
        millisecond = int(now * 1000)
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            self._time = format_unix_time(now)
        return self._time

    async def catch_up(self, timeout_seconds: float) -> None:
        """Wait, at most that long, until the events without a waiter are confirmed."""
        if self._has_unawaited:
            confirmed = asyncio.Event()
            self.after(confirmed.set)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await confirmed.wait()

    async def drain(self, timeout_seconds: float | None = None) -> bool:
        """Wait until everything recorded is confirmed; False after the timeout."""
        if self._linger_handle is not None:
            self._flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        return self._idle.is_set()

    def resume(self) -> None:
        """Publish again what was lost with a connection. Call it after a reconnect."""
        if self._failed:
            self._flush()

    def _schedule(self) -> None:
        self._idle.clear()
        if self._gathers:
            self._flush_handle = self._loop.call_soon(self._flush_if_quiet, 0)
        else:
            self._flush_handle = self._loop.call_soon(self._flush)

    def _flush_if_quiet(self, seen_count: int) -> None:
        """Publish if no events were added to the `seen_count` of the previous iteration."""
        count = len(self._gathering.events)
        if seen_count < count < MANY_EVENTS:
            self._flush_handle = self._loop.call_soon(self._flush_if_quiet, count)
        else:
            self._flush()

    def _flush(self) -> None:
        self._flush_handle = None
        if self._linger_handle is not None:
            self._linger_handle.cancel()
            self._linger_handle = None
        while self._failed and len(self._in_flight) < self._most_in_flight:
            self._publish(self._failed.popleft())
        while not self._failed and self._may_publish():
            batch = self._gathering
            if not batch.events and not batch.actions:
                break
            self._gathering = Batch()
            cut(batch, self._gathering)
            if not batch.events:
                # There is nothing new to confirm, but earlier events may still be in flight.
                self._follow(batch)
                break
            for message in messages_of(batch):
                self._publish(message)
        if not self._in_flight and not self._failed and self._flush_handle is None:
            self._has_unawaited = False
            self._idle.set()

    def _may_publish(self) -> bool:
        count = len(self._in_flight)
        if count == 0:
            return True
        if count >= self._most_in_flight:
            return False
        return (
            len(self._gathering.events) >= MANY_EVENTS
            or sum(len(batch.events) for batch in self._in_flight) <= self._few_events
        )

    def _follow(self, batch: Batch) -> None:
        """Let the actions of a batch without events wait for the batches in flight."""
        if self._in_flight:
            self._gathering.actions = batch.actions + self._gathering.actions
        else:
            self._run(batch)

    def _publish(self, batch: Batch) -> None:
        self._in_flight.add(batch)
        batch.published_at = self._published_at = self._loop.time()
        user = None if self._identity is None else self._identity.user
        if self.follower is not None and batch.is_all_own:
            self.follower.announce(batch.first_id, batch.own, user)
        # An event's id may be derived from a foreign job's id, which may be too long for a property.
        message_id = batch.first_id if len(batch.first_id.encode(errors="replace")) <= MAX_SHORT_STRING else None
        self._channels[batch.partition].publish_telling(
            lambda error: self._confirmed(batch, error),
            batch.body,
            exchange=self._exchange,
            routing_key=batch.type,
            properties=BasicProperties(
                content_type=CONTENT_TYPE,
                content_encoding="utf-8",
                headers=None if self._partitions == 1 else {HEADER: batch.partition},
                delivery_mode=PERSISTENT,
                message_id=message_id,
                timestamp=int(clock()),
                type=batch.type,
                user_id=user,
                app_id="ojs",
            ),
            mandatory=True,
        )

    def _confirmed(self, batch: Batch, error: BaseException | None) -> None:
        self._in_flight.discard(batch)
        if error is None:
            self.counters.published["events"] += 1
            if self._retries.has_failed:
                self._retries.end()
            self.counters.confirm_latency.add(self._loop.time() - batch.published_at)
            if self.follower is not None and batch.own:
                self.follower.confirmed(batch.first_id)
            try:
                self._go_on()
            finally:
                if batch.settle():
                    self._run(batch)
            return
        # Batches fail together and in order, which is the order of their first events.
        self._failed.append(batch)
        self._failed = deque(sorted(self._failed, key=lambda one: one.first_id))
        if self._identity is not None:
            self._identity.is_refused(error)
        if isinstance(error, MessageReturned):
            self.counters.returned += 1
            _log.error("no queue is bound to the event exchange %s: declaring the stream again", self._exchange)
            self._returned.add(batch.partition)
            self._declarer.forget_shared()
        else:
            if isinstance(error, NotFound):
                # Somebody has deleted the exchange.
                self._declarer.forget_shared()
            self._retries.note(error)
        self._loop.call_later(self._retries.pause_seconds, self._try_again)

    def _go_on(self) -> None:
        """Publish what was collected while a message was in flight."""
        if self._linger_handle is not None:
            return
        if not self._gathers:
            # Fewer wakeups of the loop: send it first, then the acknowledgements.
            self._flush()
        elif self._flush_handle is None:
            # Clients that are answered now send their next requests, whose events join it.
            self._schedule()

    def _try_again(self) -> None:
        if self._failed and not self._in_flight:
            self._retries.begin()
            task = self._loop.create_task(self._declare_and_flush())
            task.add_done_callback(self._report)

    async def _declare_and_flush(self) -> None:
        await self._declarer.ensure_shared()
        for partition in list(self._returned):
            opened = await self._open_channel()
            self._channels[partition].abandon()
            self._channels[partition] = opened
            self._returned.discard(partition)
        self._flush()

    @staticmethod
    def _run(batch: Batch) -> None:
        for action in batch.actions:
            try:
                action()
            except Exception:  # noqa: BLE001 - the others are acknowledgements of other jobs
                _log.exception("a callback after an event failed")

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._retries.note(task.exception())
            self._loop.call_later(self._retries.pause_seconds, self._try_again)


__all__ = ["BATCH_TYPE", "EventWriter"]
