"""Jobs of requests that are published together, followed by callbacks from the broker's confirms to the answers.

    start    all jobs are published at once
    -> the broker has confirmed them: their events are recorded, and published as one message
    -> the broker has confirmed the events, and the view has applied them: all are told

`Publisher` and `JobView`, which can wait, handle the exceptions: jobs that the broker refuses, a broker that is
unreachable or blocks publishers, and a view that lags.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

from waybill.backend.backend import Backend
from waybill.backend.request_template import JobMessage, traceparents
from waybill.client import ConnectionLost
from waybill.client.publishing import Confirmation
from waybill.ojs.errors import PushFailed
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.push.publisher import Publisher

Failures = dict[str, Exception]
"""The reason why a job was not enqueued, by job."""


OnEnd = Callable[["PushFlight", Failures], None]


class _Sent(Confirmation):
    """A published job until its confirm."""

    def __init__(self, flight: PushFlight, job: JobMessage) -> None:
        self._is_over = False
        self._flight = flight
        self.job = job

    def set_result(self, _: None) -> None:
        """The broker has confirmed."""
        self._is_over = True
        flight = self._flight
        flight.missing -= 1
        if not flight.missing:
            flight.go_on()

    def set_exception(self, error: BaseException | None) -> None:
        """It was refused, or its outcome is unknown."""
        self._is_over = True
        self._flight.refused(self.job, error)
        self.set_result(None)


class PushFlight:
    """Jobs on their way. `on_end` is called once, with the jobs that were not enqueued."""

    def __init__(self, backend: Backend, jobs: Sequence[JobMessage], on_end: OnEnd) -> None:
        self._backend = backend
        self._jobs = jobs
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.missing = len(jobs)
        """How many jobs are neither confirmed nor refused."""
        self._refused: list[tuple[JobMessage, BaseException]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._publisher: Publisher
        self._sent: list[_Sent] = []
        self._is_recorded = False
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> bool:
        """Publish all jobs; False if the broker does not accept them now, and nothing was published."""
        publisher = self._backend.jobs.publisher_now
        queues = {one.template.queue for one in self._jobs}
        if publisher is None or publisher.blocked_timeout.is_limited or not publisher.is_ready_for(queues):
            return False
        self._publisher = publisher
        self._began = time.monotonic()
        self._sent = [_Sent(self, one) for one in self._jobs]
        try:
            is_published = self._publish()
        except Exception as error:  # noqa: BLE001 - the askers must be told
            self._fail(error)
            return True
        if is_published:
            publisher.blocked_timeout.watch(self)
        return is_published

    def _publish(self) -> bool:
        broker = self._publisher.broker
        messages = [
            (sent, sent.job.body, sent.job.template.queue, sent.job.properties(trace))
            for sent, trace in zip(self._sent, traceparents(len(self._jobs)), strict=True)
        ]
        return broker.publishing.publish_run(broker.declarer.topology.direct, messages)

    def reschedule(self, when: float | None) -> None:
        """Set the time at which to give up while the broker accepts nothing; None for never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if when is None else self._loop.call_at(when, self._expired)

    # --- the jobs ---

    def refused(self, job: JobMessage, error: BaseException | None) -> None:
        """Note a job that was not confirmed."""
        if error is not None:
            self._refused.append((job, error))

    def go_on(self) -> None:
        """Continue with the confirmed jobs. An error must not end the connection, whose confirms are being read."""
        try:
            if not self._is_over:
                self._published()
        except Exception as error:  # noqa: BLE001 - the askers must be told
            self._fail(error)

    def _published(self) -> None:
        if self._refused:
            self._continue(self._mend())
            return
        self._record(self._jobs)
        events = self._publisher.broker.events
        events.push_out()
        events.after(self._recorded)

    def _record(self, jobs: Sequence[JobMessage]) -> None:
        self._is_recorded = True
        seconds = time.monotonic() - self._began
        for queue, count in Counter([one.template.queue for one in jobs]).items():
            self._publisher.took(queue, count, seconds)
        events = self._publisher.broker.events
        events.record_all_described([(one.id, one.time, one.template.kind, one.body) for one in jobs])

    def _recorded(self) -> None:
        """Answer all requests: the events are confirmed, and normally applied to the view."""
        if self._is_over:
            return
        if self._backend.view.knows_now([one.id for one in self._jobs]):
            self._end({})
        else:
            self._continue(self._wait_for_view([one.id for one in self._jobs], {}))

    # --- what is not usual ---

    def _expired(self) -> None:
        """Give up waiting for a broker that accepts nothing."""
        self._timer = None
        if self._is_over or self._task is not None:
            return
        if self._is_recorded:
            self._publisher.warn_of_events()
            self._continue(self._wait_for_view([one.id for one in self._jobs], {}))
            return
        refused = {one.id for one, _ in self._refused}
        stuck: Failures = {}
        taken: list[JobMessage] = []
        for sent in self._sent:
            if sent.done() and sent.job.id not in refused:
                taken.append(sent.job)
            else:
                stuck[sent.job.id] = self._publisher.not_accepted(sent.job.id, sent.job.template.queue)
        self._record(taken)
        self._continue(self._wait_for_events(taken, stuck))

    async def _wait_for_events(self, taken: Sequence[JobMessage], stuck: Failures) -> None:
        if taken:
            await self._publisher.recorded()
        await self._wait_for_view([one.id for one in taken], stuck)

    async def _mend(self) -> None:
        """Publish lost jobs again, and find out which were refused."""
        publisher = self._publisher
        failures: Failures = {}
        again: list[Outgoing] = []
        for job, error in self._refused:
            try:
                publisher.is_taken(error, job.id, job.template.queue)
            except BaseException as refusal:  # noqa: BLE001 - the asker must be told
                failures[job.id] = _as_told(refusal)
            else:
                again.append(job.outgoing())
                again[-1].may_be_there = True
        refused = {job.id for job, _ in self._refused}
        self._record([one for one in self._jobs if one.id not in refused])
        if again:
            outcomes = await publisher.enqueue(again, datetime.now(UTC))
            failures |= {one.job_id: one for one in outcomes if isinstance(one, PushFailed)}
        await self._wait_for_events([one for one in self._jobs if one.id not in failures], failures)

    async def _wait_for_view(self, job_ids: Sequence[str], failures: Failures) -> None:
        await self._backend.applied(job_ids)
        self._end(failures)

    def _continue(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._continued)

    def _continued(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._fail(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._end({one.id: _as_told(error) for one in self._jobs})

    def _end(self, failures: Failures) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.reschedule(None)
        self._publisher.blocked_timeout.leave(self)
        # Without a cycle, large jobs and answers do not wait for the garbage collector.
        self._sent = []
        self._on_end(self, failures)


def _as_told(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else ConnectionLost("the server is closing")
