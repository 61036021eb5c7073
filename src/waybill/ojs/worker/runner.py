"""Runs jobs: one concurrency limit over all queues of a worker, handlers as tasks or in threads, time limits.

The path of a successful job is deliberately short: decode, start event, task, completion event, acknowledgement. It
never awaits, so a burst of deliveries results in one message of events and one write of acknowledgements.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from datetime import UTC, datetime
from typing import Final

from waybill.client import Delivery
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.errors import InvalidArguments, InvalidJob, PostponeJob
from waybill.ojs.handler import AnyHandler
from waybill.ojs.hooks import HookCalls, Hooks
from waybill.ojs.job_context import JobContext
from waybill.ojs.spec.envelope import early_seconds, is_expired, seconds_of
from waybill.ojs.spec.headers import attempt_number
from waybill.ojs.spec.identifiers import DERIVED
from waybill.ojs.spec.nesting import shown
from waybill.ojs.worker.admission import Admissions
from waybill.ojs.worker.attempt_heartbeats import AttemptHeartbeats
from waybill.ojs.worker.calls import Calls
from waybill.ojs.worker.cancellations import Cancellations
from waybill.ojs.worker.delivered_job import read_delivered
from waybill.ojs.worker.eager_task import Ended
from waybill.ojs.worker.execution import (
    AttemptKey,
    Ending,
    Execution,
    arguments_failure,
    early_failure,
    failure_of,
    lost_failure,
)
from waybill.ojs.worker.handler_defaults import defaults_of
from waybill.ojs.worker.hook_notifier import HookNotifier
from waybill.ojs.worker.lost_deliveries import LostDeliveries
from waybill.ojs.worker.progress import EventReporter
from waybill.ojs.worker.second_copies import drop_copy
from waybill.ojs.worker.settlement import REMEMBERED_ATTEMPTS, Settlement
from waybill.ojs.worker.time_limits import TimeLimits

BURST_SECONDS: Final = 0.005
"""How long handlers that never wait may occupy the event loop."""
BLOCKED_SECONDS: Final = 1.0
"""After how long without a wait of a handler this worker's heartbeats may have been missed."""

GIVE_UP_SECONDS: Final = 3.0
"""How long a handler may take to stop before its attempt is settled without it."""
_ABSENT: Final = object()

_log = logging.getLogger("waybill.ojs.worker")


class Runner:
    """Accepts deliveries, runs at most `concurrency` jobs at a time, and passes each outcome to the settlement."""

    def __init__(
        self,
        broker: BrokerConnection,
        settlement: Settlement,
        handlers: dict[str, AnyHandler],
        worker_id: str,
        concurrency: int,
        calls: Calls,
        hooks: HookCalls | None = None,
    ) -> None:
        self.cancellations = Cancellations(broker, worker_id, self.cancel)
        self.cancellations.on_replace = self._replaced
        self.admissions = Admissions(broker, worker_id, self._admitted, settlement.refused, settlement.unique)
        self.active: dict[Execution, None] = {}
        self.lost: dict[Execution, None] = {}
        """Abandoned attempts whose code still runs: each takes a concurrency slot."""
        self.leases = AttemptHeartbeats(broker, worker_id, self.active)
        self._late: set[asyncio.Task[None]] = set()
        self.redelivered_count = 0
        self._broker = broker
        self._events = broker.events
        self._reporter = EventReporter(broker.events, worker_id)
        self._counters = broker.events.counters
        self._settlement = settlement
        self._handlers = dict(handlers)
        self._defaults = defaults_of(handlers)
        self._hook_notifier = HookNotifier(hooks or HookCalls(Hooks()))
        self._worker_id = worker_id
        self._concurrency = concurrency
        self._waiting: deque[tuple[str, Delivery]] = deque()
        self._waiting_for_process: deque[Execution] = deque()
        self._lost_deliveries = LostDeliveries(REMEMBERED_ATTEMPTS)
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._calls = calls
        self._processes = calls.processes
        self._burst_ends = 0.0
        self._is_pausing = False
        self._limits = TimeLimits(self._loop, self.active, lambda one: self._end_early(one, Ending.TIMEOUT))
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def held_count(self) -> int:
        """Return how many jobs run here or wait for a slot."""
        return len(self.active) + len(self._waiting) + len(self._waiting_for_process) + len(self.admissions)

    @property
    def room(self) -> int:
        """Return how many jobs can run at a time, as some slots may be lost."""
        return self._concurrency - len(self.lost)

    @property
    def first_waiting(self) -> object:
        """Return what has waited longest for a slot, None if nothing waits."""
        return self._waiting[0][1] if self._waiting else None

    # --- deliveries ---

    def receive(self, queue: str, delivery: Delivery, source: str = "") -> None:
        """Accept a delivery of an OJS queue, from its AMQP queue `source`: start it, or let it wait for a slot."""
        self._counters.consumed[queue] += 1
        self._counters.unacked[queue] += 1
        self.redelivered_count += delivery.redelivered
        if self._lost_deliveries.any_lost:
            self._lost_deliveries.arrived(source or queue, delivery)
        if self._stopping:
            self._guarded_return(queue, delivery)
        elif self._waiting or self._is_full():
            self._waiting.append((queue, delivery))
        else:
            self._begin(queue, delivery)

    def connection_lost(self, _reason: Exception) -> None:
        """Forget waiting deliveries, but remember that they were never started: the broker delivers them again."""
        self._counters.unacked.clear()
        admitted = [delivery for _, delivery in self.admissions.release()]
        waiting = [delivery for _, delivery in self._waiting]
        self._lost_deliveries.lost([one.key for one in self._waiting_for_process], waiting, admitted)
        self._waiting_for_process.clear()
        self._waiting.clear()

    def stop(self) -> None:
        """Start nothing more; waiting jobs go back to their queues."""
        self._stopping = True
        self.hand_back()

    def hand_back(self, queue: str | None = None) -> None:
        """Return waiting jobs, all or those of a queue; running jobs continue."""
        waiting = self._waiting_for_process
        self._waiting_for_process = deque(one for one in waiting if queue not in {None, one.queue})
        for execution in waiting:
            if queue in {None, execution.queue}:
                self._settlement.hand_back(execution.delivery, execution.queue)
        for name, delivery in self.admissions.release(queue):
            self._settlement.hand_back(delivery, name)
        self.hand_back_waiting(queue)

    def hand_back_waiting(self, queue: str | None = None) -> None:
        """Return the jobs that wait for a slot; those that wait for a process stay, because one may be free sooner."""
        waiting = self._waiting
        self._waiting = deque(one for one in waiting if queue not in {None, one[0]})
        for name, delivery in waiting:
            if queue in {None, name}:
                self._guarded_return(name, delivery)

    def _guarded_return(self, queue: str, delivery: Delivery) -> None:
        try:
            self._return(queue, delivery)
        except Exception as error:  # noqa: BLE001 - see `_begin`
            self._settlement.abandon(delivery, queue, error)

    def _return(self, queue: str, delivery: Delivery) -> None:
        """Return an unread job: the next worker sees it as new, so its history must be checked here."""
        if delivery.redelivered:
            try:
                envelope = read_delivered(delivery)
                attempt = attempt_number(delivery.encoded_properties, envelope)
                if envelope.type in self._defaults:
                    self._defaults[envelope.type].fill(envelope, delivery)
            except InvalidJob as error:
                self._settlement.unreadable(delivery, queue, error)
                return
            if self._is_known(Execution(delivery, queue, envelope, attempt)):
                return
        self._settlement.hand_back(delivery, queue)

    async def wait_idle(self, timeout_seconds: float) -> bool:
        """Wait until no job runs; False if some still do after the timeout."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def interrupt(self) -> None:
        """Fail the running jobs, at the end of a shutdown's grace period (ojs-graceful-shutdown 5.3)."""
        for execution in list(self.active):
            self._end_early(execution, Ending.SHUTDOWN)

    def cancel(self, job_id: str) -> None:
        """Cancel a job if it runs here: a coroutine is cancelled, a thread finds the cancellation in its context."""
        for execution in list(self.active):
            if execution.envelope.id == job_id and execution.ending is None and execution.future is not None:
                execution.ending = Ending.CANCELLED
                self._interrupt(execution)

    def _replaced(self, key: AttemptKey) -> None:
        """End an attempt that was replaced; a thread that continues is abandoned."""
        for execution in [one for one in self.active if one.key == key]:
            execution.ending = Ending.REPLACED
            self._interrupt(execution)
            if execution.runs_in_thread and not execution.settled:
                self._give_up(execution)
            else:
                execution.deadline = self._loop.time() + GIVE_UP_SECONDS
                self._limits.check_by(execution.deadline)

    def close(self) -> bool:
        """Release threads and processes; False if code of a job is still running and cannot be ended."""
        self._limits.close()
        self._calls.close()
        return not self.lost and not any(execution.runs_in_thread for execution in self.active)

    # --- one job ---

    def _begin(self, queue: str, delivery: Delivery) -> None:
        """Check a delivery and start its attempt. An error ends only this job, and always settles it."""
        try:
            self._admit(queue, delivery)
        except Exception as error:  # noqa: BLE001 - see above
            self._settlement.abandon(delivery, queue, error)

    def _admit(self, queue: str, delivery: Delivery) -> None:
        try:
            envelope = read_delivered(delivery)
            attempt = attempt_number(delivery.encoded_properties, envelope)
            expired = (envelope.expires_at or envelope.enqueue_ttl) is not None and is_expired(
                envelope, datetime.now(UTC)
            )
            if envelope.type in self._defaults:
                self._defaults[envelope.type].fill(envelope, delivery)
        except InvalidJob as error:
            self._settlement.unreadable(delivery, queue, error)
            return
        may_be_over = envelope.unique is not None or envelope.id[15:18] == DERIVED
        if may_be_over and self.admissions.holds(queue, delivery, envelope):
            return
        execution = Execution(delivery, queue, envelope, attempt)
        if (delivery.redelivered and self._is_known(execution)) or drop_copy(execution, self.active, self._settlement):
            return
        execution.handler = handler = self._handlers.get(envelope.type)
        cancellations = self.cancellations
        if (cancellations.jobs or cancellations.workflows) and cancellations.covers(envelope.id):
            self._settlement.cancelled(execution, waited=True)
        elif cancellations.replaced and execution.key in cancellations.replaced:
            self._settlement.replaced(execution)
        elif expired:
            self._settlement.expired(execution, datetime.now(UTC))
        elif envelope.scheduled_at is not None and (early := early_seconds(envelope, datetime.now(UTC))) > 0:
            self._settlement.postponed(execution, early)
        elif handler is None:
            self._settlement.unknown_type(execution)
        elif handler.runs_in_process and self._processes is not None and not self._processes.has_room:
            self._waiting_for_process.append(execution)
        else:
            self._start(execution)

    def _admitted(self, queue: str, delivery: Delivery) -> None:
        """Start a delivery that was admitted, or let it wait for a slot."""
        if self._stopping:
            self._settlement.hand_back(delivery, queue)
        elif self._waiting or self._is_full():
            self._waiting.append((queue, delivery))
        else:
            self._begin(queue, delivery)

    def _is_known(self, execution: Execution) -> bool:
        """Handle a redelivered job.

        If this worker has finished it, or is running it, the new delivery replaces the lost one. A delivery that was
        lost with a connection before it started counts as new, and so does one that the broker itself has lost.
        Otherwise a worker vanished with it, which counts as an attempt (ojs-retry section 9.2): a job that kills its
        worker must end in the dead letter queue, not in a loop.
        """
        was_held = self._lost_deliveries.take(execution.key)
        if execution.key in self.cancellations.replaced:
            self._settlement.replaced(execution)
            return True
        if self._settlement.settled_before(execution):
            return True
        for other in self.active:
            if other.key == execution.key:
                other.delivery = execution.delivery
                return True
        if not was_held:
            self._settlement.failed(execution, lost_failure(execution.attempt, self._events.timestamp()), 0.0)
        return not was_held

    def _start(self, execution: Execution) -> None:
        envelope = execution.envelope
        execution.context = context = JobContext(
            envelope, execution.queue, execution.attempt, self._worker_id, execution.delivery, self._reporter
        )
        if self._hook_notifier.hooks.on_start:
            self._hook_notifier.start(execution)
        started_at = self._events.timestamp()
        execution.started = self._loop.time()
        try:
            future = self._calls.by_type[envelope.type](context)
        except BaseException as error:  # noqa: BLE001 - a plain middleware, or a handler that was called wrongly
            self._record_start(execution, started_at)
            self._settle(execution, Ended(None, error))
            return
        if isinstance(future, Ended):
            self._ended_eagerly(execution, future, started_at)
            return
        self._record_start(execution, started_at)
        self._follow(execution, future)

    def _record_start(self, execution: Execution, started_at: str) -> None:
        envelope, execution.began_at = execution.envelope, started_at
        self._events.record_started(
            envelope.id, started_at, envelope.type, execution.queue, execution.attempt, self._worker_id, execution.run
        )

    def _follow(self, execution: Execution, future: asyncio.Future[object]) -> None:
        """Settle an attempt when its future is done."""
        execution.future = future
        execution.deadline = execution.started + execution.seconds_left
        self.active[execution] = None
        self._idle.clear()
        self._limits.check_by(execution.deadline)
        future.add_done_callback(lambda done: self._done(execution, done))

    def _ended_eagerly(self, execution: Execution, ended: Ended, started_at: str) -> None:
        """Settle an attempt that never waited. Too many of these in a row would block the loop: see `_is_full`."""
        now = self._loop.time()
        duration = now - execution.started
        if ended.error is None and duration <= BLOCKED_SECONDS:
            self._close(execution)
            self._settlement.completed(execution, ended.result, duration, started_at, self._worker_id)
        else:
            self._record_start(execution, started_at)
            if duration > BLOCKED_SECONDS:
                # It blocked the loop, and with it the heartbeats.
                self._follow(execution, ended.future(self._loop))
            else:
                self._settle(execution, ended)
        if self._burst_ends == 0.0:
            self._burst_ends = now + BURST_SECONDS
            self._loop.call_soon(self._end_burst)
        elif now > self._burst_ends:
            self._is_pausing = True

    def _end_burst(self) -> None:
        self._burst_ends = 0.0
        self._is_pausing = False
        self._begin_waiting()

    def _is_full(self) -> bool:
        """Return whether the next job has to wait: for a slot, or for the other work of the loop."""
        return self._is_pausing or len(self.active) + len(self.lost) >= self._concurrency

    def _begin_waiting(self) -> None:
        while self._waiting_for_process and self._processes is not None and self._processes.has_room:
            if self._is_full():
                return
            execution = self._waiting_for_process.popleft()
            try:
                if execution.envelope.id in self.cancellations.jobs:
                    self._settlement.cancelled(execution)
                else:
                    self._start(execution)
            except Exception as error:  # noqa: BLE001 - see `_begin`
                self._settlement.abandon(execution.delivery, execution.queue, error)
        while self._waiting and not self._is_full():
            self._begin(*self._waiting.popleft())

    def _done(self, execution: Execution, future: asyncio.Future[object]) -> None:
        if execution.settled or execution.ending is not None or not self.leases.is_late(execution):
            self._end(execution, future)
            return
        # It stays among the active attempts, so that a redelivery finds it here.
        execution.deadline = math.inf
        task = self._loop.create_task(self._end_late(execution, future))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _end_late(self, execution: Execution, future: asyncio.Future[object]) -> None:
        try:
            if not await self.leases.is_own(execution):
                execution.ending = Ending.REPLACED
        except Exception:  # noqa: BLE001 - without an answer, the attempt counts
            _log.exception("could not find out whether job %s was replaced", shown(execution.envelope.id))
        self._end(execution, future)

    def _end(self, execution: Execution, future: asyncio.Future[object]) -> None:
        if self.active.pop(execution, _ABSENT) is _ABSENT:
            self.lost.pop(execution, None)
        if not execution.settled:
            self._settle(execution, Ended.of(future))
        elif not future.cancelled():  # A thread that continued after its time limit: its late result is ignored.
            future.exception()
        self._begin_waiting()
        if not self.active:
            self._idle.set()

    def _settle(self, execution: Execution, ended: Ended) -> None:
        """Pass the outcome of an attempt to the settlement. Never raises."""
        try:
            self._tell_of_end(execution, ended)
        except Exception as error:  # noqa: BLE001 - see `_begin`
            self._settlement.abandon(execution.delivery, execution.queue, error)
        self._hook_notifier.release(ended)

    def _tell_of_end(self, execution: Execution, ended: Ended) -> None:
        self._close(execution)
        duration = self._loop.time() - execution.started
        now = self._events.timestamp()
        error = ended.error
        if execution.ending is Ending.REPLACED:
            self._settlement.replaced(execution)
        elif execution.ending is Ending.CANCELLED and error is not None:
            self._settlement.cancelled(execution)
        elif execution.ending is not None and execution.ending is not Ending.CANCELLED:
            self._settlement.failed(execution, early_failure(execution, now, duration), duration)
        elif error is None:
            # Also if it was cancelled: it was done before the cancellation arrived.
            self._settlement.completed(execution, ended.result, duration)
        elif isinstance(error, PostponeJob):
            self._settlement.postponed(execution, error.seconds)
        elif isinstance(error, InvalidArguments) or (isinstance(error, TypeError) and not self._accepts(execution)):
            self._settlement.failed(execution, arguments_failure(execution, error, now), duration, error)
        else:
            self._settlement.failed(execution, failure_of(error, execution, now), duration, error)

    @staticmethod
    def _accepts(execution: Execution) -> bool:
        return execution.handler is None or execution.handler.accepts(execution.envelope.args)

    def _close(self, execution: Execution) -> None:
        """Ignore further reports of an attempt that is about to be settled."""
        execution.settled = True
        if execution.context is not None and execution.context.report is not None:
            try:
                self._reporter.finish(execution.context)
            except Exception:  # noqa: BLE001 - the end of the attempt is what counts
                _log.exception("the last progress of job %s cannot be sent", shown(execution.envelope.id))

    # --- ends from outside ---

    def _end_early(self, execution: Execution, ending: Ending) -> None:
        """End an attempt from outside; abandon it if it does not stop: immediately if it is a thread without grace."""
        if execution.future is None or execution.settled:
            return
        is_told = execution.ending is not None
        if not is_told:
            execution.ending = ending
            self._interrupt(execution)
        grace = seconds_of(execution.envelope.grace_period) if ending is Ending.TIMEOUT else 0
        if is_told or (execution.runs_in_thread and not grace):
            self._give_up(execution)
        else:
            execution.deadline = self._loop.time() + (grace or GIVE_UP_SECONDS)
            self._limits.check_by(execution.deadline)

    def _interrupt(self, execution: Execution) -> None:
        """Tell a handler to stop: a coroutine is cancelled, a process gets a signal, a thread finds it in its job."""
        if execution.context is None or execution.future is None or execution.handler is None:
            return
        if execution.handler.runs_in_process and self._processes is not None:
            self._processes.stop(execution.context)
            return
        execution.context.cancel()
        if execution.handler.is_async:
            execution.future.cancel()

    def _give_up(self, execution: Execution) -> None:
        """Settle an attempt whose code still runs; its outcome is ignored, and its slot is lost until it ends."""
        self._close(execution)
        self.active.pop(execution, None)
        self.lost[execution] = None
        try:
            if execution.ending is Ending.REPLACED:
                self._settlement.replaced(execution)
            elif execution.ending is Ending.CANCELLED:
                self._settlement.cancelled(execution)
            else:
                took = self._loop.time() - execution.started
                self._settlement.failed(execution, early_failure(execution, self._events.timestamp(), took), took)
        except Exception as error:  # noqa: BLE001 - see `_begin`
            self._settlement.abandon(execution.delivery, execution.queue, error)
        _log.warning("job %s ignores its cancellation: it keeps its slot until it ends", shown(execution.envelope.id))
        if not self.active:
            self._idle.set()
