"""A publisher that outruns the consumers of its queue is slowed down by short pauses, and never stopped."""

from collections.abc import Iterator

import pytest

from tests.engine.amqp091.peer import Channel, Cut, EngineWire, NodeBench
from waybill.engine.amqp091.server.publish_route import OUTRUN
from waybill.engine.server_connection import PACE_S
from waybill.model.runtime import TURN_UNITS
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicPublish
from waybill.wire.amqp091.properties import BasicProperties


@pytest.fixture
def whole_bench() -> Iterator[NodeBench]:
    bench = NodeBench(Cut.WHOLE)
    yield bench
    bench.close()


def is_paused(channel: Channel) -> bool:
    wire = channel.peer.wire
    assert isinstance(wire, EngineWire)
    return wire.output.is_reading_paused


def outrun(bench: NodeBench) -> tuple[Channel, Channel]:
    """A publisher, and a consumer that holds one message while the others wait."""
    publisher, consumer = bench.channel(), bench.channel()
    publisher.declare("q")
    consumer.qos(1)
    consumer.consume()
    for _ in range(OUTRUN + 1):
        publisher.publish(b"1")
    assert not is_paused(publisher)
    publisher.publish(b"1")
    return publisher, consumer


def test_reading_pauses_for_a_moment_after_each_read(whole_bench: NodeBench) -> None:
    publisher, consumer = outrun(whole_bench)
    for _ in range(3):
        assert is_paused(publisher)
        assert not is_paused(consumer)
        whole_bench.advance(PACE_S * 1.01)
        assert not is_paused(publisher)
        publisher.publish(b"1")


def test_others_on_the_node_are_not_slowed(whole_bench: NodeBench) -> None:
    publisher, _ = outrun(whole_bench)
    other = whole_bench.channel()
    other.declare("other")
    other.publish(b"1", "other")
    assert is_paused(publisher)
    assert not is_paused(other)


def test_a_queue_that_nobody_consumes_fills_at_full_speed(whole_bench: NodeBench) -> None:
    publisher = whole_bench.channel()
    publisher.declare("q")
    for _ in range(OUTRUN + 10):
        publisher.publish(b"1")
    assert not is_paused(publisher)


def test_it_ends_when_the_consumer_has_caught_up(whole_bench: NodeBench) -> None:
    publisher, consumer = outrun(whole_bench)
    whole_bench.advance(PACE_S * 1.01)
    for _ in range(10):
        consumer.ack(consumer.delivery().tag)
    publisher.publish(b"1")
    assert not is_paused(publisher)


def test_a_throttled_publisher_that_is_blocked_stays_blocked(whole_bench: NodeBench) -> None:
    publisher, consumer = outrun(whole_bench)
    publisher.declare("large")
    while not whole_bench.node.alarm:
        consumer.publish(bytes(1 << 20), "large")
    whole_bench.advance(PACE_S * 2)
    assert is_paused(publisher)


QUEUES = 100
MESSAGES = TURN_UNITS // QUEUES * 2


def fan_out(bench: NodeBench) -> Channel:
    """A publisher one of whose reads makes more copies than there is room for in a turn; some of it is left over."""
    publisher = bench.channel()
    publisher.exchange("x", "fanout")
    for number in range(QUEUES):
        publisher.declare(f"q{number}")
        publisher.bind("x", f"q{number}")
    message = method_frame(1, BasicPublish("x", "")) + content_frames(1, BasicProperties(), b"1", 4096)
    wire = publisher.peer.wire
    assert isinstance(wire, EngineWire)
    wire.engine.receive_data(message * MESSAGES, bench.now)
    return publisher


def depth(bench: NodeBench, queue: str) -> int:
    return bench.node.virtual_hosts["/"].queues[queue].message_count


def test_a_read_that_fans_out_widely_leaves_others_their_turn(whole_bench: NodeBench) -> None:
    publisher = fan_out(whole_bench)
    assert is_paused(publisher)
    assert 0 < depth(whole_bench, "q0") < MESSAGES
    whole_bench.settle()
    assert not is_paused(publisher)
    assert depth(whole_bench, "q99") == MESSAGES
    publisher.publish(b"2", exchange="x")
    assert publisher.depth("q0") == MESSAGES + 1


def test_what_was_put_off_waits_for_the_end_of_an_alarm(whole_bench: NodeBench) -> None:
    publisher = fan_out(whole_bench)
    before = depth(whole_bench, "q0")
    runtime = whole_bench.node.runtime
    runtime.memory_bytes += 10 * runtime.memory_limit_bytes
    whole_bench.settle()
    whole_bench.advance(1.0)
    assert is_paused(publisher)
    assert depth(whole_bench, "q0") == before
    runtime.memory_bytes -= 10 * runtime.memory_limit_bytes
    whole_bench.settle()
    assert not is_paused(publisher)
    assert depth(whole_bench, "q0") == MESSAGES


def test_what_was_put_off_goes_with_a_connection_that_is_lost(whole_bench: NodeBench) -> None:
    publisher = fan_out(whole_bench)
    publisher.peer.wire.cut()
    whole_bench.advance(1.0)
    assert depth(whole_bench, "q0") < MESSAGES
