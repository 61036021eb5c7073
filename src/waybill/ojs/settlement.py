"""What becomes of a delivery: acknowledged, tried again, or put aside. Events first, the broker's copy last.

Nothing is acknowledged before what it stands for is safe (binding section 5.4 lists the acknowledgement first, and
would lose the job in a crash between the two):

    done       job.completed confirmed                        -> ack
    retry      copy at the retry exchange confirmed -> job.retrying confirmed -> ack
    discarded  job.discarded confirmed                        -> nack without requeue: the dead letter exchange

So a crash in between makes a duplicate at worst. A duplicate delivery of an attempt that this worker has finished is
recognised by job id and attempt, and settled without running again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from waybill.client import ClientError, ConnectionLost, Delivery, MessageNacked, MessageReturned
from waybill.ojs import delay_ladder
from waybill.ojs.cancellations import cancelled_event_id
from waybill.ojs.checkpoint import Checkpoint, read_checkpoint
from waybill.ojs.control import Control
from waybill.ojs.envelope import Envelope, ErrorRecord, edit_envelope, with_failure
from waybill.ojs.errors import ControlFailed, InvalidJob, ResponseCode
from waybill.ojs.events import (
    ErrorSummary,
    JobCancelled,
    JobCompleted,
    JobDiscarded,
    JobExpired,
    JobFailed,
    JobRetrying,
    JobScheduled,
)
from waybill.ojs.execution import LOST, AttemptKey, Execution, Failure
from waybill.ojs.message import kept_headers, max_attempts, republish_properties, retry_headers
from waybill.ojs.recent import Recent
from waybill.ojs.retry import is_non_retryable, retry_bucket_ms, retry_delay_seconds
from waybill.ojs.session import Session
from waybill.ojs.states import Operation, State, transition
from waybill.ojs.timestamps import format_timestamp, parse_timestamp

REMEMBERED_ATTEMPTS: Final = 20_000
MAX_RESULT_BYTES: Final = 1024 * 1024
MAX_REPUBLISH_WAIT_SECONDS: Final = 60.0
CHECKPOINT_SECONDS: Final = 3.0
"""How long to wait for the coordinator's word on a job whose worker vanished."""

OnDiscard = Literal["dead_letter", "acknowledge"]

_log = logging.getLogger("waybill.ojs.worker")


class RecentAttempts:
    """Remembers at least the last REMEMBERED_ATTEMPTS attempts that were finished here."""

    def __init__(self) -> None:
        self._young: set[AttemptKey] = set()
        self._old: set[AttemptKey] = set()

    def add(self, key: AttemptKey) -> None:
        """Remember an attempt; from time to time the older half is forgotten."""
        self._young.add(key)
        if len(self._young) >= REMEMBERED_ATTEMPTS:
            self._old, self._young = self._young, set()

    def __contains__(self, key: AttemptKey) -> bool:
        """Say whether an attempt is remembered."""
        return key in self._young or key in self._old


class Settlement:
    """Settles the deliveries of one worker over one session."""

    def __init__(self, session: Session, on_discard: OnDiscard, *, holds_delivery: bool = True) -> None:
        """`on_discard` "acknowledge" keeps discarded jobs out of the dead letter queue unless they ask for it.

        Without `holds_delivery` the broker's copy is in other hands, and nothing can be done by settling it.
        """
        self._finished = RecentAttempts()
        self._dead_lettered = RecentAttempts()
        self._retrying: dict[AttemptKey, Execution] = {}
        self._unsaid: Recent[AttemptKey, Failure] = Recent(REMEMBERED_ATTEMPTS)
        """Failures whose next attempt a lost connection kept from the broker."""
        self.completed_count = 0
        self.failed_count = 0
        self.retried_count = 0
        self.discarded_count = 0
        self.cancelled_count = 0
        self._session = session
        self._events = session.events
        self._control = Control(session)
        self._tally = session.events.tally
        self._on_discard = on_discard
        self._nacks = session.declarer.topology.settle_by == "nack" or not holds_delivery
        self._republishing: set[asyncio.Task[None]] = set()
        self._gathering: object = None
        self._completed: list[Execution] = []

    def completed(
        self,
        execution: Execution,
        result: object,
        duration_seconds: float,
        started_at: str | None = None,
        worker_id: str = "",
    ) -> None:
        """Settle a success; with `started_at` and the worker, of an attempt whose start nobody has told of yet."""
        envelope = execution.envelope
        events = self._events
        duration_ms = int(duration_seconds * 1000)
        job_id, job_type, queue, attempt = envelope.id, envelope.type, execution.queue, execution.attempt
        encoded = None if result is None else _encode_result(envelope, result)
        if encoded is None and started_at is not None:
            events.record_attempt(job_id, started_at, job_type, queue, attempt, worker_id, duration_ms)
        elif encoded is None:
            events.record_completed(job_id, job_type, queue, attempt, duration_ms)
        else:
            if started_at is not None:
                events.record_started(job_id, started_at, job_type, queue, attempt, worker_id)
            data = JobCompleted(
                job_type=job_type, queue=queue, duration_ms=duration_ms, attempt=attempt, result=encoded
            )
            events.record(job_id, data)
        self.completed_count += 1
        self._tally.durations[job_type].add(duration_seconds)
        self._finished.add((job_id, attempt, envelope.enqueued_at))
        if events.gathering is not self._gathering:
            # One action for all jobs whose completion goes out in one message.
            self._gathering = events.gathering
            completed: list[Execution] = []
            self._completed = completed
            events.after(lambda: self._ack_all(completed))
        self._completed.append(execution)

    def failed(self, execution: Execution, failure: Failure, duration_seconds: float) -> None:
        """Settle a failure: another attempt if the handler and the policy allow one, or the end."""
        envelope = execution.envelope
        headers = execution.delivery.properties.headers
        limit = max_attempts(headers, envelope)
        again = (
            failure.response is ResponseCode.RETRY
            and execution.attempt < limit
            and not is_non_retryable(envelope.policy, failure.record.type)
        )
        failure.record.retryable = again
        self.failed_count += 1
        self._tally.durations[envelope.type].add(duration_seconds)
        self._session.events.record(
            envelope.id,
            JobFailed(
                job_type=envelope.type,
                queue=execution.queue,
                attempt=execution.attempt,
                error=_summary(failure.record),
                duration_ms=int(duration_seconds * 1000),
            ),
        )
        if again:
            self._start(self._retry(execution, failure))
        else:
            self._end(execution, failure)

    def cancelled(self, execution: Execution) -> None:
        """Settle a job that somebody has cancelled, before it started or while it ran."""
        envelope = execution.envelope
        events = self._session.events
        data = JobCancelled(job_type=envelope.type, queue=execution.queue)
        events.record(envelope.id, data, event_id=cancelled_event_id(envelope.id))
        self.cancelled_count += 1
        self._finished.add(execution.key)
        if self._nacks:
            events.after(lambda: self._bury(execution.delivery, execution.queue))
        else:
            events.after(lambda: self._ack(execution.delivery, execution.queue))

    def replaced(self, execution: Execution) -> None:
        """Drop an attempt that a coordinator has replaced: whatever came of it does not count any more."""
        _log.warning("attempt %d of job %s was replaced", execution.attempt, execution.envelope.id)
        self._finished.add(execution.key)
        self._ack(execution.delivery, execution.queue)

    def settled_before(self, execution: Execution) -> bool:
        """Settle a new delivery of an attempt that was finished here, as the lost one was to be; False if none was.

        A job that was given up goes to the dead letter queue: its first delivery may have been lost before the broker
        heard of that. A failure that could not be followed by the next attempt is now.
        """
        delivery = execution.delivery
        if execution.key in self._retrying:
            self._retrying[execution.key].delivery = delivery
            return True
        unsaid = self._unsaid.pop(execution.key, None)
        if unsaid is not None:
            self._start(self._retry(execution, unsaid))
            return True
        if execution.key in self._dead_lettered:
            self._session.events.after(lambda: self._bury(delivery, execution.queue))
        elif execution.key in self._finished:
            self._session.events.after(lambda: self._ack(delivery, execution.queue))
        else:
            return False
        return True

    def expired(self, execution: Execution, now: datetime) -> None:
        """Settle a job whose deadline passed before it could start (ojs-core section 5.2, expires_at)."""
        envelope = execution.envelope
        created_at = envelope.created_at or envelope.expires_at or ""
        deadline = parse_timestamp(envelope.expires_at or "", "expires_at")
        lifetime = deadline - parse_timestamp(created_at, "created_at")
        self._session.events.record(
            envelope.id,
            JobExpired(
                job_type=envelope.type,
                queue=execution.queue,
                created_at=created_at,
                expired_at=format_timestamp(now),
                ttl_ms=int(lifetime / timedelta(milliseconds=1)),
            ),
        )
        record = ErrorRecord(type="Expired", message=f"it expired at {envelope.expires_at}", code="JOB_EXPIRED")
        self._discard(execution.delivery, execution.queue, envelope, execution.attempt - 1, record)

    def unreadable(self, delivery: Delivery, queue: str, error: InvalidJob) -> None:
        """Put a message aside that is no job; the broker's dead letter queue keeps it as it came."""
        properties = delivery.properties
        _log.error("a message in %s is no job and goes to the dead letter queue: %s", queue, error)
        placeholder = Envelope(id=properties.message_id or "unknown", type=properties.type or "unknown", queue=queue)
        record = ErrorRecord(type="InvalidJob", message=str(error), code=error.code)
        self._discard(delivery, queue, placeholder, 0, record)

    def unknown_type(self, execution: Execution) -> None:
        """Put a job aside for which this worker has no handler."""
        job_type = execution.envelope.type
        _log.error("job %s has no handler for its type %s", execution.envelope.id, job_type)
        record = ErrorRecord(type="UnknownJobType", message=f"no handler for {job_type}", code="INVALID_JOB_TYPE")
        self._discard(execution.delivery, execution.queue, execution.envelope, execution.attempt - 1, record)

    def postponed(self, execution: Execution, seconds: float) -> None:
        """Settle an attempt that shall begin later: the same one, after a while at the broker."""
        self._start(self._postpone(execution, seconds))

    async def _postpone(self, execution: Execution, seconds: float) -> None:
        delivery, queue = execution.delivery, execution.queue
        headers = kept_headers(delivery.properties.headers)
        if not await self._republish(delivery, queue, delivery.body, headers, seconds):
            return
        envelope = execution.envelope
        events = self._session.events
        due = format_timestamp(datetime.now(UTC) + timedelta(seconds=seconds))
        events.record(envelope.id, JobScheduled(job_type=envelope.type, queue=queue, scheduled_at=due))
        events.after(lambda: self._ack(execution.delivery, queue))

    def hand_back(self, delivery: Delivery, queue: str) -> None:
        """Return a job that was never started.

        It is published anew with the same attempt, and then acknowledged: a requeued message would come back flagged
        redelivered, and the next worker would have to count an attempt that nobody made.
        """
        self._start(self._republish_unstarted(delivery, queue))

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait until all that was decided is safe; False if that takes longer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        if self._republishing:
            await asyncio.wait(set(self._republishing), timeout=timeout_seconds)
        drained = await self._session.events.drain(max(0.0, deadline - loop.time()))
        return drained and not self._republishing

    def _end(self, execution: Execution, failure: Failure) -> None:
        wants_dead_letter = failure.response is ResponseCode.DEAD_LETTER or (
            failure.response is ResponseCode.RETRY and execution.envelope.policy.on_exhaustion == "dead_letter"
        )
        attempts = self._dead_lettered if self._is_kept(wants_dead_letter) else self._finished
        attempts.add(execution.key)
        self._discard(
            execution.delivery,
            execution.queue,
            execution.envelope,
            execution.attempt,
            failure.record,
            keep=wants_dead_letter,
        )

    def _discard(
        self,
        delivery: Delivery,
        queue: str,
        envelope: Envelope,
        attempts: int,
        record: ErrorRecord,
        *,
        keep: bool = True,
    ) -> None:
        """Say that a job has ended, then let the broker move it to its dead letter queue."""
        self.discarded_count += 1
        events = self._session.events
        events.record(
            envelope.id,
            JobDiscarded(job_type=envelope.type, queue=queue, total_attempts=attempts, last_error=_summary(record)),
        )
        if self._is_kept(keep):
            events.after(lambda: self._bury(delivery, queue))
        else:
            events.after(lambda: self._ack(delivery, queue))

    def _is_kept(self, wanted: bool) -> bool:  # noqa: FBT001 - the answer to the question that the name asks
        return wanted or self._on_discard == "dead_letter"

    async def _retry(self, execution: Execution, failure: Failure) -> None:
        """Publish the next attempt to where it waits, then say so, then acknowledge this one."""
        self._retrying[execution.key] = execution
        try:
            if not await self._published_next(execution, failure):
                self._unsaid[execution.key] = failure
        finally:
            # A newer delivery of the same attempt may have begun to be followed meanwhile.
            if self._retrying.get(execution.key) is execution:
                del self._retrying[execution.key]

    async def _published_next(self, execution: Execution, failure: Failure) -> bool:
        """Publish the next attempt and have this one acknowledged; False if the connection is lost before."""
        envelope = execution.envelope
        checkpoint = await self._checkpoint(execution, failure)
        if not execution.delivery.is_current:
            # Who has lost the delivery has no say any more: the broker gives the job to somebody.
            return False
        limit = max_attempts(execution.delivery.properties.headers, envelope)
        delay = retry_delay_seconds(envelope.policy, execution.attempt, random.random())  # noqa: S311 - jitter
        now = datetime.now(UTC)
        body = edit_envelope(
            execution.delivery.body,
            {
                "state": transition(State.ACTIVE, Operation.FAIL_RETRYABLE).value,
                "attempt": execution.attempt,
                "error": failure.record,
                "errors": with_failure(envelope.errors, failure.record),
                "checkpoint": checkpoint,
            },
        )
        headers = retry_headers(
            execution.delivery.properties.headers,
            queue=execution.queue,
            attempt=execution.attempt + 1,
            failure=failure.record,
        )
        if execution.context is not None:
            headers |= execution.context.next_headers
        if not await self._republish(execution.delivery, execution.queue, body, headers, delay):
            return False
        self.retried_count += 1
        self._finished.add(execution.key)
        events = self._session.events
        bucket_ms = retry_bucket_ms(delay)
        waits = bucket_ms / 1000 if bucket_ms is not None else delay_ladder.whole_seconds(delay)
        events.record(
            envelope.id,
            JobRetrying(
                job_type=envelope.type,
                queue=execution.queue,
                attempt=execution.attempt,
                max_attempts=limit,
                next_retry_at=format_timestamp(now + timedelta(seconds=waits)),
                error=_summary(failure.record),
            ),
        )
        settle = self._reject if self._nacks else self._ack
        events.after(lambda: settle(execution.delivery, execution.queue))
        return True

    async def _checkpoint(self, execution: Execution, failure: Failure) -> Checkpoint | None:
        """Return what the next attempt shall go on from: as this one left it, or as the coordinator heard it."""
        carried = read_checkpoint(execution.envelope.checkpoint)
        if execution.context is not None:
            return execution.context.current_checkpoint
        if failure.record.type != LOST:
            return carried
        try:
            if await self._control.is_heard(execution.queue):
                job = await self._control.info(execution.envelope.id, execution.queue, CHECKPOINT_SECONDS)
                return carried if job is None or job.checkpoint is None else job.checkpoint
        except (ClientError, ControlFailed) as error:
            _log.warning("the checkpoint of job %s could not be looked up: %r", execution.envelope.id, error)
        return carried

    async def _republish_unstarted(self, delivery: Delivery, queue: str) -> None:
        headers = kept_headers(delivery.properties.headers)
        if await self._republish(delivery, queue, delivery.body, headers, None):
            self._ack(delivery, queue)

    def _bury(self, delivery: Delivery, queue: str) -> None:
        """Let the broker move a job to its dead letter queue.

        Where a rejected job is dropped, because its next attempt waits elsewhere, one that has none is published there.
        """
        if self._nacks:
            self._start(self._publish_dead(delivery, queue))
        else:
            self._reject(delivery, queue)

    async def _publish_dead(self, delivery: Delivery, queue: str) -> None:
        headers = kept_headers(delivery.properties.headers)
        if await self._republish(delivery, queue, delivery.body, headers, None, dead=True):
            self._reject(delivery, queue)

    async def _republish(
        self,
        delivery: Delivery,
        queue: str,
        body: bytes,
        headers: dict[str, object],
        delay: float | None,
        *,
        dead: bool = False,
    ) -> bool:
        """Publish a copy that comes to `queue` after `delay` seconds (None: at once), until the broker confirms it.

        With `dead` it comes to the dead letter queue. False if the connection is lost: the original is on its way back
        to the queue then, so a copy would be one too many. Retry queues end at 300 s; longer delays take the ladder.
        """
        declarer = self._session.declarer
        topology = declarer.topology
        properties = republish_properties(delivery.properties, headers)
        pause_seconds = 1.0
        loop = asyncio.get_running_loop()
        while True:
            if delay is None:
                exchange, key = topology.dead_letter_exchange if dead else topology.direct, queue
            elif (bucket_ms := retry_bucket_ms(delay)) is not None:
                await declarer.ensure_retry(queue, bucket_ms)
                exchange, key = topology.retry, topology.retry_key(queue, bucket_ms)
            else:
                await declarer.ensure_schedule(queue)
                exchange, key, waiting = topology.schedule_address(queue, delay)
                properties = republish_properties(delivery.properties, headers | waiting)
            published_at = loop.time()
            try:
                await self._session.publishing.publish(
                    body, exchange=exchange, routing_key=key, properties=properties, mandatory=True
                )
            except ConnectionLost:
                return False
            except MessageReturned:
                self._tally.returned += 1
                _log.warning("nothing takes %s from %s: declaring it again", key, exchange)
                declarer.forget_queue(queue)
            except MessageNacked:
                _log.warning("the broker refuses %s at %s, trying again in %g s", key, exchange, pause_seconds)
            else:
                self._tally.published[queue] += 1
                self._tally.confirm_latency.add(loop.time() - published_at)
                return True
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, MAX_REPUBLISH_WAIT_SECONDS)

    def _ack_all(self, executions: list[Execution]) -> None:
        acked: Counter[str] = Counter()
        for execution in executions:
            # The delivery is looked up now: it may have been replaced after a reconnect.
            if execution.delivery.ack():
                acked[execution.queue] += 1
        self._tally.acked.update(acked)
        self._tally.unacked.subtract(acked)

    def _ack(self, delivery: Delivery, queue: str) -> None:
        if delivery.ack():
            self._tally.acked[queue] += 1
            self._tally.unacked[queue] -= 1

    def _reject(self, delivery: Delivery, queue: str) -> None:
        if delivery.nack(requeue=False):
            self._tally.nacked[queue] += 1
            self._tally.unacked[queue] -= 1

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._republishing.add(task)
        task.add_done_callback(self._republished)

    def _republished(self, task: asyncio.Task[None]) -> None:
        self._republishing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # The delivery stays unacknowledged: the broker gives it to somebody when this connection ends.
            _log.error("a job could not be published for its next attempt", exc_info=task.exception())


def _summary(record: ErrorRecord) -> ErrorSummary:
    return ErrorSummary(
        code=record.code,
        message=record.message,
        type=record.type,
        retryable=record.retryable,
        stack_trace="\n".join(record.backtrace) if record.backtrace else None,
    )


def _encode_result(envelope: Envelope, result: object) -> msgspec.Raw | None:
    """Return a handler's result as JSON; the job is done in any case, so a result that is not JSON is only left out."""
    try:
        encoded = msgspec.json.encode(result)
    except (TypeError, ValueError) as error:
        _log.error("the result of job %s (%s) is not JSON: %s", envelope.id, envelope.type, error)
        return None
    if len(encoded) > MAX_RESULT_BYTES:
        _log.error("the result of job %s (%s) is too large: %d bytes", envelope.id, envelope.type, len(encoded))
        return None
    return msgspec.Raw(encoded)
