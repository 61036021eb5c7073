"""A publisher that outruns the consumers of its queue is slowed down by short pauses, and never stopped."""

from collections.abc import Iterator

import pytest

from tests.engine.server.peer import Channel, Cut, EngineWire, NodeBench
from waybill.engine.amqp091.server.channel import OUTRUN
from waybill.engine.amqp091.server.throttle import THROTTLE_S


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
        whole_bench.advance(THROTTLE_S * 1.01)
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
    whole_bench.advance(THROTTLE_S * 1.01)
    for _ in range(10):
        consumer.ack(consumer.delivery().tag)
    publisher.publish(b"1")
    assert not is_paused(publisher)


def test_a_throttled_publisher_that_is_blocked_stays_blocked(whole_bench: NodeBench) -> None:
    publisher, consumer = outrun(whole_bench)
    publisher.declare("large")
    while not whole_bench.node.alarm:
        consumer.publish(bytes(1 << 20), "large")
    whole_bench.advance(THROTTLE_S * 2)
    assert is_paused(publisher)
