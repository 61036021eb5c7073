"""Streams: readers that want only some of the messages, by their header `x-stream-filter-value` (RabbitMQ 4)."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel, Cut, EngineWire, NodeBench
from waybill.model.runtime import TURN_UNITS
from waybill.wire.amqp091.frames import method_frame
from waybill.wire.amqp091.methods_basic import BasicConsume, BasicConsumeOk
from waybill.wire.amqp091.properties import BasicProperties

pytestmark = pytest.mark.ours  # RabbitMQ 3.10 has no filters

STREAM: dict[str, object] = {"x-queue-type": "stream"}


def append(channel: Channel, *values: str | None) -> None:
    """One message for each filter value, None for none."""
    for value in values:
        headers: dict[str, object] = {} if value is None else {"x-stream-filter-value": value}
        channel.publish(str(value).encode(), "s", properties=BasicProperties(headers=headers))


def read(channel: Channel, count: int, **arguments: object) -> list[tuple[bytes, object]]:
    wanted = {name.replace("_", "-"): value for name, value in arguments.items()}
    tag = channel.consume("s", arguments={"x-stream-offset": "first", **wanted})
    assert tag
    return [(delivery.body, delivery.headers["x-stream-offset"]) for delivery in channel.deliveries(count)]


@pytest.fixture
def stream(channel: Channel) -> Channel:
    channel.declare("s", STREAM, durable=True)
    append(channel, "a", "b", None, "a", "c")
    channel.qos(100)
    return channel


def test_one_value(stream: Channel) -> None:
    assert read(stream, 2, x_stream_filter="a") == [(b"a", 0), (b"a", 3)]


def test_several_values(stream: Channel) -> None:
    assert read(stream, 3, x_stream_filter=["a", "c"]) == [(b"a", 0), (b"a", 3), (b"c", 4)]


def test_messages_without_a_value(stream: Channel) -> None:
    assert read(stream, 2, x_stream_filter="b", x_stream_match_unfiltered=True) == [(b"b", 1), (b"None", 2)]


def test_what_comes_later_is_filtered_too(bench: Bench, stream: Channel) -> None:
    assert read(stream, 0, x_stream_filter="z") == []
    append(bench.channel(), "y", "z")
    assert stream.delivery().body == b"z"
    stream.expect_nothing()


def test_what_is_passed_over_costs_no_credit(bench: Bench, channel: Channel) -> None:
    channel.declare("s", STREAM, durable=True)
    append(channel, "a", "b", "b", "b", "a")
    channel.qos(1)
    channel.consume("s", arguments={"x-stream-offset": "first", "x-stream-filter": "a"})
    first = channel.delivery()
    channel.expect_nothing()
    channel.ack(first.tag)
    assert channel.delivery().headers["x-stream-offset"] == 4


@pytest.mark.parametrize(
    "arguments",
    [{"x-stream-filter": 1}, {"x-stream-filter": []}, {"x-stream-filter": ["a", 1]},
     {"x-stream-filter": "a", "x-stream-match-unfiltered": "yes"}],
    ids=str,
)  # fmt: skip
def test_an_impossible_filter_is_refused(stream: Channel, arguments: dict[str, object]) -> None:
    stream.refuses(BasicConsume("s", arguments=arguments), 406)


def test_a_filter_that_finds_little_lets_others_have_their_turn() -> None:
    bench = NodeBench(Cut.WHOLE)
    channel = bench.channel()
    channel.declare("s", STREAM, durable=True)
    append(channel, *["no"] * (2 * TURN_UNITS), "yes")
    channel.qos(10)
    wire = channel.peer.wire
    assert isinstance(wire, EngineWire)
    consume = BasicConsume("s", "c", arguments={"x-stream-offset": "first", "x-stream-filter": "yes"})
    wire.engine.receive_data(method_frame(1, consume), bench.now)
    bench.node.work(bench.now)
    assert bench.node.has_late_work
    bench.settle()
    assert isinstance(channel.next().method, BasicConsumeOk)
    assert channel.delivery().body == b"yes"
