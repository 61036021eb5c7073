"""Whether a server is there: it has a queue of its own, which its connection takes with it."""

from __future__ import annotations

from typing import Final

from waybill.client import AccessRefused, Inspector, ResourceLocked
from waybill.ojs.connection.broker_connection import BrokerConnection

HIDDEN: Final = (ResourceLocked, AccessRefused)
"""What a broker says of a queue that is there, and another connection's."""


class Presence:
    """This server's, and a look at others'. Names are known to the broker only while their servers are."""

    def __init__(self, broker: BrokerConnection) -> None:
        self._broker = broker
        self._inspector = Inspector(broker.connection)
        self.name = ""

    async def start(self) -> None:
        """Be there."""
        channel = await self._broker.connection.channel()
        declared = await channel.declare_queue("", exclusive=True)
        self.name = declared.name

    async def is_there(self, name: str) -> bool:
        """Say whether a server of this name is connected. Raises ClientError."""
        try:
            return await self._inspector.queue(name) is not None
        except HIDDEN:
            return True
