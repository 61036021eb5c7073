"""The worker's side of unique jobs with a place on the broker: see `control.unique_places`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from waybill.client import AccessRefused, Delivery
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.unique_places import UniquePlaces, place_of
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.headers import COPY
from waybill.ojs.spec.identifiers import may_be_derived
from waybill.ojs.worker.execution import Execution

_log: Final = logging.getLogger("waybill.ojs.worker")


class UniqueEnds:
    """Frees the places of jobs that have ended, and detects jobs that had ended before."""

    def __init__(self, broker: BrokerConnection) -> None:
        self._places = UniquePlaces(broker.connection, broker.declarer.topology)

    async def free(self, delivery: Delivery, job_id: str) -> None:
        """Free the place of a job that has ended; then its delivery may be settled. Raises ClientError."""
        place = place_of(delivery)
        if place is None:
            return
        try:
            await self._places.release(place, job_id)
        except AccessRefused as error:
            text = "unique job %s keeps its place: this user may not free it: %s"
            _log.error(text, job_id, error)

    async def freed(self, execution: Execution, ack: Callable[[Delivery, str], None]) -> None:
        """Free the place of a job and acknowledge its delivery, which may be a newer one by then."""
        await self.free(execution.delivery, execution.envelope.id)
        ack(execution.delivery, execution.queue)

    async def may_run(self, delivery: Delivery, job_id: str) -> bool:
        """Return whether a job still has its place. Raises ClientError."""
        place = place_of(delivery)
        if place is None:
            return True
        try:
            return await self._places.holder(place) == job_id
        except AccessRefused as error:
            _log.warning(
                "unique job %s runs without a check of its place: this user may not read it: %s", job_id, error
            )
            return True


def copy_of(delivery: Delivery) -> str | None:
    """Return the copy id of a job that has to be admitted by a coordinator, None for others."""
    copy = (delivery.properties.headers or {}).get(COPY)
    return copy if isinstance(copy, str) else None


def ends_for_all(execution: Execution) -> bool:
    """Return whether no attempt can begin after this one has ended, even if it was replaced.

    The end frees the place of a unique job, and ends the claim of a job with copies: then `Admissions` refuses others.
    """
    envelope, delivery = execution.envelope, execution.delivery
    if envelope.unique is not None and must_have_place(envelope, delivery):
        return True
    return may_be_derived(envelope.id) and copy_of(delivery) is not None


def must_have_place(envelope: Envelope, delivery: Delivery) -> bool:
    """Return whether a job without a place must have ended. Not if places expire, or for a moved dead letter."""
    if "period" in (envelope.unique or {}) or place_of(delivery) is None:
        return False
    deaths = (delivery.properties.headers or {}).get("x-death")
    reasons = [death.get("reason") for death in deaths if isinstance(death, dict)] if isinstance(deaths, list) else []
    return "rejected" not in reasons
