"""Decoding the headers of a message costs work, wherever it happens: they may be most of a message."""

from collections.abc import Iterator

import pytest

from tests.engine.amqp091.peer import Channel, Cut, NodeBench
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicConsume, BasicNack, BasicPublish
from waybill.wire.amqp091.properties import BasicProperties

HEADERS: dict[str, object] = {f"h{number}": True for number in range(3000)}
UNITS = 3000 * 6 // 32
"""The least that decoding them must cost."""


@pytest.fixture
def whole_bench() -> Iterator[NodeBench]:
    bench = NodeBench(Cut.WHOLE)
    yield bench
    bench.close()


@pytest.fixture
def publisher(whole_bench: NodeBench) -> Channel:
    return whole_bench.channel()


def spent(bench: NodeBench, channel: Channel, octets: bytes) -> int:
    """The units that one read costs, and the turn that it ends with."""
    runtime = bench.node.runtime
    runtime.begin_turn()
    before = runtime.work_left
    channel.peer.wire.engine.receive_data(octets, bench.now)  # type: ignore[attr-defined]
    bench.node.work(bench.now)
    used = before - runtime.work_left
    bench.settle()
    return int(used)


def published(key: str, **more: object) -> bytes:
    properties = BasicProperties(headers={**HEADERS, **more})
    return method_frame(1, BasicPublish("", key)) + content_frames(1, properties, b"body", 131_072)


@pytest.mark.parametrize("arguments", [{"x-dead-letter-exchange": "amq.fanout"}, {"x-alternate-exchange": "amq.match"}])
def test_rejecting(whole_bench: NodeBench, publisher: Channel, arguments: dict[str, object]) -> None:
    """Also if the dead letter has no queue to go to."""
    publisher.declare(arguments=arguments)
    publisher.peer.write(published("q"))
    taken = publisher.get(no_ack=False)
    assert taken is not None
    assert spent(whole_bench, publisher, method_frame(1, BasicNack(taken.tag, requeue=False))) > UNITS


@pytest.mark.parametrize(("name", "times"), [("CC", 1), ("BCC", 4)])
def test_copies(whole_bench: NodeBench, publisher: Channel, name: str, times: int) -> None:
    publisher.declare()
    assert spent(whole_bench, publisher, published("x", **{name: ["q"]})) > UNITS * times
    assert publisher.depth() == 1


def test_a_filter_of_a_stream(whole_bench: NodeBench, publisher: Channel) -> None:
    publisher.declare(arguments={"x-queue-type": "stream"}, durable=True)
    for _ in range(3):
        publisher.peer.write(published("q"))
    publisher.qos(10)
    consume = BasicConsume("q", arguments={"x-stream-offset": "first", "x-stream-filter": ["a"]})
    assert spent(whole_bench, publisher, method_frame(1, consume)) > UNITS


def test_a_delayed_message(whole_bench: NodeBench, publisher: Channel) -> None:
    publisher.exchange("later", "x-delayed-message", {"x-delayed-type": "fanout"})
    properties = BasicProperties(headers={**HEADERS, "x-delay": 1000})
    octets = method_frame(1, BasicPublish("later", "")) + content_frames(1, properties, b"body", 131_072)
    assert spent(whole_bench, publisher, octets) > 2 * UNITS
    runtime = whole_bench.node.runtime
    runtime.begin_turn()
    before = runtime.work_left
    whole_bench.node.handle_timeout(whole_bench.now + 2)
    assert before - runtime.work_left > 4 * UNITS


def test_equal_nested_arguments_of_bindings(whole_bench: NodeBench, publisher: Channel) -> None:
    """They are compared item by item."""
    publisher.declare()
    nested: list[object] = [2**40] * 1500
    for number in range(20):
        publisher.bind("amq.match", "q", str(number), {"x-match": "all", "a": [*nested, number]})
    properties = BasicProperties(headers={"a": [*nested, -1]})
    octets = method_frame(1, BasicPublish("amq.match", "")) + content_frames(1, properties, b"body", 131_072)
    assert spent(whole_bench, publisher, octets) > 20 * 1500 // 100
    assert publisher.depth() == 0
