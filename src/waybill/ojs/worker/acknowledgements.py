"""Acknowledges deliveries once their events are safe, all deliveries of one event message together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from waybill.client import Delivery
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.results.outcome import Outcome, encode_completed, encode_outcome, wants_reply
from waybill.ojs.results.replies import Replies, Reply
from waybill.ojs.spec.event_data import ErrorSummary
from waybill.ojs.spec.states import State
from waybill.ojs.worker.execution import Execution


class Acknowledgements:
    """The pending acknowledgements of one worker."""

    def __init__(self, events: EventWriter, replies: Replies, ack_unique: Callable[[Execution], None]) -> None:
        """`ack_unique` acknowledges unique jobs, which may have to free a place first."""
        self._ack_unique = ack_unique
        self._events = events
        self._counters = events.counters
        self._replies = replies
        self._gathering: object = None
        self._completed: list[Execution] = []
        self._hook_notifier: list[Reply] = []

    def completed(self, execution: Execution, result: bytes | None, error: ErrorSummary | None) -> None:
        """Acknowledge a job once the event of its completion, which was just recorded, is safe; first notify waiters.

        `result` is JSON, `error` says why the handler's return value cannot be stored.
        """
        events = self._events
        if events.gathering is not self._gathering:
            # One action for all jobs whose completion is sent in one message.
            self._gathering = events.gathering
            completed: list[Execution] = []
            told: list[Reply] = []
            self._completed, self._hook_notifier = completed, told
            events.after(lambda: self._ack_all(completed, told))
        self._completed.append(execution)
        if wants_reply(execution.delivery.encoded_properties):
            job_id = execution.envelope.id
            if error is None:
                text = encode_completed(job_id, result)
            else:
                text = encode_outcome(Outcome(job_id, State.COMPLETED.value, error=error, attempts=execution.attempt))
            self._hook_notifier.append((execution.delivery, job_id, text))

    def _ack_all(self, executions: list[Execution], told: list[Reply]) -> None:
        if told:
            self._replies.tell(told)
        acked: Counter[str] = Counter()
        for execution in executions:
            if execution.envelope.unique is not None:
                self._ack_unique(execution)
            # Look up the delivery now: a reconnect may have replaced it.
            elif execution.delivery.ack():
                acked[execution.queue] += 1
        self._counters.acked.update(acked)
        self._counters.unacked.subtract(acked)

    def ack(self, delivery: Delivery, queue: str) -> None:
        """Acknowledge a delivery now."""
        if delivery.ack():
            self._counters.acked[queue] += 1
            self._counters.unacked[queue] -= 1

    def reject(self, delivery: Delivery, queue: str) -> None:
        """Reject a delivery, so that the broker dead-letters it."""
        if delivery.nack(requeue=False):
            self._counters.nacked[queue] += 1
            self._counters.unacked[queue] -= 1
