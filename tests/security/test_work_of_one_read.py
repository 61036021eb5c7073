"""A peer asks for more in one read than there is room for in a turn: others are served before all of it is done."""

from tests.engine.server.peer import Channel, Cut, EngineWire, NodeBench
from waybill.engine.amqp091.server.throttle import THROTTLE_S
from waybill.model.runtime import TURN_UNITS
from waybill.wire.amqp091.frames import FRAME_BODY, content_frames, frame, method_frame
from waybill.wire.amqp091.methods import BasicAck, BasicNack, BasicPublish
from waybill.wire.amqp091.properties import BasicProperties

MESSAGES = 3 * TURN_UNITS


def receive(channel: Channel, octets: bytes, now: float) -> None:
    wire = channel.peer.wire
    assert isinstance(wire, EngineWire)
    wire.engine.receive_data(octets, now)


def fill(channel: Channel, count: int) -> None:
    channel.declare("q")
    message = method_frame(1, BasicPublish("", "q")) + content_frames(1, BasicProperties(), b"1", 4096)
    channel.peer.write(message * count)


def test_requeueing_a_great_many_takes_turns_and_keeps_their_order(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    fill(channel, MESSAGES)
    channel.consume("q", no_ack=False)
    node_bench.settle()
    queue = node_bench.node.virtual_hosts["/"].queues["q"]
    assert queue.unsettled_count == MESSAGES
    receive(channel, method_frame(1, BasicNack(0, True, True)), node_bench.now)
    assert node_bench.node.runtime.work_left <= 0
    node_bench.settle()
    assert queue.unsettled_count == MESSAGES


def test_a_large_acknowledgement_goes_on_though_its_connection_is_blocked() -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    fill(channel, MESSAGES)
    channel.consume("q", no_ack=False)
    node = bench.node
    node._memory_alarm_bytes = node.runtime.memory_bytes // 2
    bench.settle()
    assert node.alarm
    # What ends the alarm, and enough behind it to be blocked for, come in one read.
    publish = method_frame(1, BasicPublish("", "q")) + content_frames(1, BasicProperties(), bytes(2 << 20), 131_072)
    receive(channel, method_frame(1, BasicAck(0, multiple=True)) + publish, bench.now)
    assert node.virtual_hosts["/"].queues["q"].unsettled_count > 0
    node._memory_alarm_bytes = 4 << 20
    bench.settle()
    assert not node.alarm
    assert node.virtual_hosts["/"].queues["q"].unsettled_count == 0
    bench.advance(2 * THROTTLE_S)
    assert node.virtual_hosts["/"].queues["q"].unsettled_count == 1


def test_empty_body_frames_are_refused(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.declare("q")
    header = content_frames(1, BasicProperties(), b"1", 4096)[:22]
    empty = frame(FRAME_BODY, 1, b"")
    channel.peer.write(method_frame(1, BasicPublish("", "q")) + header + empty * 1000)
    assert "empty body frames" in channel.peer.expect_refused(505)
