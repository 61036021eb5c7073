"""Detects uncertain jobs: a program that writes no events may have taken a waiting job from its queue.

According to its events, a waiting job is in its queue, or a worker holds it. AMQP tells how many messages are ready in
a queue, but not which. So if a queue has fewer ready messages than jobs that should be in it, the state of each of
these jobs is marked as uncertain.

Every reply checks the queue again, so events in transit make a job uncertain only for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.client import ClientError, Inspector
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.topology.job_queues import job_queue_counts

_AVAILABLE: Final = State.AVAILABLE.value


class Certainty:
    """Compares the job state with the broker's queues."""

    def __init__(self, broker: BrokerConnection, view: JobView) -> None:
        self._inspector = Inspector(broker.connection)
        self._topology = broker.declarer.topology
        self._view = view

    async def mark(self, jobs: Sequence[JobInfo]) -> list[JobInfo]:
        """Return these jobs; those that may have left their queue without an event are marked as uncertain."""
        now = format_timestamp(datetime.now(UTC))
        queues = {job.queue for job in jobs if job.queue and _is_due(job, now)}
        short = {queue for queue in queues if await self._is_short(queue)}
        return [
            msgspec.structs.replace(job, certain=False) if job.queue in short and _is_due(job, now) else job
            for job in jobs
        ]

    async def _is_short(self, queue: str) -> bool:
        """Return whether a queue holds fewer messages than jobs that should be in it."""
        try:
            found = await job_queue_counts(self._inspector, self._topology, queue)
        except ClientError:
            # Without permission to look at the queue, the events are all we know.
            return False
        ready = 0 if found is None else found.message_count
        count = await self._view.look(lambda store: store.count(queue, _AVAILABLE))
        # A delayed job that is due now is in no count. The requested job is at least one.
        return ready < max(1, count)


def _is_due(job: JobInfo, now: str) -> bool:
    """Return whether a job should be in its queue: it is available, or its delay has passed."""
    if job.state == State.RETRYABLE.value:
        return job.next_retry_at is not None and job.next_retry_at < now
    if job.state == State.SCHEDULED.value:
        return job.scheduled_at is not None and job.scheduled_at < now
    return job.state == _AVAILABLE
