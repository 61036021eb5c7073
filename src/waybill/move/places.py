"""Moves the places of unique jobs: see `ojs.control.unique_places`."""

from __future__ import annotations

from waybill.client import BasicProperties, Connection, copied_delivery
from waybill.move.stamp import InTransit
from waybill.ojs.control.unique_places import UniquePlaces, place_of
from waybill.ojs.spec.headers import PLACE
from waybill.ojs.topology.topology import Topology


class Places:
    """The places on both brokers."""

    def __init__(self, source: Connection, old: Topology, target: Connection, new: Topology) -> None:
        self._source = UniquePlaces(source, old)
        self._target = UniquePlaces(target, new)

    async def taken(self, message: InTransit, properties: BasicProperties | bytes) -> BasicProperties | bytes:
        """Take the place of a job on the target; returns its properties, without the place if another job has it."""
        key, job_id = _place(message)
        if key is None:
            return properties

        async def may_replace(_holder: str) -> bool:
            return False

        holder = await self._target.take(key, job_id, lambda _channel: None, lasts_ms=None, may_replace=may_replace)
        if holder is None:
            return properties
        changed = properties if isinstance(properties, BasicProperties) else BasicProperties.decode(properties)
        changed.headers = {name: value for name, value in (changed.headers or {}).items() if name != PLACE}
        return changed

    async def left(self, message: InTransit) -> None:
        """Free the place of a job on the source: it has arrived."""
        key, job_id = _place(message)
        if key is not None:
            await self._source.release(key, job_id)


def _place(message: InTransit) -> tuple[str | None, str]:
    delivery = copied_delivery(message.properties, message.body)
    key = place_of(delivery)
    return key, "" if key is None else delivery.properties.message_id or ""
