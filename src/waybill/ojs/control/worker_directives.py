"""Tells one worker to take no new jobs, to take jobs again, or to end: through the relay that all workers read."""

from __future__ import annotations

import msgspec

from waybill.client import BasicProperties
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.spec.control_message import CONTENT_TYPE, ControlRequest
from waybill.ojs.spec.headers import PERSISTENT


async def direct_worker(broker: BrokerConnection, worker_id: str, directive: str) -> None:
    """Return when the broker has accepted a directive: QUIET, WAKE or TERMINATE of `control_message`.

    A worker obeys when it reads the relay; there is no reply. Raises ClientError.
    """
    await broker.declarer.ensure_relay()
    await broker.publishing.publish(
        msgspec.json.encode(ControlRequest(worker_id=worker_id)),
        exchange=broker.declarer.topology.relay,
        properties=BasicProperties(content_type=CONTENT_TYPE, delivery_mode=PERSISTENT, type=directive),
        mandatory=True,
    )
