"""A peer asks for more in one read than there is room for in a turn: others are served before all of it is done."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.amqp091.peer import Channel, Cut, EngineWire, NodeBench
from tests.engine.amqp10.peer import Peer
from waybill.engine.server_connection import PACE_S, ServerConnection
from waybill.model.consumer import Consumer
from waybill.model.consumer_line import ConsumerLine, consumers_in_order
from waybill.model.runtime import BYTES_PER_UNIT, TURN_UNITS
from waybill.wire.amqp091.frames import FRAME_BODY, content_frames, frame, method_frame
from waybill.wire.amqp091.methods_basic import BasicAck, BasicConsume, BasicGet, BasicNack, BasicPublish, BasicQos
from waybill.wire.amqp091.methods_tx import TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.frames import frame as frame10
from waybill.wire.amqp10.messaging import Source
from waybill.wire.amqp10.performatives import Flow, Transfer
from waybill.wire.amqp10.types import Described, Symbol, ULong

DATA = encode_value(Described(ULong(0x75), b"1"))
MESSAGES = 6 * TURN_UNITS


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
    bench.advance(2 * PACE_S)
    assert node.virtual_hosts["/"].queues["q"].unsettled_count == 1


def test_empty_body_frames_are_refused(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.declare("q")
    header = content_frames(1, BasicProperties(), b"1", 4096)[:22]
    empty = frame(FRAME_BODY, 1, b"")
    channel.peer.write(method_frame(1, BasicPublish("", "q")) + header + empty * 1000)
    assert "empty body frames" in channel.peer.expect_refused(505)


@pytest.mark.parametrize("is_in_transaction", [True, False])
def test_messages_that_are_taken_one_by_one_are_looked_at_once(is_in_transaction: bool) -> None:
    bench = NodeBench(Cut.WHOLE)
    bench.node.runtime.turn_units = 1 << 20
    bench.node.runtime.begin_turn()
    channel = bench.channel()
    for name in ("q", "r"):
        channel.declare(name)
        channel.bind("amq.fanout", name)
    if is_in_transaction:
        channel.call(TxSelect(), TxSelectOk)
    message = method_frame(1, BasicPublish("amq.fanout", "k")) + content_frames(1, BasicProperties(), b"1", 4096)
    receive(channel, message * 4, bench.now)

    def cost(reads: int, count: int) -> float:
        began = time.process_time()
        for _ in range(reads):
            receive(channel, message * count, bench.now)
        return time.process_time() - began

    # Taken together or apart, messages take the same time: it was 15 times as long.
    assert min(cost(1, 512) for _ in range(4)) < 4 * min(cost(32, 16) for _ in range(4))


def test_messages_whose_headers_are_converted_take_turns() -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("q")
    peer = Peer(bench)
    peer.open()
    session = peer.begin(incoming_window=1 << 20)
    session.receiver("/queues/q")
    session.flow(handle=0, delivery_count=0, link_credit=1000, incoming_window=1 << 20)
    queue = bench.node.virtual_hosts["/"].queues["q"]
    headers: dict[str, object] = {f"h{number}": "v" for number in range(2000)}
    message = method_frame(1, BasicPublish("", "q")) + content_frames(1, BasicProperties(headers=headers), b"", 131_072)
    receive(channel, message * 11, bench.now)
    bench.node.work(bench.now)
    assert 0 < queue.ready_count < 11
    bench.settle()
    assert queue.unsettled_count == 11


def test_a_polled_message_is_charged_for_its_conversion() -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("q")
    peer = Peer(bench)
    peer.open()
    properties = {f"p{number}": number for number in range(500)}
    peer.begin().sender("/queues/q").send(encode_value(Described(ULong(0x74), properties)) + DATA)
    bench.settle()
    runtime = bench.node.runtime
    runtime.begin_turn()
    receive(channel, method_frame(1, BasicGet("q")), bench.now)
    assert runtime.work_left < runtime.turn_units - 64


SELECTOR = Described(Symbol("apache.org:selector-filter:string"), "a IS NULL")


@pytest.mark.parametrize("source", [{}, {"filter": {Symbol("s"): SELECTOR}}, {"distribution_mode": Symbol("copy")}])
def test_a_turn_delivers_less_of_large_messages(source: dict[str, Any]) -> None:
    """Copying 50 kB takes far longer than what else a delivery costs: a turn gave a thousand of them to a browser."""
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("q")
    message = method_frame(1, BasicPublish("", "q")) + content_frames(1, BasicProperties(), bytes(50_000), 131_072)
    for _ in range(200):
        receive(channel, message, bench.now)
        bench.settle()
    peer = Peer(bench)
    peer.open()
    session = peer.begin(incoming_window=1 << 20)
    receiver = session.receiver("/queues/q", source=Source("/queues/q", **source))
    runtime = bench.node.runtime
    runtime.begin_turn()
    flow = Flow(next_incoming_id=0, incoming_window=1 << 20, next_outgoing_id=0, outgoing_window=1 << 20)
    flow = replace(flow, handle=receiver.handle, delivery_count=0, link_credit=1000)
    wire = peer.wire
    assert isinstance(wire, EngineWire)
    engine = wire.engine
    assert isinstance(engine, ServerConnection)
    engine.output_high_water = 1 << 30
    engine.receive_data(frame10(0, flow.encode()), bench.now)
    bench.node.work(bench.now)
    assert 0 < len(engine.out) < 5 << 20
    assert runtime.has_late_work


def test_a_polled_message_is_charged_for_its_size() -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("q")
    message = method_frame(1, BasicPublish("", "q")) + content_frames(1, BasicProperties(), bytes(1 << 20), 131_072)
    receive(channel, message, bench.now)
    bench.settle()
    runtime = bench.node.runtime
    runtime.begin_turn()
    receive(channel, method_frame(1, BasicGet("q")), bench.now)
    assert runtime.work_left <= runtime.turn_units - (1 << 20) // BYTES_PER_UNIT


LARGE_BYTES = 1 << 20


def large_message_of_0_9_1(bench: NodeBench, queue: str) -> tuple[ServerConnection, list[bytes]]:
    """A connection that publishes a large message, and the pieces that it comes in."""
    channel = bench.channel()
    message = method_frame(1, BasicPublish("", queue)) + content_frames(
        1, BasicProperties(), bytes(LARGE_BYTES), 131_072
    )
    assert isinstance(channel.peer.wire, EngineWire)
    assert isinstance(channel.peer.wire.engine, ServerConnection)
    return channel.peer.wire.engine, [message[:-8192], message[-8192:]]


def large_message_of_1_0(bench: NodeBench, queue: str) -> tuple[ServerConnection, list[bytes]]:
    """The same."""
    peer = Peer(bench)
    peer.open(container_id=str(len(bench.wires)), max_frame_size=65_536)
    sender = peer.begin().sender(f"/queues/{queue}")
    message = encode_value(Described(ULong(0x75), bytes(LARGE_BYTES)))
    pieces = [message[start : start + 60_000] for start in range(0, len(message), 60_000)]
    frames = [
        frame10(
            sender.session.channel,
            Transfer(sender.handle, 0, delivery_tag=b"t", message_format=0, more=number < len(pieces) - 1).encode(),
            piece,
        )
        for number, piece in enumerate(pieces)
    ]
    assert isinstance(peer.wire, EngineWire)
    assert isinstance(peer.wire.engine, ServerConnection)
    return peer.wire.engine, [b"".join(frames[:-1]), frames[-1]]


@pytest.mark.parametrize("large_message", [large_message_of_0_9_1, large_message_of_1_0])
def test_a_turn_completes_few_large_messages(
    large_message: Callable[[NodeBench, str], tuple[ServerConnection, list[bytes]]],
) -> None:
    """Copying 12 MB takes 8 ms: of twenty clients whose messages were complete in one round, others waited for all."""
    bench = NodeBench(Cut.WHOLE)
    bench.channel().declare("q")
    publishes = [large_message(bench, "q") for _ in range(20)]
    for engine, (most, _) in publishes:
        engine.receive_data(most, bench.now)
        bench.settle()
    runtime = bench.node.runtime
    runtime.turn_units = 64
    runtime.begin_turn()
    for engine, (_, last) in publishes:
        engine.receive_data(last, bench.now)
    bench.node.work(bench.now)
    queue = bench.node.virtual_hosts["/"].queues["q"]
    assert 0 < queue.ready_count < 5
    bench.settle()
    assert queue.ready_count == 20


@pytest.mark.parametrize("units", [TURN_UNITS, 40, 484, 595])
def test_many_readers_of_a_stream_take_turns_to_read_and_to_leave(units: int) -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    message = method_frame(1, BasicPublish("", "s")) + content_frames(1, BasicProperties(), b"1", 4096)
    receive(channel, message * 512, bench.now)
    bench.settle()
    runtime = bench.node.runtime
    runtime.turn_units = units
    runtime.begin_turn()
    stream = bench.node.virtual_hosts["/"].queues["s"]
    first: dict[str, object] = {"x-stream-offset": "first"}
    consumes = [method_frame(1, BasicConsume("s", f"c{i}", no_wait=True, arguments=first)) for i in range(100)]
    receive(channel, method_frame(1, BasicQos(0, 1, False)) + b"".join(consumes), bench.now)
    bench.node.work(bench.now)
    # Each of them reads as many as it may ever want.
    assert stream.unsettled_count < 100
    bench.settle()
    assert stream.unsettled_count == 100
    runtime.begin_turn()
    assert isinstance(channel.peer.wire, EngineWire)
    channel.peer.wire.engine.connection_lost(bench.now)
    assert runtime.work_left <= 0
    bench.settle()
    assert not stream.consumers


@pytest.mark.plain_source
def test_who_is_first_of_many_consumers_is_known_at_once() -> None:
    consumers = consumers_in_order(has_single=True)
    waiting = [ChannelLess(str(number)) for number in range(60_000)]
    for consumer in waiting:
        consumers[consumer] = None
    began = time.process_time()
    for consumer in waiting[:-1]:
        del consumers[consumer]
        next(iter(consumers))
    # It was 1 s: all that had left stood in the way.
    assert time.process_time() - began < 0.25


@pytest.mark.plain_source
def test_consumers_of_many_priorities_leave_a_line_for_the_same_each() -> None:
    line = ConsumerLine()
    consumers = [ChannelLess("c", priority) for priority in range(10_000)]
    for consumer in consumers:
        consumer.is_active = True
        line.append(consumer)
    began = time.process_time()
    for consumer in consumers:
        consumer.is_active = False
        line.left()
    # It was 1 s and more: each who left had the consumers of all priorities counted.
    assert time.process_time() - began < 0.25
    while line.front:
        assert not line.front[0].is_active
        line.drop_first()


class ChannelLess(Consumer):
    """Somebody in line."""

    def __init__(self, tag: str, priority: int = 0) -> None:
        super().__init__(tag, no_ack=True, exclusive=False, priority=priority)
