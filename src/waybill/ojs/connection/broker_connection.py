"""One connection to a broker, with what both a client and a worker do over it: declare, publish, write events."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Self

from waybill.client import Channel, Connection, ReconnectPolicy, connect
from waybill.ojs.connection.identity import Identity
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.topology.declarer import TopologyDeclarer
from waybill.ojs.topology.topology import Topology


class BrokerConnection:
    """A connection, a channel with confirms for jobs, the declarer and the event writer.

    The channels for declarations and for events are separate: an error on one leaves the others alone.
    """

    def __init__(
        self,
        stack: AsyncExitStack,
        connection: Connection,
        publishing: Channel,
        declarer: TopologyDeclarer,
        events: EventWriter,
        identity: Identity,
    ) -> None:
        """Use `open`."""
        self._stack = stack
        self.connection = connection
        self.publishing = publishing
        self.declarer = declarer
        self.events = events
        self.identity = identity

    @classmethod
    async def open(cls, uri: str, topology: Topology, source: str, reconnect: ReconnectPolicy | None) -> Self:
        """Connect, and open the channels. Raises what `waybill.client.connect` raises."""
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(
                connect(uri, name=source.removeprefix("/"), reconnect=reconnect)
            )
            declarer = TopologyDeclarer(await connection.channel(), topology)
            identity = Identity(connection.address)
            events = EventWriter(await connection.channel(confirms=True), declarer, source, identity)
            publishing = await connection.channel(confirms=True)
            broker = cls(stack.pop_all(), connection, publishing, declarer, events, identity)
        connection.on_reconnect(events.resume)
        connection.after_reading(events.push_out)
        return broker

    async def wait_for_connection(self, timeout_seconds: float) -> None:
        """Return when the connection is open; raise TimeoutError if it does not come back in time."""
        async with asyncio.timeout(timeout_seconds):
            await self.connection.wait_ready()

    async def close(self) -> None:
        """Close the connection; unconfirmed messages may be lost, so drain the events before."""
        await self._stack.aclose()
