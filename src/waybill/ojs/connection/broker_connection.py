"""One connection to a broker, with what both a client and a worker do over it: declare, publish, write events."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Self

import msgspec

from waybill.client import BasicProperties, Channel, Connection, MessageReturned, ReconnectPolicy, connect
from waybill.ojs.connection.identity import Identity
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.control_message import CONTENT_TYPE, ControlRequest
from waybill.ojs.spec.headers import PERSISTENT
from waybill.ojs.topology.declarer import TopologyDeclarer
from waybill.ojs.topology.topology import Topology


class BrokerConnection:
    """A connection, a channel with confirms for jobs, the declarer and the event writer.

    The channels for declarations, for events and for messages to all workers are separate: an error on one leaves the
    others alone, and what is published to a stream has a channel of its own (see `event_writer`).
    """

    def __init__(
        self,
        stack: AsyncExitStack,
        connection: Connection,
        publishing: Channel,
        declarer: TopologyDeclarer,
        events: EventWriter,
        identity: Identity,
        connect_again: Callable[[], AbstractAsyncContextManager[Connection]],
    ) -> None:
        """Use `open`."""
        self._stack = stack
        self.connection = connection
        self.publishing = publishing
        self.declarer = declarer
        self.events = events
        self.identity = identity
        self._connect_again = connect_again
        self._opening = asyncio.Lock()
        self._relay: Channel | None = None

    @classmethod
    async def open(cls, uri: str, topology: Topology, source: str, reconnect: ReconnectPolicy | None) -> Self:
        """Connect, and open the channels. Raises what `waybill.client.connect` raises."""
        async with AsyncExitStack() as stack:
            connect_again = functools.partial(connect, uri, name=source.removeprefix("/"), reconnect=reconnect)
            connection = await stack.enter_async_context(connect_again())
            declarer = TopologyDeclarer(await connection.channel(), topology)
            identity = Identity(connection.address)
            open_channel = functools.partial(connection.channel, confirms=True)
            events = await EventWriter.open(open_channel, declarer, source, identity)
            publishing = await connection.channel(confirms=True)
            broker = cls(stack.pop_all(), connection, publishing, declarer, events, identity, connect_again)
        connection.on_reconnect(events.resume)
        connection.after_reading(events.push_out)
        return broker

    async def tell_workers(self, kind: str, request: ControlRequest) -> None:
        """Publish a message of `control_message` to the relay, which all workers read.

        Returns when the broker has it. Raises ClientError.
        """
        async with self._opening:
            if self._relay is None:
                self._relay = await self.connection.channel(confirms=True)
            channel = self._relay
        try:
            await channel.publish(
                msgspec.json.encode(request),
                exchange=self.declarer.topology.relay,
                properties=BasicProperties(content_type=CONTENT_TYPE, delivery_mode=PERSISTENT, type=kind),
                mandatory=True,
            )
        except MessageReturned:
            if self._relay is channel:
                self._relay = None
                channel.abandon()
            raise

    async def open_another(self) -> Connection:
        """Return one more connection, which ends with this one: there may be too many channels for one.

        Raises what `waybill.client.connect` raises.
        """
        return await self._stack.enter_async_context(self._connect_again())

    async def wait_for_connection(self, timeout_seconds: float) -> None:
        """Return when the connection is open; raise TimeoutError if it does not come back in time."""
        async with asyncio.timeout(timeout_seconds):
            await self.connection.wait_ready()

    async def close(self) -> None:
        """Close the connection; unconfirmed messages may be lost, so drain the events before."""
        await self._stack.aclose()
