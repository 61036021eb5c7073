"""Reads the events in the stream of one of our brokers."""

from __future__ import annotations

from collections import Counter

from waybill.client import Connection, Inspector
from waybill.move.stream_copy import MARK
from waybill.ojs import Topology
from waybill.ojs.spec.events import read_events


async def found_events(connection: Connection, names: Topology) -> Counter[str]:
    """Return the ids of all events but marks, with how often each is there."""
    stream = await Inspector(connection).queue(names.event_stream)
    assert stream is not None
    events: Counter[str] = Counter()
    async with await connection.channel(prefetch_count=100) as channel:
        consumer = await channel.consume(names.event_stream, arguments={"x-stream-offset": "first"})
        for _ in range(stream.message_count):
            delivery = await anext(consumer)
            delivery.ack()
            if MARK not in (delivery.properties.headers or {}):
                events.update(event.id for event in read_events(delivery.body)[0])
    return events
