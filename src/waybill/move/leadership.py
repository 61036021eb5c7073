"""Decides which broker's coordinators lead: a hold on the leader queue of one broker stops its coordinators.

A coordinator leads while it receives its heartbeats from the leader queue. A held queue has different arguments, so
coordinators cannot consume from it, and retry periodically. It is durable, so it survives a kill of the move: cron jobs
fire and workflows advance at one broker at a time.
"""

from __future__ import annotations

import asyncio
from typing import Final

from waybill.client import Connection, Inspector, PreconditionFailed
from waybill.ojs.coordinator.leader import LEASE_SECONDS
from waybill.ojs.topology.declarations import QueueDeclaration
from waybill.ojs.topology.topology import Topology

HELD: Final[dict[str, object]] = {"x-message-ttl": 1}
LEASE_ENDS_SECONDS: Final = LEASE_SECONDS + 1.0
"""After this time without heartbeats, no coordinator leads."""


async def is_held(connection: Connection, topology: Topology) -> bool:
    """Whether no coordinator can lead at this broker."""
    inspector = Inspector(connection)
    name = topology.leader_queue
    return await inspector.queue(name) is not None and await inspector.queue_difference(name, HELD) is None


async def hold(connection: Connection, topology: Topology) -> None:
    """Prevent coordinators from becoming the leader. The current one leads for at most LEASE_ENDS_SECONDS."""
    name = topology.leader_queue
    while not await is_held(connection, topology):
        async with await connection.channel() as channel:
            await channel.delete_queue(name)
            try:
                await channel.declare_queue(name, durable=True, arguments=HELD)
            except PreconditionFailed:
                # A coordinator has declared the queue before.
                await asyncio.sleep(0)
    connection.declarations.queue_deleted(name)


async def lift(connection: Connection, topology: Topology) -> None:
    """Let the coordinators of a broker lead again: they retry within half a minute."""
    if not await is_held(connection, topology):
        return
    async with await connection.channel() as channel:
        await channel.delete_queue(topology.leader_queue)
        for entity in topology.leader_entities():
            if isinstance(entity, QueueDeclaration):
                await channel.declare_queue(entity.name, durable=True, arguments=entity.arguments)
