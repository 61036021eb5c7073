"""Replaces attempts that send no heartbeats with the next attempt; the coordinator's part.

    no heartbeat for the visibility timeout -> LOOK, to the control queue: only its reader acts
    REPLACE at the relay, confirmed         -> workers drop what the old attempt says, and its message if it comes back
    job.failed, then as for any failure     -> the next attempt to the retry exchange, or the dead letter queue

The silence is measured by the coordinator's own clock, from when it saw the last sign of life. So different clocks, a
coordinator that has just started and a lost connection make it wait longer, never shorter.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from waybill.client import BasicProperties, ClientError, copied_delivery
from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.errors import InvalidJob
from waybill.ojs.recurring_error import RecurringError
from waybill.ojs.spec import control_message
from waybill.ojs.spec.control_message import CONTENT_TYPE, ControlRequest
from waybill.ojs.spec.envelope import read_envelope
from waybill.ojs.spec.nesting import shown
from waybill.ojs.worker.execution import Execution, lost_failure
from waybill.ojs.worker.settlement import Settlement

POLL_SECONDS: Final = 1.0
LOOK_LIFE_MS: Final = 10_000
REMEMBERED_REPLACEMENTS: Final = 10_000

_log = logging.getLogger("waybill.ojs.coordinator")


class _Silence:
    """Since when an attempt has been silent, by the loop's clock."""

    __slots__ = ("attempt", "since", "visible_until")

    def __init__(self, attempt: int, visible_until: str | None, since: float) -> None:
        self.attempt = attempt
        self.visible_until = visible_until
        self.since = since


class Replacement:
    """Replaces the hung attempts of some queues."""

    def __init__(self, broker: BrokerConnection, view: JobView) -> None:
        self._broker = broker
        self._view = view
        self._settlement = Settlement(broker, "dead_letter", holds_delivery=False)
        self._silences: dict[str, _Silence] = {}
        self._replaced: BoundedDict[tuple[str, int], None] = BoundedDict(REMEMBERED_REPLACEMENTS)
        self._looking: set[str] = set()
        self._loop = asyncio.get_running_loop()
        broker.connection.on_reconnect(self._begin_anew)

    def _begin_anew(self) -> None:
        """After a lost connection, repeat unconfirmed replacements, and give silent attempts more time."""
        self._silences.clear()
        self._replaced.clear()

    async def drain(self, timeout_seconds: float) -> None:
        """Wait until started replacements are safe, or until the timeout."""
        await self._settlement.drain(timeout_seconds)

    async def watch(self, queues: list[str]) -> None:
        """Request a check of each queue with a silent attempt, until cancelled."""
        trouble = RecurringError(_log, "the running attempts cannot be read from the database")
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if not self._broker.connection.is_open:
                continue
            try:
                silent = await self._silent()
            except Exception as error:  # noqa: BLE001 - whatever a database can have against it
                trouble.failed(error)
                continue
            trouble.worked()
            for queue in {queue for _, _, queue in silent} & set(queues):
                self._ask_for_look(queue)

    def heard(self, job_id: str) -> None:
        """Note a heartbeat."""
        silence = self._silences.get(job_id)
        if silence is not None:
            silence.since = self._loop.time()

    def has_replaced(self, job_id: str, attempt: int) -> bool:
        """Return whether this coordinator has replaced an attempt."""
        return (job_id, attempt) in self._replaced

    async def look(self, queue: str) -> None:
        """Replace the silent attempts of a queue. Only for the coordinator that reads its control queue."""
        if queue in self._looking:
            return
        self._looking.add(queue)
        try:
            await self._look(queue)
        finally:
            self._looking.discard(queue)

    async def _look(self, queue: str) -> None:
        for job_id, attempt, found in await self._silent():
            if found == queue and not self.has_replaced(job_id, attempt):
                self._replaced[job_id, attempt] = None
                try:
                    await self._replace(job_id, attempt, queue)
                except ClientError as error:
                    # It did not begin, so it is retried.
                    self._replaced.pop((job_id, attempt), None)
                    _log.warning(
                        "attempt %d of job %s could not be replaced, trying again: %r", attempt, shown(job_id), error
                    )
                except Exception:  # noqa: BLE001 - the others in this queue are not to wait for this one
                    _log.exception("attempt %d of job %s cannot be replaced", attempt, shown(job_id))

    async def _silent(self) -> list[tuple[str, int, str]]:
        """Return the job, attempt and queue of each attempt whose visibility timeout is over."""
        held = await self._view.held()
        now = self._loop.time()
        known, silences = self._silences, {}
        silent = []
        for job_id, queue, attempt, visible_until, visibility_ms in held:
            silence = known.get(job_id)
            if silence is None or (silence.attempt, silence.visible_until) != (attempt, visible_until):
                silence = _Silence(attempt, visible_until, now)
            silences[job_id] = silence
            if now - silence.since >= visibility_ms / 1000:
                silent.append((job_id, attempt, queue))
        known.clear()
        known.update(silences)
        return silent

    def _ask_for_look(self, queue: str) -> None:
        topology = self._broker.declarer.topology
        future = self._broker.publishing.publish_nowait(
            msgspec.json.encode(ControlRequest()),
            exchange=topology.direct,
            routing_key=topology.control_queue(queue),
            properties=BasicProperties(
                content_type=CONTENT_TYPE, type=control_message.LOOK, expiration=str(LOOK_LIFE_MS)
            ),
        )
        # The next one makes up for a lost one.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _replace(self, job_id: str, attempt: int, queue: str) -> None:
        message = await self._view.kept_message(job_id, attempt)
        if message is None:
            return
        try:
            envelope = read_envelope(message.body)
        except InvalidJob as error:
            _log.error("job %s cannot be replaced: %s", shown(job_id), error)
            return
        if envelope.id != job_id:
            _log.error("job %s cannot be replaced: its heartbeat contains the message of another job", shown(job_id))
            return
        request = ControlRequest(job_id, attempt=attempt, enqueued_at=envelope.enqueued_at)
        await self._broker.tell_workers(control_message.REPLACE, request)
        _log.warning("no heartbeat for attempt %d of job %s: the attempt is replaced", attempt, job_id)
        delivery = copied_delivery(message.properties, message.body)
        execution = Execution(delivery, queue, envelope, attempt)
        self._settlement.failed(execution, lost_failure(attempt, self._broker.events.timestamp()), 0.0)
