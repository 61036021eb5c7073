"""Events of all partitions, for programs that show what happens."""

import asyncio
import gc
import json
from datetime import timedelta

import pytest

from waybill.client import connect
from waybill.ojs import Jobs, Topology
from waybill.ojs.spec.events import read_events
from waybill.ojs.topology.discovery import known_queues
from waybill.ojs.topology.event_deliveries import EventDeliveries


async def test_they_come_from_all_partitions(
    broker_uri: str, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topology = Topology(prefix=f"{queue_name}.", event_partitions=3)
    async with Jobs(broker_uri, topology=topology) as jobs:
        pushed = {(await jobs.push("a.b", queue=queue_name)).id for _ in range(20)}
    found: set[str] = set()
    async with connect(broker_uri) as connection:
        assert await known_queues(connection, topology, timedelta(hours=1)) == [queue_name]
        deliveries = await EventDeliveries.open(await connection.channel(prefetch_count=5), topology, "first")
        async with asyncio.timeout(30):
            while not pushed <= found:
                delivery = await anext(deliveries)
                delivery.ack()
                found |= {event.subject for event in read_events(delivery.body)[0]}
        # A wait that is given up loses nothing, and nothing is said of those that the end of the connection ends.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(deliveries)
    del deliveries
    await asyncio.sleep(0)
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_only_names_that_a_queue_can_have_are_found(broker_uri: str, queue_name: str) -> None:
    """Anyone may publish an event, and no broker takes a name of 300 octets."""
    topology = Topology(prefix=f"{queue_name}.")
    async with Jobs(broker_uri, topology=topology) as jobs, connect(broker_uri) as connection:
        await jobs.push("a.b", queue=queue_name)
        channel = await connection.channel(confirms=True)
        for queue in ("q" * 300, "Not good", "", "a\0b"):
            event: dict[str, object] = {"id": queue[:9], "type": "job.enqueued", "source": "x", "subject": "s"}
            event |= {"time": "2026-01-01T00:00:00Z", "data": {"queue": queue, "job_type": "a.b"}}
            await channel.publish(json.dumps(event).encode(), exchange=topology.events, routing_key="job.enqueued")
        assert await known_queues(connection, topology, timedelta(hours=1)) == [queue_name]
