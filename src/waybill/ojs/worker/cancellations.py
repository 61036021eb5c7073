"""Receives cancellations from coordinators, including those from before the worker's start.

Coordinators publish to a fanout exchange; a stream behind it stores the messages. A worker reads the stream from its
first message on, and accepts no jobs before it has caught up, so a cancelled job that still waits never starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from waybill.client import Channel, ClientError, Delivery
from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.errors import TopologyConflict
from waybill.ojs.spec.control_message import (
    CANCEL,
    PAUSE,
    REPLACE,
    RESUME,
    STOP_WORKFLOW,
    SYNC,
    ControlRequest,
    read_request,
)
from waybill.ojs.worker.directives import DIRECTIVES
from waybill.ojs.worker.execution import AttemptKey
from waybill.ojs.workflow.numbering import MEMBERS_LENGTH, NODES_LENGTH, nodes_prefix

PREFETCH: Final = 500
REMEMBERED_JOBS: Final = 1_000_000
MAX_RUNS: Final = 100
CATCH_UP_SECONDS: Final = 30.0

_log = logging.getLogger("waybill.ojs.worker")


def cancelled_event_id(job_id: str) -> str:
    """Return the id of the single job.cancelled event of a job."""
    return f"evt_{job_id}"


class Cancellations:
    """The ids of cancelled jobs, in order of cancellation."""

    def __init__(self, broker: BrokerConnection, worker_id: str, on_cancel: Callable[[str], None]) -> None:
        """`on_cancel` is called with the id of each cancelled job, even if it does not run here."""
        self._broker = broker
        self._worker_id = worker_id
        self._on_cancel = on_cancel
        self.jobs: BoundedDict[str, None] = BoundedDict(REMEMBERED_JOBS)
        """The ids of cancelled jobs."""
        self.workflows: BoundedDict[str, None] = BoundedDict(REMEMBERED_JOBS)
        """The id prefixes of jobs whose workflow was stopped: none of them may start."""
        self._channel: Channel | None = None
        self.replaced: BoundedDict[AttemptKey, None] = BoundedDict(REMEMBERED_JOBS)
        """Attempts that were replaced by the next one because they sent no heartbeats."""
        self.on_replace: Callable[[AttemptKey], None] | None = None
        self._caught_up = asyncio.Event()
        self.on_pause: Callable[[str], None] | None = None
        """Called with a queue that was paused or resumed."""
        self.on_directive: Callable[[str], None] | None = None
        """Called when an operator sends this worker a directive: QUIET, WAKE or TERMINATE."""

    @property
    def hears(self) -> bool:
        """Whether coordinators can reach this worker; not on a broker without streams."""
        return self._caught_up.is_set()

    async def start(self) -> None:
        """Read earlier cancellations, then follow new ones. A missing stream is not an error."""
        declarer = self._broker.declarer
        try:
            await declarer.ensure_relay()
            channel = await self._broker.connection.channel(prefetch_count=PREFETCH)
            await channel.consume(declarer.topology.relay_stream, self._take, arguments={"x-stream-offset": "first"})
            await self._broker.tell_workers(SYNC, ControlRequest(worker_id=self._worker_id))
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await self._caught_up.wait()
        except (ClientError, TopologyConflict, TimeoutError) as error:
            _log.warning("this worker receives no cancellations, trying again: %r", error)

    def covers(self, job_id: str) -> bool:
        """Return whether a job must not start, because it or its workflow was cancelled."""
        if job_id in self.jobs:
            return True
        stopped = self.workflows
        return bool(stopped) and (job_id[:MEMBERS_LENGTH] in stopped or job_id[:NODES_LENGTH] in stopped)

    def _stop(self, request: ControlRequest) -> None:
        """Record a workflow whose jobs must not start; `attempt` is its last run."""
        self.workflows[request.job_id[:MEMBERS_LENGTH]] = None
        for run in range(min(max(request.attempt, 0), MAX_RUNS) + 1):
            self.workflows[nodes_prefix(request.job_id, run)] = None

    def _take(self, delivery: Delivery) -> None:
        delivery.ack()
        try:
            kind, request = delivery.properties.type, read_request(delivery.body)
        except Exception as error:  # noqa: BLE001 - no message may end this, whatever it is
            self._broker.events.counters.skipped["relay"] += 1
            _log.warning("invalid message from the relay exchange, skipped: %s", type(error).__name__)
            return
        if kind == SYNC and request.worker_id == self._worker_id:
            self._caught_up.set()
        elif kind == CANCEL and request.job_id not in self.jobs:
            self.jobs[request.job_id] = None
            self._on_cancel(request.job_id)
        elif kind == STOP_WORKFLOW:
            self._stop(request)
        elif kind == REPLACE:
            key = (request.job_id, request.attempt, request.enqueued_at)
            self.replaced[key] = None
            if self.on_replace is not None:
                self.on_replace(key)
        elif kind in {PAUSE, RESUME} and self.on_pause is not None:
            self.on_pause(request.queue)
        elif kind in DIRECTIVES and request.worker_id == self._worker_id and self.on_directive is not None:
            self.on_directive(kind)
