"""The worker's side of jobs that run once even if they are in their queue twice: see `coordinator.claims`.

A delivery with a copy id in its header waits here until a coordinator has decided whether this copy is the job. A
unique job with a place on the broker waits until the place tells whether the job has already ended: see
`control.unique_places`. Waiting jobs take no concurrency slot and have no attempt yet: if the worker is killed, the
broker delivers them to the next one. Without a coordinator, they wait indefinitely.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from waybill.client import ClientError, Delivery
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.control import Control
from waybill.ojs.errors import ControlFailed
from waybill.ojs.spec.control_message import ADMIT, Admission, AdmissionRequest
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.nesting import shown
from waybill.ojs.worker.unique_ends import UniqueEnds, copy_of, must_have_place

ANSWER_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 1.0

_log = logging.getLogger("waybill.ojs.worker")


class Admissions:
    """Requests admission of copies."""

    def __init__(
        self,
        broker: BrokerConnection,
        worker_id: str,
        on_admitted: Callable[[str, Delivery], None],
        on_refused: Callable[[str, Delivery], None],
        unique: UniqueEnds,
    ) -> None:
        """`on_admitted` starts a delivery, `on_refused` drops it; neither is called for an outdated delivery."""
        self._broker = broker
        self._worker_id = worker_id
        self._unique = unique
        self._on_admitted = on_admitted
        self._on_refused = on_refused
        self._control: Control | None = None
        self._admitted: set[Delivery] = set()
        """Admitted deliveries that are about to start."""
        self._asking: dict[Delivery, tuple[str, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        """Return how many deliveries wait for a decision."""
        return len(self._asking)

    def holds(self, queue: str, delivery: Delivery, envelope: Envelope) -> bool:
        """Return whether a delivery has to wait; if so, request its admission."""
        if delivery in self._admitted:
            self._admitted.discard(delivery)
            return False
        copy = copy_of(delivery)
        if copy is not None:
            asking = self._ask(queue, delivery, envelope.id, copy)
        elif envelope.unique is not None and must_have_place(envelope, delivery):
            asking = self._ask(queue, delivery, envelope.id, None)
        else:
            return False
        self._asking[delivery] = queue, asyncio.get_running_loop().create_task(asking)
        return True

    def release(self, queue: str | None = None) -> list[tuple[str, Delivery]]:
        """Cancel the requests of all queues or of one; returns the waiting jobs."""
        if queue is None:
            self._admitted.clear()
        waiting = [(name, delivery) for delivery, (name, _) in self._asking.items() if queue in {None, name}]
        for _, delivery in waiting:
            self._asking.pop(delivery)[1].cancel()
        return waiting

    async def _ask(self, queue: str, delivery: Delivery, job_id: str, copy: str | None) -> None:
        is_admitted = await self._answer(delivery, job_id, copy)
        if is_admitted is None:
            self._asking.pop(delivery, None)
            return
        if not is_admitted and copy is not None:
            _log.info("dropped copy %s of job %s: another copy came first", shown(copy), shown(job_id))
        elif not is_admitted:
            _log.info("unique job %s has lost its place: it ended before", shown(job_id))
        # Not from within this task: a handler may start immediately, in its own task.
        asyncio.get_running_loop().call_soon(self._go_on, queue, delivery, is_admitted)

    def _go_on(self, queue: str, delivery: Delivery, is_admitted: bool) -> None:  # noqa: FBT001 - as the loop calls it
        if self._asking.pop(delivery, None) is None or not delivery.is_current:
            return
        if is_admitted:
            self._admitted.add(delivery)
            self._on_admitted(queue, delivery)
        else:
            self._on_refused(queue, delivery)

    async def _answer(self, delivery: Delivery, job_id: str, copy: str | None) -> bool | None:
        """Ask until there is an answer; None if the delivery was lost meanwhile."""
        while delivery.is_current:
            try:
                if copy is None:
                    return await self._unique.may_run(delivery, job_id)
                return await self._is_job(job_id, copy)
            except (ControlFailed, ClientError, msgspec.DecodeError) as error:
                _log.warning("job %s waits: no coordinator confirmed that it may run: %s", shown(job_id), error)
            await asyncio.sleep(PAUSE_SECONDS)
        return None

    async def _is_job(self, job_id: str, copy: str) -> bool:
        if self._control is None:
            self._control = Control(self._broker)
        asked = AdmissionRequest(job_id=job_id, copy=copy, worker_id=self._worker_id)
        answer = await self._control.ask(None, ADMIT, asked, ANSWER_SECONDS)
        return msgspec.json.decode(answer, type=Admission).is_admitted
