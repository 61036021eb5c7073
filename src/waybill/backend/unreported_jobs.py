"""Jobs that a server enqueued before it died without writing their events.

The broker has confirmed such a job, but it has no event. Before the job is pushed again, its queue is searched and the
missing event written. The messages are published again afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from waybill.backend.errors import RequestRefused
from waybill.backend.waiting_messages import WaitingMessage, find_waiting
from waybill.client import Delivery
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.markers import catch_up
from waybill.ojs.spec.enqueued_event import enqueued_event
from waybill.ojs.spec.headers import run_number
from waybill.ojs.spec.identifiers import derived_id

MAX_SEARCHED: Final = 20_000


async def report_missing(broker: BrokerConnection, view: JobView, wanted: Mapping[str, Collection[str]]) -> None:
    """Search for unknown jobs in their queues, and write events for those that are found.

    Raises RequestRefused if a queue is too long to search.
    """
    await catch_up(view, broker.events)
    for queue, ids in wanted.items():
        known = {info.id for info in await view.many(list(ids))}
        missing = set(ids) - known
        for name in broker.declarer.topology.job_queues(queue):
            if missing:
                await _search(broker, queue, name, missing)
    await catch_up(view, broker.events)


async def _search(broker: BrokerConnection, queue: str, name: str, missing: set[str]) -> None:
    """Search one AMQP queue of an OJS queue, and remove the ids that are found from `missing`."""

    async def record(delivery: Delivery, message: WaitingMessage) -> bool:
        event_id = f"evt_{derived_id(0, 'enqueued', message.id)}"
        told = enqueued_event(message, queue, bytes(delivery.body), run=run_number(delivery.encoded_properties) or 0)
        broker.events.record(message.id, told, message.enqueued_at, event_id=event_id)
        return False

    if not await find_waiting(broker, queue, name, missing, MAX_SEARCHED, record):
        text = f"Queue {queue} is too long to be searched for the job."
        raise RequestRefused("overloaded", text, hint="Try again when the queue is shorter.")
