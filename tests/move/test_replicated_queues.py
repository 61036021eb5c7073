"""What a move leaves on a cluster is on several nodes, as far as the topology of jobs there says so."""

from __future__ import annotations

from waybill.broker import Broker
from waybill.client import Inspector, connect
from waybill.move import JobsMove, System
from waybill.ojs import Jobs, Topology

QUEUE = "replicated"
OLD = Topology()
NEW = Topology(queue_type="quorum", replicas=3, leader_locator="balanced")


async def test_the_marks_of_paused_queues_and_the_queues_of_the_move_are_quorum_queues() -> None:
    async with Broker(port=0) as one, Broker(port=0) as other:
        async with Jobs(one.uri(), create_queues=True) as jobs:
            await jobs.push("replicated.run", [1], queue=QUEUE)
            await jobs.pause(QUEUE)
        await JobsMove(System(one.uri(), OLD), System(other.uri(), NEW), [QUEUE]).run()
        async with connect(other.uri()) as connection:
            inspector = Inspector(connection)
            assert await inspector.queue_difference(NEW.pause(QUEUE), NEW.control_arguments()) is None
            quorum = {"x-queue-type": "quorum", "x-delivery-limit": 2**31 - 1}
            assert await inspector.queue_difference("waybill.move.identity", quorum) is None
