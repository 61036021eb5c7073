"""Whether the user of a connection has the permissions that jobs need."""

from __future__ import annotations

import asyncio
from typing import Final

from waybill.client import AccessRefused, BasicProperties, ChannelClosed, Connection
from waybill.ojs.topology.topology import Declaration, Topology

NOWHERE: Final = ""
"""A routing key that no queue of jobs has."""


async def require_permissions(connection: Connection, topology: Topology) -> None:
    """Raise AccessRefused if the broker refuses to write, read or configure; and ConnectionLost or RequestTimeout.

    It changes nothing: it publishes a job that no queue takes, removes a binding that does not exist, and declares an
    exchange that exists. What is missing is declared when it is needed.
    """
    try:
        # With one wait for everything: this is asked while the broker is busiest.
        async with connection.side_channel(waits=False) as channel:
            channel.publish(b"", exchange=topology.direct, routing_key=NOWHERE, properties=BasicProperties())
            asked = [channel.unbind_queue(topology.event_stream, topology.events, NOWHERE)]
            if topology.declaration is not Declaration.NEVER:
                asked.append(channel.declare_exchange(topology.direct, durable=True))
            await asyncio.gather(*asked)
    except ChannelClosed as error:
        if isinstance(error, AccessRefused):
            raise
