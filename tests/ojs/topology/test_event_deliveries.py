"""Events of all partitions, for programs that show what happens."""

import asyncio
import gc
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
