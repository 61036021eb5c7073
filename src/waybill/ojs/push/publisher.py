"""Publishes valid jobs over one connection without losing them, retrying up to a timeout."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Final

from waybill.client import ConnectionLost, MessageNacked, MessageReturned, RequestTimeout
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.unique_places import UniquePlaces
from waybill.ojs.errors import PushFailed, UnknownQueue
from waybill.ojs.push.blocked_timeout import BlockedTimeout
from waybill.ojs.push.new_envelope import expiration_ms, needs_more_headers, trace_of
from waybill.ojs.push.outgoing import SCHEDULED, Outgoing, Publication, nacks_pass, not_taken, record
from waybill.ojs.spec.envelope import Envelope, seconds_until_scheduled
from waybill.ojs.spec.envelope_size import check_pushed
from waybill.ojs.spec.headers import PLACE, PushEncoder, push_properties
from waybill.ojs.topology.queue_guard import POLL_SECONDS, QueueGuard

_log = logging.getLogger("waybill.ojs.client")

LOSS_PAUSE_SECONDS: Final = 0.02
NACK_PAUSE_SECONDS: Final = 0.25
"""A quorum queue needs about a second to elect a leader."""
DESCRIBE_VARIABLE: Final = "WAYBILL_DESCRIBE_JOBS"


class BatchFailed(PushFailed):
    """Some jobs of a `push_many` were not enqueued; `failures` says which and why, `pushed` has the others."""

    def __init__(self, failures: Sequence[PushFailed], pushed: Sequence[Envelope]) -> None:
        """The code is that of the first failure."""
        super().__init__(failures[0].job_id, failures[0].code, f"{len(failures)} of the jobs of a batch failed")
        self.failures = failures
        self.pushed = pushed


class Publisher:
    """The pushing side of one connection."""

    def __init__(
        self,
        broker: BrokerConnection,
        encoder: PushEncoder,
        guard: QueueGuard,
        timeout_seconds: float,
        *,
        waits_while_blocked: bool,
    ) -> None:
        """`guard` decides which queues may be declared.

        `timeout_seconds` is how long a push retries after lost connections, and waits while blocked.
        """
        self.broker = broker
        self.timeout_seconds = timeout_seconds
        self.blocked_timeout = BlockedTimeout(broker.connection, timeout_seconds, while_blocked=waits_while_blocked)
        self._encoder = encoder
        self._guard = guard
        topology = broker.declarer.topology
        self._direct = topology.direct
        self._nacks_pass = nacks_pass(topology)
        self.places = UniquePlaces(broker.connection, topology)

    def is_ready_for(self, queues: Collection[str]) -> bool:
        """Return whether the broker accepts publishes to these queues now: nothing to wait for or to declare."""
        connection, has_declared = self.broker.connection, self.broker.declarer.has_declared
        return connection.is_open and connection.blocked is None and all(has_declared(queue) for queue in queues)

    def took(self, queue: str, count: int, seconds: float) -> None:
        """Count jobs of a queue that were published by others than `enqueue`, and how long that took."""
        counters = self.broker.events.counters
        counters.push_latency.add(seconds)
        counters.pushed[queue] += count

    async def enqueue(self, jobs: list[Outgoing], now: datetime) -> list[Envelope | PushFailed]:
        """Publish encoded jobs and their events; return each job, or why it was not enqueued."""
        deadline = time.monotonic() + self.timeout_seconds
        has_declared = self.broker.declarer.has_declared
        # The usual case: a single push need not set up a wait if there is nothing to wait for.
        needed = {(one.envelope.queue, one.envelope.state) for one in jobs}
        if not all(has_declared(queue) and state != SCHEDULED for queue, state in needed):
            await self._declare([one.envelope for one in jobs], deadline)
        started = time.monotonic()
        found = await self._publish(jobs, deadline, lambda one: self.address(one, now))
        self._count(jobs, found, time.monotonic() - started)
        self.broker.events.push_out()
        await self.recorded()
        if not found:
            return [one.envelope for one in jobs]
        failures = {failure.job_id: failure for failure in found}
        return [failures.get(one.envelope.id, one.envelope) for one in jobs]

    async def enqueue_alone(self, one: Outgoing, now: datetime, *, awaits_event: bool) -> bool:
        """Publish an encoded job and its event in the usual case; False if it has to go through `enqueue`.

        It does what `enqueue` does, with one wait for both confirms instead of two. Unless it `awaits_event`, it only
        waits for the job; events in quick succession share a message. Raises PushFailed.
        """
        broker, envelope = self.broker, one.envelope
        if envelope.state == SCHEDULED or one.may_be_there or not self.is_ready_for((envelope.queue,)):
            return False
        self.address(one, now)
        started = time.monotonic()
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        told: list[BaseException | None] = []

        def tell(error: BaseException | None) -> None:
            told.append(error)
            if error is not None or over.done():
                settle(over)
                return
            self.took(envelope.queue, 1, time.monotonic() - started)
            record(broker, one)
            if awaits_event or broker.events.is_behind:
                broker.events.after(lambda: settle(over))
            else:
                broker.events.linger()
                settle(over)

        broker.publishing.publish_telling(
            tell, one.body, exchange=one.exchange, routing_key=one.key, properties=one.properties, mandatory=True
        )
        try:
            async with self.blocked_timeout.limit():
                await over
        except TimeoutError:
            if not told:
                raise self.not_accepted(envelope.id, envelope.queue) from None
            self.warn_of_events()
        one.may_be_there = not self.is_taken(told[0], envelope.id, envelope.queue)
        return not one.may_be_there

    def not_accepted(self, job_id: str, queue: str) -> PushFailed:
        """Count a job that the broker has not accepted in the time that it may block, and return the error for it."""
        self.broker.events.counters.refused[queue, "BACKEND_UNAVAILABLE"] += 1
        return PushFailed(job_id, "BACKEND_UNAVAILABLE", self.blocked_timeout.reason)

    def is_taken(self, error: BaseException | None, job_id: str, queue: str) -> bool:
        """Return whether the broker has a job; False if it must be published again. Raises PushFailed for a refusal."""
        if error is None:
            return True
        if isinstance(error, MessageReturned):
            # A queue that we declared was deleted.
            self.broker.declarer.forget_queue(queue)
        elif isinstance(error, MessageNacked) and not self._nacks_pass:
            self.broker.events.counters.refused[queue, "QUEUE_FULL"] += 1
            raise not_taken(job_id, error)
        elif not isinstance(error, (ConnectionLost, MessageNacked, RequestTimeout)):
            raise error
        return False

    def _count(self, jobs: list[Outgoing], failures: list[PushFailed], seconds: float) -> None:
        """Count pushed jobs: once per batch, not per job, if all go to one queue."""
        counters = self.broker.events.counters
        counters.push_latency.add(seconds)
        first = jobs[0].envelope.queue
        if not failures and all(one.envelope.queue == first for one in jobs):
            counters.pushed[first] += len(jobs)
            return
        codes = {failure.job_id: failure.code for failure in failures}
        for one in jobs:
            code = codes.get(one.envelope.id)
            if code is None:
                counters.pushed[one.envelope.queue] += 1
            else:
                counters.refused[one.envelope.queue, code] += 1

    async def declare(self, jobs: list[Envelope]) -> None:
        """Declare what jobs need. Raises PushFailed if the broker is unreachable for too long."""
        await self._declare(jobs, time.monotonic() + self.timeout_seconds)

    async def publish_again(self, jobs: list[Outgoing]) -> list[PushFailed]:
        """Publish jobs whose messages are encoded; return those that were refused. Their events are recorded."""
        return await self._publish(jobs, time.monotonic() + self.timeout_seconds, lambda _: None)

    async def recorded(self) -> None:
        """Wait until the events recorded so far are confirmed."""
        broker = self.broker
        confirmed = asyncio.Event()
        broker.events.after(confirmed.set)
        try:
            async with self.blocked_timeout.limit():
                await confirmed.wait()
        except TimeoutError:
            self.warn_of_events()

    def warn_of_events(self) -> None:
        """Log that jobs are enqueued whose events are not confirmed."""
        # The jobs are safe. Their events follow as soon as the broker accepts them.
        blocked = self.broker.connection.blocked or "it cannot be reached"
        _log.warning("the broker accepts no events at the moment: %s", blocked)

    async def _declare(self, jobs: list[Envelope], deadline: float) -> None:
        """Declare what the jobs need, retrying after lost connections until the deadline."""
        declarer = self.broker.declarer
        while True:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    for queue in dict.fromkeys(envelope.queue for envelope in jobs):
                        if not self._guard.admits(queue) and not declarer.has_declared(queue):
                            look_seconds = min(POLL_SECONDS, (deadline - time.monotonic()) / 4)
                            await self._guard.check(queue, self.broker.connection, declarer.topology, look_seconds)
                        await declarer.ensure_queue(queue)
                    for queue in {envelope.queue for envelope in jobs if envelope.state == SCHEDULED}:
                        await declarer.ensure_schedule(queue)
                    return
            except UnknownQueue as error:
                refused = next(one.id for one in jobs if one.queue == error.queue)
                raise PushFailed(refused, error.code, str(error)) from error
            except TimeoutError as error:
                raise PushFailed(jobs[0].id, "BACKEND_UNAVAILABLE", "the broker cannot be reached") from error
            except (ConnectionLost, RequestTimeout):
                await asyncio.sleep(LOSS_PAUSE_SECONDS)

    def address(self, one: Outgoing, now: datetime) -> None:
        """Fill in the properties of a job's message, and its exchange and routing key."""
        if one.exchange:
            return
        envelope, options = one.envelope, one.options
        topology = self.broker.declarer.topology
        traceparent, tracestate = trace_of(envelope, options)
        exchange, key = self._direct, envelope.queue
        waiting: dict[str, object] = {}
        if envelope.state == SCHEDULED:
            delay = seconds_until_scheduled(envelope, now)
            exchange, key, waiting = topology.schedule_address(envelope.queue, delay)
        if one.place is not None:
            waiting = waiting | {PLACE: one.place}
        if (
            tracestate is None
            and not waiting
            and (one.template is not None or not needs_more_headers(envelope, options))
        ):
            one.properties = self._encoder.encode(envelope, traceparent, one.idempotency_key, one.reply_to)
        else:
            one.properties = push_properties(
                envelope,
                max_priority=topology.max_priority,
                traceparent=traceparent,
                tracestate=tracestate,
                idempotency_key=one.idempotency_key,
                correlation_id=options.get("correlation_id"),
                reply_to=one.reply_to,
                expiration_ms=expiration_ms(envelope, options, topology),
                more_headers=waiting,
            )
        one.exchange, one.key = exchange, key

    async def _publish(
        self, jobs: list[Outgoing], deadline: float, address: Callable[[Outgoing], None]
    ) -> list[PushFailed]:
        """Publish until each job is confirmed or refused; jobs that a lost connection took are published again."""
        failures: list[PushFailed] = []
        broker, blocked_timeout = self.broker, self.blocked_timeout
        redeclared = False
        while jobs:
            publication = Publication(broker, nack_is_loss=self._nacks_pass and time.monotonic() < deadline)
            try:
                async with blocked_timeout.limit():
                    if broker.connection.blocked is not None:
                        # Anything sent now would arrive some day, whatever its pusher has been told.
                        await broker.publishing.drain()
                    await publication.run(jobs, address)
            except TimeoutError:
                stuck = jobs[publication.settled_count :] + publication.lost
                failures += [
                    PushFailed(one.envelope.id, "BACKEND_UNAVAILABLE", blocked_timeout.reason) for one in stuck
                ]
                return failures + publication.failures
            failures += publication.failures
            jobs, returned = publication.lost, publication.returned
            if returned and not redeclared:
                # A queue that we declared was deleted: declare it again (binding section 10.1).
                redeclared = True
                for one in returned:
                    broker.declarer.forget_queue(one.envelope.queue)
                await self._declare([one.envelope for one in returned], deadline)
                jobs = jobs + returned
            else:
                failures += [PushFailed(one.envelope.id, "NOT_FOUND", "no queue is bound for it") for one in returned]
            if publication.lost and self._nacks_pass and broker.connection.is_open:
                await asyncio.sleep(NACK_PAUSE_SECONDS)
            is_over = publication.is_unconfirmed and time.monotonic() > deadline
            if jobs and (is_over or not await is_back(broker, deadline)):
                text = "the broker cannot be reached, or does not confirm it"
                return failures + [PushFailed(one.envelope.id, "BACKEND_UNAVAILABLE", text) for one in jobs]
        return failures


def describes_by_default() -> bool:
    """Return the default for whether events contain the jobs: WAYBILL_DESCRIBE_JOBS, off by default."""
    return os.environ.get(DESCRIBE_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}


def encode_all(jobs: list[Outgoing], *, describes: bool = False) -> None:
    """Encode jobs and, with `describes`, their descriptions for events. Raises InvalidJob if too long."""
    for one in jobs:
        one.body = one.envelope.encode() if one.template is None else one.template.body(one.envelope)
        check_pushed(one.body)
        if describes:
            one.description = one.body


def without_failures(outcomes: list[Envelope | PushFailed]) -> list[Envelope]:
    """Return the jobs if all were enqueued; raise BatchFailed otherwise."""
    failures = [one for one in outcomes if isinstance(one, PushFailed)]
    pushed = [one for one in outcomes if isinstance(one, Envelope)]
    if failures:
        raise BatchFailed(failures, pushed)
    return pushed


def settle(future: asyncio.Future[None]) -> None:
    """Complete a future, unless it is done."""
    if not future.done():
        future.set_result(None)


async def is_back(broker: BrokerConnection, deadline: float) -> bool:
    """Wait for the connection after a loss; False if the deadline, by the monotonic clock, comes first."""
    # The connection notices its loss a little later than its publishes do.
    await asyncio.sleep(LOSS_PAUSE_SECONDS)
    try:
        await broker.wait_for_connection(deadline - time.monotonic())
    except TimeoutError:
        return False
    return True
