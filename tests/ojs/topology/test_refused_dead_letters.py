"""RabbitMQ's quorum queues keep a retry that its job queue refuses, and send it again after a time that can be set."""

import asyncio
from contextlib import closing, suppress

import pytest

from tests.ojs.eye import Eye
from tests.rabbitmq import INSTALL_HINT, RabbitMQ, installed
from waybill.client import BasicProperties, MessageNacked, connect
from waybill.ojs import Topology
from waybill.ojs.topology.declarer import TopologyDeclarer

TIMEOUT_S = 1.0
"""By default it is 180 s, which is longer than this test may take."""
PERSISTENT = BasicProperties(delivery_mode=2)


async def test_a_refused_retry_is_sent_again_after_the_time_that_the_guide_sets() -> None:
    if not installed():
        pytest.skip(INSTALL_HINT)
    topology = Topology(queue_type="quorum", max_length=1)
    with RabbitMQ(dead_letter_timeout_s=TIMEOUT_S) as broker, closing(Eye(broker.uri("/ojs"))) as eye:
        async with connect(broker.uri("/ojs")) as connection:
            channel = await connection.channel()
            declarer = TopologyDeclarer(channel, topology)
            await declarer.ensure_queue("full")
            await declarer.ensure_retry("full", 1000)
            queue, waiting = topology.job_queue("full"), topology.retry_queue("full", 1000)
            with suppress(MessageNacked):
                while True:
                    await channel.publish(b"before", routing_key=queue, properties=PERSISTENT)
            await channel.publish(b"retry", routing_key=waiting, properties=PERSISTENT)
            while await eye.count(waiting):
                await asyncio.sleep(0.01)
            # Its time is up, and there is no room for it. Now there is.
            while (found := await eye.wait_for(queue, 60)).body == b"before":
                pass
            assert found.body == b"retry"
