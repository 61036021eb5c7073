"""Settles deliveries: acknowledges, retries, or dead-letters them. Events first, the delivery last.

Nothing is acknowledged before its outcome is safe (binding section 5.4 lists the acknowledgement first, which would
lose the job in a crash between the two):

    done       job.completed confirmed                        -> ack
    retry      copy at the retry exchange confirmed -> job.retrying confirmed -> ack
    discarded  job.discarded confirmed                        -> nack without requeue: the dead letter exchange

So a crash in between causes a duplicate at worst. A duplicate delivery of an attempt that this worker has finished is
recognized by job id and attempt, and settled without running again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec
from mypy_extensions import mypyc_attr

from waybill.client import Delivery
from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.control import Control
from waybill.ojs.control.unique_places import place_of
from waybill.ojs.errors import InvalidJob, ResponseCode
from waybill.ojs.hooks import HookCalls, Hooks
from waybill.ojs.results.outcome import Outcome, encode_outcome, wants_reply
from waybill.ojs.results.replies import Replies
from waybill.ojs.spec.envelope import MAX_DELAY_SECONDS, Envelope, ErrorRecord, edit_envelope, with_failure
from waybill.ojs.spec.event_data import ErrorSummary
from waybill.ojs.spec.events import JobCancellation, JobCompleted, JobDiscarded, JobRetrying, JobScheduled
from waybill.ojs.spec.headers import REPEATED, is_repeated, kept_headers, max_attempts, retry_headers, run_number
from waybill.ojs.spec.nesting import clean_text, shown
from waybill.ojs.spec.states import Operation, State, transition
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.worker.acknowledgements import Acknowledgements
from waybill.ojs.worker.attempt_ends import (
    delay_of,
    encoded_result,
    expired_event,
    expiry_record,
    failed_event,
    gets_another,
    kept_result,
    log_failure,
    next_checkpoint,
    placeholder_of,
    postponed_body,
    record_timeout,
    summary_of,
)
from waybill.ojs.worker.cancellations import cancelled_event_id
from waybill.ojs.worker.execution import AttemptKey, Execution, Failure
from waybill.ojs.worker.hook_notifier import HookNotifier
from waybill.ojs.worker.recent_attempts import RecentAttempts
from waybill.ojs.worker.republisher import MAX_REPUBLISH_WAIT_SECONDS, Republisher
from waybill.ojs.worker.unique_ends import UniqueEnds, ends_for_all

REMEMBERED_ATTEMPTS: Final = 20_000
MAX_REASON: Final = 2000

OnDiscard = Literal["dead_letter", "acknowledge"]

_log = logging.getLogger("waybill.ojs.worker")


@mypyc_attr(allow_interpreted_subclasses=True)
class Settlement:
    """Settles the deliveries of one worker over one connection."""

    def __init__(
        self,
        broker: BrokerConnection,
        on_discard: OnDiscard,
        *,
        holds_delivery: bool = True,
        exact_delays: bool = False,
        hooks: HookCalls | None = None,
    ) -> None:
        """`on_discard` "acknowledge" keeps discarded jobs out of the dead letter queue unless they require it.

        Without `holds_delivery`, another process holds the delivery, so it cannot be settled here. See `Republisher`
        for `exact_delays`.
        """
        self._hook_notifier = HookNotifier(hooks or HookCalls(Hooks()))
        self._finished = RecentAttempts(REMEMBERED_ATTEMPTS)
        self._dead_lettered = RecentAttempts(REMEMBERED_ATTEMPTS)
        self._retrying: dict[AttemptKey, Execution] = {}
        self._unsaid: BoundedDict[AttemptKey, Failure] = BoundedDict(REMEMBERED_ATTEMPTS)
        """Failures whose next attempt could not be published because of a lost connection."""
        self.completed_count = 0
        self.failed_count = 0
        self.retried_count = 0
        self.discarded_count = 0
        self.cancelled_count = 0
        self._broker = broker
        self._events = broker.events
        self._control = Control(broker)
        self._copies = Republisher(broker, is_exact=exact_delays)
        self._replies = Replies(broker, REMEMBERED_ATTEMPTS)
        self._counters = broker.events.counters
        self._on_discard = on_discard
        self._nacks = broker.declarer.topology.settle_by == "nack" or not holds_delivery
        self._republishing: set[asyncio.Task[None]] = set()
        self.unique = UniqueEnds(broker)
        self._acknowledgements = Acknowledgements(broker.events, self._replies, self._ack_end)
        self._ack = self._acknowledgements.ack
        self._reject = self._acknowledgements.reject

    def completed(
        self,
        execution: Execution,
        result: object,
        duration_seconds: float,
        started_at: str | None = None,
        worker_id: str = "",
    ) -> None:
        """Settle a success; with `started_at` and the worker, also record the start."""
        envelope = execution.envelope
        events = self._events
        duration_ms = int(duration_seconds * 1000)
        job_id, job_type, queue, attempt = envelope.id, envelope.type, execution.queue, execution.attempt
        encoded = error = None
        if result is not None:
            encoded, error = encoded_result(execution, result)
        kept, expires_at = (None, None) if encoded is None else kept_result(execution, encoded)
        is_final, run = ends_for_all(execution), execution.run
        if kept is None and error is None and started_at is not None and not is_final and run is None:
            events.record_attempt(job_id, started_at, job_type, queue, attempt, worker_id, duration_ms)
        else:
            if started_at is not None:
                events.record_started(job_id, started_at, job_type, queue, attempt, worker_id, run)
            if error is None and expires_at is None and not is_final:
                events.record_completed(job_id, job_type, queue, attempt, duration_ms, kept)
            else:
                data = JobCompleted(
                    job_type=job_type,
                    queue=queue,
                    duration_ms=duration_ms,
                    attempt=attempt,
                    result=None if kept is None else msgspec.Raw(kept),
                    result_expires_at=expires_at,
                    result_error=error,
                    no_more_attempts=is_final or None,
                )
                events.record_result(job_id, data)
        self.completed_count += 1
        if self._hook_notifier.hooks.on_success:
            self._hook_notifier.success(execution, result, duration_seconds)
        self._counters.durations[job_type].add(duration_seconds)
        self._finished.add((job_id, attempt, envelope.enqueued_at))
        self._acknowledgements.completed(execution, encoded, error)

    def failed(
        self,
        execution: Execution,
        failure: Failure,
        duration_seconds: float,
        error: BaseException | None = None,
        delay: float | None = None,
    ) -> None:
        """Settle a failure: with another attempt if the handler and the policy allow one, otherwise as discarded.

        It is logged once in any case; `error` is the handler's exception. The next attempt waits `delay` seconds, or as
        the policy says.
        """
        envelope = execution.envelope
        failure.record.retryable = again = gets_another(execution, failure)
        self.failed_count += 1
        if execution.handler is not None:
            # Any other type is not one of ours.
            self._counters.durations[envelope.type].add(duration_seconds)
        delay = (delay_of(execution) if delay is None else delay) if again else None
        log_failure(_log, execution, failure, delay, error)
        self._hook_notifier.failure(execution, failure, duration_seconds, error)
        self._events.record(envelope.id, failed_event(execution, failure, duration_seconds))
        record_timeout(self._events, execution, failure.record)
        if delay is not None:
            self._start(execution, execution.queue, self._retry(execution, failure, delay))
        else:
            self._end(execution, failure)

    def cancelled(self, execution: Execution, *, waited: bool = False) -> None:
        """Settle a cancelled job, before it started (`waited`) or while it ran."""
        envelope = execution.envelope
        events = self._broker.events
        run = execution.run
        data = JobCancellation(job_type=envelope.type, queue=execution.queue, waited=waited or None, run=run)
        events.record(envelope.id, data, event_id=cancelled_event_id(envelope.id))
        self.cancelled_count += 1
        self._finished.add(execution.key)
        self._tell(execution.delivery, Outcome(envelope.id, State.CANCELLED.value, attempts=execution.attempt - 1))
        dead_letter, ack = self._dead_letter, self._ack_end
        events.after(lambda: dead_letter(execution.delivery, execution.queue) if self._nacks else ack(execution))

    def replaced(self, execution: Execution) -> None:
        """Drop an attempt that a coordinator has replaced: its outcome no longer counts."""
        _log.warning("attempt %d of job %s was replaced", execution.attempt, execution.envelope.id)
        self._finished.add(execution.key)
        self._ack(execution.delivery, execution.queue)

    def refused(self, queue: str, delivery: Delivery) -> None:
        """Drop a copy of a job of which another copy was admitted."""
        self._ack(delivery, queue)

    def has_ended(self, execution: Execution) -> bool:
        """Return whether an attempt has ended here, but not as a dead letter, which somebody may move back."""
        key = execution.key
        return key in self._finished or key in self._retrying or key in self._unsaid

    def settled_before(self, execution: Execution) -> bool:
        """Settle a redelivered attempt that was finished here, with the same outcome; False if it was not.

        A discarded job goes to the dead letter queue: its first delivery may have been lost before the broker received
        that. A failure whose next attempt could not be published is retried now.
        """
        delivery = execution.delivery
        if execution.key in self._retrying:
            self._retrying[execution.key].delivery = delivery
            return True
        unsaid = self._unsaid.pop(execution.key, None)
        if unsaid is not None:
            self._start(execution, execution.queue, self._retry(execution, unsaid, delay_of(execution)))
            return True
        if wants_reply(delivery.encoded_properties):
            self._broker.events.after(lambda: self._replies.tell_again(delivery, execution.envelope.id))
        if execution.key in self._dead_lettered:
            self._broker.events.after(lambda: self._dead_letter(delivery, execution.queue))
        elif execution.key in self._finished:
            self._broker.events.after(lambda: self._ack_end(execution))
        else:
            return False
        return True

    def expired(self, execution: Execution, now: datetime) -> None:
        """Settle a job whose deadline passed before it could start (ojs-core section 5.2, expires_at)."""
        envelope = execution.envelope
        self._events.record(envelope.id, expired_event(execution, now))
        record = expiry_record(envelope, now)
        record_timeout(self._events, execution, record)
        self._discard(execution.delivery, execution.queue, envelope, execution.attempt - 1, record)

    def unreadable(self, delivery: Delivery, queue: str, error: InvalidJob) -> None:
        """Move a message that is not a job to the dead letter queue, unchanged."""
        placeholder, encoding = placeholder_of(delivery, queue)
        reason = clean_text(f"{error}{encoding}", MAX_REASON)
        self._counters.skipped["job"] += 1
        _log.error("a message in %s is not a valid job; moving it to the dead letter queue: %s", queue, reason)
        record = ErrorRecord(type="InvalidJob", message=reason, code=error.code)
        self._discard(delivery, queue, placeholder, 0, record)

    def abandon(self, delivery: Delivery, queue: str, error: BaseException) -> None:
        """Settle a delivery after an unexpected error: it becomes a dead letter.

        Called wherever a delivery could otherwise stay unsettled. A settled delivery is not changed.
        """
        self._counters.skipped["job"] += 1
        try:
            _log.error("a job of %s cannot be settled; moving it to the dead letter queue", queue, exc_info=error)
            placeholder, _ = placeholder_of(delivery, queue)
            reason = clean_text(f"it could not be settled: {type(error).__name__}", MAX_REASON)
            data = JobDiscarded(
                job_type=placeholder.type,
                queue=queue,
                total_attempts=0,
                last_error=ErrorSummary(code="INTERNAL_ERROR", message=reason),
            )
            self._broker.events.record(placeholder.id, data)
            self.discarded_count += 1
            self._hook_notifier.discard(queue, placeholder, 0, ErrorRecord(message=reason, code="INTERNAL_ERROR"))
        except Exception:  # noqa: BLE001 - what matters is that the delivery is settled
            _log.exception("the event of a discarded job could not be recorded")
        self._broker.events.after(lambda: self._dead_letter(delivery, queue))

    def unknown_type(self, execution: Execution) -> None:
        """Dead-letter a job for which this worker has no handler."""
        job_type = execution.envelope.type
        _log.error("job %s has no handler for its type %s", shown(execution.envelope.id), shown(job_type))
        record = ErrorRecord(type="UnknownJobType", message=f"no handler for {job_type}", code="INVALID_JOB_TYPE")
        self._discard(execution.delivery, execution.queue, execution.envelope, execution.attempt - 1, record)

    def postponed(self, execution: Execution, seconds: float) -> None:
        """Settle a postponed attempt: the same attempt starts again after a delay at the broker."""
        seconds = min(max(seconds, 0.0), MAX_DELAY_SECONDS) if seconds == seconds else 0.0  # noqa: PLR0124 - not NaN
        self._start(execution, execution.queue, self._postpone(execution, seconds))

    async def _postpone(self, execution: Execution, seconds: float) -> None:
        delivery, queue = execution.delivery, execution.queue
        headers = kept_headers(delivery.properties.headers)
        if not await self._copies.republish(delivery, queue, postponed_body(execution), headers, seconds):
            # The broker delivers it again, now.
            seconds = 0.0
        envelope = execution.envelope
        events = self._broker.events
        due = format_timestamp(datetime.now(UTC) + timedelta(seconds=seconds))
        begun = execution.began_at
        events.record(envelope.id, JobScheduled(job_type=envelope.type, queue=queue, scheduled_at=due, undoes=begun))
        events.after(lambda: self._ack(execution.delivery, queue))

    def hand_back(self, delivery: Delivery, queue: str) -> None:
        """Return a job that was never started.

        It is published again with the same attempt, and then acknowledged: a requeued message would be redelivered with
        the flag, and the next worker would have to count an attempt that never ran.
        """
        self._start(delivery, queue, self._republish_unstarted(delivery, queue))

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait until all outcomes are safe; False if that takes longer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        drained = True
        # The places of unique jobs are freed only after their events are safe.
        for events in (self._events, None):
            if self._republishing:
                await asyncio.wait(set(self._republishing), timeout=max(0.0, deadline - loop.time()))
            if events is not None:
                drained = await events.drain(max(0.0, deadline - loop.time()))
        await self._replies.ready()
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
        """Record that a job has ended, then let the broker move it to its dead letter queue."""
        self.discarded_count += 1
        self._hook_notifier.discard(queue, envelope, attempts, record)
        events = self._broker.events
        error, is_kept = summary_of(record), self._is_kept(keep)
        events.record(
            envelope.id,
            JobDiscarded(
                job_type=envelope.type,
                queue=queue,
                total_attempts=attempts,
                last_error=error,
                dead_letter=is_kept or None,
                run=run_number(delivery.encoded_properties),
            ),
        )
        outcome = Outcome(envelope.id, State.DISCARDED.value, error=error, attempts=attempts, is_dead_letter=is_kept)
        self._tell(delivery, outcome)
        ended = Execution(delivery, queue, envelope, attempts)
        events.after(lambda: self._dead_letter(delivery, queue) if is_kept else self._ack_end(ended))

    def _tell(self, delivery: Delivery, outcome: Outcome) -> None:
        """Send the outcome of a job to its waiters, once the events recorded so far are safe."""
        if wants_reply(delivery.encoded_properties):
            reply = delivery, outcome.id, encode_outcome(outcome)
            self._broker.events.after(lambda: self._replies.tell([reply]))

    def _is_kept(self, wanted: bool) -> bool:  # noqa: FBT001 - the answer to the question that the name asks
        return wanted or self._on_discard == "dead_letter"

    async def _retry(self, execution: Execution, failure: Failure, delay: float) -> None:
        """Publish the next attempt, then record it, then acknowledge this one."""
        self._retrying[execution.key] = execution
        try:
            if not await self._published_next(execution, failure, delay):
                self._unsaid[execution.key] = failure
        finally:
            # A newer delivery of the same attempt may be in progress meanwhile.
            if self._retrying.get(execution.key) is execution:
                del self._retrying[execution.key]

    async def _published_next(self, execution: Execution, failure: Failure, delay: float) -> bool:
        """Publish the next attempt and acknowledge this one; False if the connection is lost before."""
        envelope = execution.envelope
        checkpoint = await next_checkpoint(self._control, execution, failure)
        if not execution.delivery.is_current:
            # Without the delivery, do nothing: the broker delivers the job to another worker.
            return False
        limit = max_attempts(execution.delivery, envelope)
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
            is_redelivered=execution.delivery.redelivered,
        )
        if execution.context is not None:
            headers |= execution.context.next_headers
        if not await self._copies.republish(execution.delivery, execution.queue, body, headers, delay):
            return False
        self.retried_count += 1
        self._hook_notifier.retry(execution, failure, delay)
        self._finished.add(execution.key)
        events = self._broker.events
        waits = self._copies.wait_seconds(delay)
        events.record(
            envelope.id,
            JobRetrying(
                job_type=envelope.type,
                queue=execution.queue,
                attempt=execution.attempt,
                max_attempts=limit,
                next_retry_at=format_timestamp(now + timedelta(seconds=waits)),
                error=summary_of(failure.record),
            ),
        )
        settle = self._reject if self._nacks else self._ack
        events.after(lambda: settle(execution.delivery, execution.queue))
        return True

    async def _republish_unstarted(self, delivery: Delivery, queue: str) -> None:
        headers = kept_headers(delivery.properties.headers)
        if is_repeated(delivery.encoded_properties):
            headers[REPEATED] = True
        if await self._copies.republish(delivery, queue, delivery.body, headers, None):
            self._ack(delivery, queue)

    def _ack_end(self, execution: Execution) -> None:
        """Acknowledge a job that has ended; a unique one frees its place first."""
        if place_of(execution.delivery) is None:
            self._ack(execution.delivery, execution.queue)
        else:
            self._start(execution, execution.queue, self.unique.freed(execution, self._ack), is_last=True)

    def _dead_letter(self, delivery: Delivery, queue: str) -> None:
        """Let the broker move a job to its dead letter queue.

        If rejected jobs are dropped, because retries wait elsewhere, a discarded job is published there instead.
        """
        if self._nacks or place_of(delivery) is not None:
            self._start(delivery, queue, self._publish_dead(delivery, queue), is_last=True)
        else:
            self._reject(delivery, queue)

    async def _publish_dead(self, delivery: Delivery, queue: str) -> None:
        if place_of(delivery) is not None:
            await self.unique.free(delivery, delivery.properties.message_id or "")
        headers = kept_headers(delivery.properties.headers)
        if not self._nacks or await self._copies.republish(delivery, queue, delivery.body, headers, None, dead=True):
            self._reject(delivery, queue)

    def _start(
        self, held: Delivery | Execution, queue: str, coroutine: Coroutine[Any, Any, None], *, is_last: bool = False
    ) -> None:
        """Run a coroutine that settles a delivery. With `is_last`, the delivery is settled even if that fails."""
        task = asyncio.get_running_loop().create_task(self._settle_with(held, queue, coroutine, is_last=is_last))
        self._republishing.add(task)
        task.add_done_callback(self._republishing.discard)

    async def _settle_with(
        self, held: Delivery | Execution, queue: str, coroutine: Coroutine[Any, Any, None], *, is_last: bool
    ) -> None:
        try:
            await coroutine
        except Exception as error:  # noqa: BLE001 - whatever it is, the delivery is not to stay here for ever
            # A reconnect may have replaced the delivery of an execution.
            delivery = held.delivery if isinstance(held, Execution) else held
            if not delivery.is_current:
                # The broker has it again.
                _log.warning("a job of %s could not be settled, the broker will redeliver it: %r", queue, error)
            elif is_last:
                _log.exception("a job of %s cannot be dead-lettered; requeueing it", queue)
                await asyncio.sleep(MAX_REPUBLISH_WAIT_SECONDS)
                if delivery.nack(requeue=True):
                    self._counters.unacked[queue] -= 1
            else:
                self.abandon(delivery, queue, error)
