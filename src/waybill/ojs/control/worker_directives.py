"""Tells one worker to take no new jobs, to take jobs again, or to end: through the relay that all workers read."""

from __future__ import annotations

from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.spec.control_message import ControlRequest


async def direct_worker(broker: BrokerConnection, worker_id: str, directive: str) -> None:
    """Return when the broker has accepted a directive: QUIET, WAKE or TERMINATE of `control_message`.

    A worker obeys when it reads the relay; there is no reply. Raises ClientError.
    """
    await broker.declarer.ensure_relay()
    await broker.tell_workers(directive, ControlRequest(worker_id=worker_id))
