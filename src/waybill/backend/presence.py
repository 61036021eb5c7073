"""Whether a server is running: each has an exclusive queue, which ends with its connection."""

from __future__ import annotations

from typing import Final

from waybill.client import AccessRefused, Inspector, ResourceLocked
from waybill.ojs.connection.broker_connection import BrokerConnection

HIDDEN: Final = (ResourceLocked, AccessRefused)
"""The reply code for an exclusive queue of another connection."""


class Presence:
    """The presence of this server, and checks of others. A name exists on the broker only while its server runs."""

    def __init__(self, broker: BrokerConnection) -> None:
        self._broker = broker
        self._inspector = Inspector(broker.connection)
        self.name = ""

    async def start(self) -> None:
        """Declare this server's queue."""
        channel = await self._broker.connection.channel()
        declared = await channel.declare_queue("", exclusive=True)
        self.name = declared.name

    async def is_running(self, name: str) -> bool:
        """Whether a server of this name is connected. Raises ClientError."""
        try:
            return await self._inspector.queue(name) is not None
        except HIDDEN:
            return True
