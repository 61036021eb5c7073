"""Finds OJS queues. AMQP cannot list queues, but the events of pushes and workers contain their names."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.client import Connection, Inspector, NotFound
from waybill.ojs.spec.envelope import is_queue_name
from waybill.ojs.spec.events import read_events
from waybill.ojs.topology.event_deliveries import EventDeliveries
from waybill.ojs.topology.topology import Topology

PREFETCH: Final = 1000
QUIET_SECONDS: Final = 0.5
"""A stream has no end: after this time without a message, it counts as read."""
FIRST_SECONDS: Final = 1.0
"""A busy broker takes longer to find the first message than to send the next."""
MOST_SECONDS: Final = 10.0


async def known_queues(
    connection: Connection,
    topology: Topology,
    since: timedelta,
    *,
    quiet_seconds: float = QUIET_SECONDS,
    most_seconds: float = MOST_SECONDS,
) -> list[str]:
    """Return the names of the queues in the events of the last hours, in alphabetical order.

    Reads for at most `most_seconds`: on a very busy broker, only the queues of the oldest events are found.
    """
    found: set[str] = set()
    if connection.is_waybill:
        # RabbitMQ updates a stream's message count only from time to time; Waybill's broker always has it.
        streams = [await Inspector(connection).queue(name) for name in topology.event_streams]
        if not any(stream is not None and stream.message_count for stream in streams):
            return []
    channel = await connection.channel(prefetch_count=PREFETCH)
    try:
        deliveries = await EventDeliveries.open(channel, topology, datetime.now(UTC) - since)
    except NotFound:
        return []
    deadline = asyncio.get_running_loop().time() + most_seconds
    wait_seconds = min(max(FIRST_SECONDS, quiet_seconds), most_seconds)
    with suppress(TimeoutError):
        while asyncio.get_running_loop().time() < deadline:
            async with asyncio.timeout(wait_seconds):
                delivery = await anext(deliveries)
            wait_seconds = quiet_seconds
            delivery.ack()
            with suppress(msgspec.DecodeError):
                for event in read_events(delivery.body)[0]:
                    found.update(_queues_of(event.data))
    await deliveries.close()
    await channel.close()
    return sorted(found)


def _queues_of(data: dict[str, object]) -> list[str]:
    queue, queues = data.get("queue"), data.get("queues")
    names = [queue, *queues] if isinstance(queues, list) else [queue]
    return [name for name in names if isinstance(name, str) and is_queue_name(name)]
