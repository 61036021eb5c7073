"""A fault in serving one connection, or in a turn of work, keeps nothing from anybody else."""

import asyncio
import logging

import pytest

from tests.engine.server.conftest import bench as bench  # noqa: PLC0414 - a fixture, found by its name
from tests.engine.server.conftest import node_bench as node_bench  # noqa: PLC0414
from tests.engine.server.peer import EngineOutput, NodeBench
from waybill.broker import Broker
from waybill.client import connect
from waybill.node.node import ServerEngine


class FailingOutput(EngineOutput):
    is_failing = False

    def flush(self) -> None:
        if self.is_failing:
            self.is_failing = False
            raise ValueError("the output fails")
        super().flush()


def test_a_fault_in_one_connection_leaves_the_output_of_others(node_bench: NodeBench) -> None:
    first, second = node_bench.channel(), node_bench.channel()
    first.declare("q")
    wires = [wire.output for wire in node_bench.wires[-2:]]
    failing = FailingOutput()
    failing.engine, failing.is_failing = wires[0].engine, True
    engine = failing.engine
    assert isinstance(engine, ServerEngine)
    engine.output = failing  # type: ignore[attr-defined]
    node_bench.node.mark_dirty(engine)
    assert isinstance(wires[1].engine, ServerEngine)
    node_bench.node.mark_dirty(wires[1].engine)
    with pytest.raises(ValueError, match="the output fails"):
        node_bench.node.send()
    assert node_bench.node.has_output
    node_bench.node.send()
    assert not node_bench.node.has_output
    second.publish(b"1", "q")
    assert second.take_all("q") == [b"1"]


async def test_a_fault_in_a_turn_is_logged_and_the_broker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("nobody expected this")

    async with Broker(port=0) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        queue = (await channel.declare_queue(exclusive=True)).name
        told = asyncio.Event()
        broker._node.when_durable(fail)
        broker._node.when_durable(told.set)
        broker._turns.work()
        await asyncio.wait_for(told.wait(), 10)
        await channel.publish(b"1", routing_key=queue)
        assert (await channel.declare_queue(queue, passive=True)).message_count == 1
    faults = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(faults) == 1
    assert faults[0].exc_info is not None
    assert "nobody expected this" in str(faults[0].exc_info[1])
