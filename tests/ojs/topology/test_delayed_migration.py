"""Jobs that wait in a delayed exchange still reach a queue that was made anew under its name."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from waybill.broker import Broker
from waybill.client import connect
from waybill.ojs import Jobs, Migration, Topology
from waybill.ojs.topology.topology import DELAY
from waybill.wire.amqp091.properties import BasicProperties

OLD = Topology(schedule_by="exchange")
QUEUE = "email"


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (OLD, lambda old: replace(old, queue_type="quorum")),
        (OLD, lambda old: replace(old, partitions={QUEUE: 2})),
        (replace(OLD, partitions={QUEUE: 2}), lambda old: replace(old, partitions={})),
    ],
    ids=["type", "divided", "one"],
)
async def test_the_delayed_exchange_stays_bound(before: Topology, change: Callable[[Topology], Topology]) -> None:
    after = change(before)
    async with Broker(port=0) as broker:
        uri = broker.uri("/ojs")
        async with Jobs(uri, topology=before) as jobs:
            await jobs.push("mail.send", queue=QUEUE)
            await jobs.push("mail.send", queue=QUEUE, delay=timedelta(hours=1))
        async with Migration(uri, before, after) as migration:
            await migration.run([QUEUE])
            assert await migration.plan([QUEUE]) == []
        async with connect(uri) as connection:
            channel = await connection.channel()
            properties = BasicProperties(headers={DELAY: 1})
            await channel.publish(b"{}", exchange=after.delayed, routing_key=QUEUE, properties=properties)
            left = 2
            async with asyncio.timeout(20):
                while left:
                    for name in after.job_queues(QUEUE):
                        delivery = await channel.get(name)
                        if delivery is not None:
                            delivery.ack()
                            left -= 1
