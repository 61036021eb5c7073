"""Detects uncertain jobs: programs without events may have taken a waiting job from its queue.

A job that waits by its events, of ours or of a program that tells some, is in its queue, or some worker holds it. AMQP
tells how many messages are ready in a queue, not which. So where fewer are ready than jobs should be there, the state
of each of these jobs is marked as uncertain. An answer looks at the queue anew: events that are on their way make a
job uncertain for a moment only.
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
    """Compares what the events say with the queues of the broker."""

    def __init__(self, broker: BrokerConnection, view: JobView) -> None:
        self._inspector = Inspector(broker.connection)
        self._topology = broker.declarer.topology
        self._view = view

    async def mark(self, jobs: Sequence[JobInfo]) -> list[JobInfo]:
        """Return these jobs, those marked of which nobody knows whether they are in their queue."""
        now = format_timestamp(datetime.now(UTC))
        queues = {job.queue for job in jobs if job.queue and _is_due(job, now)}
        short = {queue for queue in queues if await self._is_short(queue)}
        return [
            msgspec.structs.replace(job, certain=False) if job.queue in short and _is_due(job, now) else job
            for job in jobs
        ]

    async def _is_short(self, queue: str) -> bool:
        """Whether a queue holds fewer jobs than wait in it by the events."""
        try:
            found = await job_queue_counts(self._inspector, self._topology, queue)
        except ClientError:
            # Where nobody may look, the events are all there is.
            return False
        ready = 0 if found is None else found.message_count
        counts = await self._view.read(lambda store: store.counts())
        # One that is due after a delay is in no count, and at least one is asked for.
        return ready < max(1, counts.get((queue, _AVAILABLE), 0))


def _is_due(job: JobInfo, now: str) -> bool:
    """Whether a job is in its queue according to the events: available, or its delay has passed."""
    if job.state == State.RETRYABLE.value:
        return job.next_retry_at is not None and job.next_retry_at < now
    if job.state == State.SCHEDULED.value:
        return job.scheduled_at is not None and job.scheduled_at < now
    return job.state == _AVAILABLE
