"""Heartbeats of running attempts, and what happens after a silence.

An attempt that runs for a moment writes a job.heartbeat event, which contains the job's message, and then sends BEATs
to the control queue (binding section 5.7). A coordinator that receives none for the visibility timeout replaces the
attempt with the next one (see `replacement`). So a worker that was stopped or blocked for a large part of that time
asks whether the attempt is still its own before it reports the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from waybill.client import ClientError
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.control import Control, beat
from waybill.ojs.errors import ControlFailed
from waybill.ojs.spec.events import DeliveredMessage, JobHeartbeat
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.worker.execution import Execution
from waybill.ojs.worker.handler_defaults import with_policy

HEARTBEAT_SECONDS: Final = 15.0
FIRST_HEARTBEAT_SECONDS: Final = 1.0
BEATS_PER_VISIBILITY: Final = 4
TICK_SECONDS: Final = 0.25
LATE_SHARE: Final = 0.5
"""The share of the visibility timeout after which a worker must check that it still owns an attempt."""
ANSWER_SECONDS: Final = 3.0

_log = logging.getLogger("waybill.ojs.worker")


class _Heartbeat:
    """The lease of one attempt. Times are those of the loop's clock."""

    __slots__ = ("heard_at", "is_known", "next_at")

    def __init__(self, started: float, next_at: float) -> None:
        self.is_known = False
        self.heard_at = started
        """When the last heartbeat was sent that the broker has confirmed."""
        self.next_at = next_at


class AttemptHeartbeats:
    """The leases of one worker's running attempts."""

    def __init__(self, broker: BrokerConnection, worker_id: str, active: Mapping[Execution, None]) -> None:
        """`active` has the running attempts, as kept by the runner."""
        self._broker = broker
        self._worker_id = worker_id
        self._active = active
        self._control = Control(broker)
        self._leases: dict[Execution, _Heartbeat] = {}
        self._loop = asyncio.get_running_loop()

    async def keep(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await asyncio.sleep(min(TICK_SECONDS, HEARTBEAT_SECONDS))
            if self._leases or self._active:
                try:
                    self._look()
                except Exception:  # noqa: BLE001 - the heartbeats of all jobs depend on this
                    _log.exception("not all heartbeats could be sent")

    def is_late(self, execution: Execution) -> bool:
        """Return whether an attempt was silent for so long that it may have been replaced."""
        lease = self._leases.get(execution)
        heard_at = execution.started if lease is None else lease.heard_at
        return self._loop.time() - heard_at > execution.envelope.visibility_seconds * LATE_SHARE

    async def is_own(self, execution: Execution) -> bool:
        """Ask the coordinator whether a late attempt still belongs to this worker; without a coordinator, it does."""
        if not execution.delivery.is_current:
            # The broker has already delivered it again; that worker settles it.
            return True
        try:
            if not await self._control.is_heard(execution.queue):
                return True
            return await self._control.renew(
                execution.envelope.id, self._worker_id, execution.attempt, execution.queue, ANSWER_SECONDS
            )
        except (ClientError, ControlFailed) as error:
            _log.warning("could not find out whether job %s was replaced: %r", execution.envelope.id, error)
            return True

    def _look(self) -> None:
        now = self._loop.time()
        for ended in [execution for execution in self._leases if execution not in self._active]:
            del self._leases[ended]
        for execution in self._active:
            lease = self._leases.get(execution)
            if lease is None:
                interval = min(FIRST_HEARTBEAT_SECONDS, _interval(execution))
                lease = self._leases[execution] = _Heartbeat(execution.started, execution.started + interval)
            if lease.next_at <= now and execution.delivery.is_current:
                lease.next_at = now + _interval(execution)
                self._beat(execution, lease, now)

    def _beat(self, execution: Execution, lease: _Heartbeat, now: float) -> None:
        def heard() -> None:
            # A late attempt stays late until the coordinator is asked: it may just have been replaced.
            if now - lease.heard_at <= execution.envelope.visibility_seconds * LATE_SHARE:
                lease.heard_at = max(lease.heard_at, now)

        if lease.is_known:
            beat(self._broker, self._worker_id, execution, heard)
            return
        lease.is_known = True
        envelope, delivery = execution.envelope, execution.delivery
        seconds = envelope.visibility_seconds
        self._broker.events.record(
            envelope.id,
            JobHeartbeat(
                job_type=envelope.type,
                queue=execution.queue,
                worker_id=self._worker_id,
                attempt=execution.attempt,
                visible_until=format_timestamp(datetime.now(UTC) + timedelta(seconds=seconds)),
                visibility_ms=int(seconds * 1000),
                message=DeliveredMessage(
                    properties=delivery.encoded_properties, body=with_policy(delivery.body, envelope)
                ),
            ),
        )
        self._broker.events.after(heard)


def _interval(execution: Execution) -> float:
    return min(HEARTBEAT_SECONDS, execution.envelope.visibility_seconds / BEATS_PER_VISIBILITY)
