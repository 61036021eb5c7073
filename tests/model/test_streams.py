"""Streams: messages that stay, read from any place by any number of consumers."""

from datetime import UTC, datetime

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Bench, Channel, NodeBench
from waybill.wire.amqp091.methods_basic import BasicAck, BasicConsume, BasicGet, BasicNack, BasicReject
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDelete, QueueDeleteOk
from waybill.wire.amqp091.methods_tx import TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties

STREAM: dict[str, object] = {"x-queue-type": "stream"}


@pytest.fixture
def stream(bench: Bench, channel: Channel) -> Channel:
    """A channel that confirms, a stream `s` with ten messages, and room for 100 deliveries."""
    channel.declare("s", STREAM, durable=True)
    channel.select_confirms()
    append(bench, 0, 10)
    channel.qos(100)
    return channel


def append(bench: Bench, first: int, count: int) -> None:
    """Publish from another connection, so that confirms and deliveries do not mix."""
    channel = bench.channel()
    channel.select_confirms()
    for number in range(first, first + count):
        channel.publish(str(number), "s")
    channel.await_confirms()


def read(channel: Channel, start: object, count: int) -> list[tuple[int, object]]:
    """What a new consumer gets: bodies as numbers, and offsets."""
    arguments = {} if start is None else {"x-stream-offset": start}
    channel.consume("s", arguments=arguments)
    taken = channel.deliveries(count)
    return [(int(delivery.body), delivery.headers["x-stream-offset"]) for delivery in taken]


def numbers(*values: int) -> list[tuple[int, object]]:
    return [(value, value) for value in values]


def test_reading_from_the_first(stream: Channel) -> None:
    assert read(stream, "first", 10) == numbers(*range(10))


def test_reading_from_an_offset(stream: Channel) -> None:
    assert read(stream, 7, 3) == numbers(7, 8, 9)


def test_reading_from_the_last(bench: Bench, stream: Channel) -> None:
    if bench.is_rabbitmq:
        pytest.skip("RabbitMQ begins with the last chunk, however many messages it has")
    assert read(stream, "last", 1) == numbers(9)


@pytest.mark.parametrize("start", ["next", None])
def test_reading_what_is_still_to_come(bench: Bench, stream: Channel, start: str | None) -> None:
    assert read(stream, start, 0) == []
    append(bench, 10, 2)
    assert stream.bodies(2) == [b"10", b"11"]


def test_reading_from_a_time(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.declare("s", STREAM, durable=True)
    append(node_bench, 0, 3)
    node_bench.advance(60.0)
    append(node_bench, 3, 3)
    channel.qos(100)
    start = datetime.fromtimestamp(node_bench.now - 30, UTC)
    assert read(channel, start, 3) == numbers(3, 4, 5)
    assert read(channel, "30s", 3) == numbers(3, 4, 5)
    assert read(channel, "1h", 6) == numbers(*range(6))


def test_reading_beyond_the_end_waits_for_what_comes(bench: Bench, stream: Channel) -> None:
    if bench.is_rabbitmq:
        pytest.skip("RabbitMQ waits for the offset itself")
    assert read(stream, 500, 0) == []
    append(bench, 10, 1)
    assert stream.bodies(1) == [b"10"]


@pytest.mark.ours
@pytest.mark.parametrize("start", ["middle", "7", "5x", True])
def test_an_impossible_start_is_refused(stream: Channel, start: object) -> None:
    stream.refuses(BasicConsume("s", arguments={"x-stream-offset": start}), 406)


def test_reading_removes_nothing(bench: Bench, stream: Channel) -> None:
    assert read(stream, "first", 10) == numbers(*range(10))
    stream.ack(10, multiple=True)
    other = bench.channel()
    other.qos(100)
    assert read(other, "first", 10) == numbers(*range(10))


@pytest.mark.ours
def test_readers_are_independent(bench: Bench, stream: Channel) -> None:
    slow, quick = bench.channel(), bench.channel()
    slow.qos(2)
    quick.qos(100)
    assert read(slow, "first", 2) == numbers(0, 1)
    assert read(quick, 5, 5) == numbers(5, 6, 7, 8, 9)
    slow.ack(1)
    assert [delivery.body for delivery in slow.deliveries(1)] == [b"2"]


@pytest.mark.ours
def test_acknowledgements_are_credit(stream: Channel) -> None:
    stream.qos(3)
    stream.consume("s", arguments={"x-stream-offset": "first"})
    seen: list[int] = []
    while len(seen) < 9:
        taken = stream.deliveries(3)
        seen += [int(delivery.body) for delivery in taken]
        stream.ack(taken[-1].tag, multiple=True)
    assert seen == list(range(9))


def test_a_stream_needs_a_prefetch(channel: Channel) -> None:
    channel.declare("s", STREAM, durable=True)
    channel.refuses(BasicConsume("s"), 406)


def test_a_stream_needs_acknowledgements(stream: Channel, bystander: Channel) -> None:
    stream.send(BasicConsume("s", no_ack=True))
    stream.peer.expect_refused(540)


def test_a_stream_cannot_be_polled(stream: Channel, bystander: Channel) -> None:
    stream.send(BasicGet("s"))
    stream.peer.expect_refused(540)


@pytest.mark.ours  # 3.10 takes them as acknowledgements
@pytest.mark.parametrize(
    "method", [BasicNack(1), BasicNack(1, requeue=False), BasicNack(2, multiple=True), BasicReject(1)], ids=str
)
def test_a_stream_takes_nothing_back(stream: Channel, bystander: Channel, method: BasicNack | BasicReject) -> None:
    read(stream, "first", 10)
    stream.send(method)
    stream.peer.expect_refused(540)


@pytest.mark.ours  # 3.10 takes them as acknowledgements
@pytest.mark.parametrize("selects", [False, True], ids=["", "in a transaction"])
def test_a_refused_settlement_keeps_what_other_queues_have_lent(
    bench: Bench, stream: Channel, *, selects: bool
) -> None:
    channel = bench.channel()
    channel.declare("q", durable=True)
    channel.publish(b"lent", "q", properties=BasicProperties(delivery_mode=2))
    channel.qos(100)
    if selects:
        channel.call(TxSelect(), TxSelectOk)
    assert channel.get(queue="q", no_ack=False)
    read(channel, "first", 10)
    channel.send(BasicNack(0, multiple=True))
    channel.peer.expect_refused(540)
    # Everything goes on: what was lent is back, and what is published is stored.
    other = bench.channel()
    assert other.take_all("q") == [b"lent"]
    append(bench, 10, 1)


def test_unacknowledged_deliveries_are_forgotten_with_their_reader(bench: Bench, stream: Channel) -> None:
    other = bench.channel()
    other.qos(100)
    read(other, "first", 10)
    other.peer.wire.cut()
    bench.advance(0.05)
    assert read(stream, 8, 2) == numbers(8, 9)
    stream.ack(1)
    stream.sync()


@pytest.mark.ours
@pytest.mark.parametrize("properties", [BasicProperties(), BasicProperties(headers={"mine": 1, "table": {"a": "b"}})])
def test_properties_and_headers_stay(stream: Channel, properties: BasicProperties) -> None:
    stream.publish(b"body", "s", properties=properties)
    stream.await_confirms()
    stream.consume("s", arguments={"x-stream-offset": 10})
    delivery = stream.deliveries(1)[0]
    assert delivery.headers == {**(properties.headers or {}), "x-stream-offset": 10}
    assert delivery.body == b"body"


def test_every_other_property_stays_beside_the_offset(stream: Channel) -> None:
    properties = BasicProperties(
        content_type="a/b", content_encoding="c", message_id="id", type="t", timestamp=5, correlation_id="x", app_id="y"
    )
    stream.publish(b"body", "s", properties=properties)
    stream.await_confirms()
    stream.consume("s", arguments={"x-stream-offset": 10})
    got = stream.deliveries(1)[0].properties
    for name in ("content_type", "content_encoding", "message_id", "type", "timestamp", "correlation_id", "app_id"):
        assert getattr(got, name) == getattr(properties, name)


def test_large_messages_are_cut_to_the_reader_s_frames(bench: Bench, stream: Channel) -> None:
    body = bytes(range(256)) * 40
    stream.publish(body, "s")
    stream.await_confirms()
    narrow = bench.connect(frame_max=4096)
    reader = narrow.open_channel(1)
    reader.qos(10)
    reader.consume("s", arguments={"x-stream-offset": 10})
    assert reader.deliveries(1)[0].body == body
    assert max(narrow.frame_sizes) <= 4096


@requirement("OJS-071")
@pytest.mark.parametrize(
    ("kind", "argument"),
    [
        ("stream", {"x-max-priority": 5}),
        ("stream", {"x-message-ttl": 5}),
        ("stream", {"x-expires": 500}),
        ("stream", {"x-max-length": 500}),
        ("stream", {"x-dead-letter-exchange": "x"}),
        ("stream", {"x-single-active-consumer": True}),
        ("stream", {"x-overflow": "reject-publish"}),
        ("quorum", {"x-max-priority": 5}),
        ("quorum", {"x-max-age": "7D"}),
        ("classic", {"x-max-age": "7D"}),
        ("classic", {"x-delivery-limit": 3}),
    ],
    ids=str,
)
def test_arguments_of_other_queue_types_are_refused(channel: Channel, kind: str, argument: dict[str, object]) -> None:
    channel.refuses(QueueDeclare("s", durable=True, arguments={"x-queue-type": kind, **argument}), 406)


@pytest.mark.ours
@pytest.mark.parametrize("age", ["9" * 17 + "Y", "9" * 5000 + "D", "000000000000000000007D", f"{1 << 62}s"])
def test_intervals_of_any_length(stream: Channel, bench: Bench, age: str) -> None:
    assert len(read(stream, age, 10)) == 10
    arguments: dict[str, object] = {**STREAM, "x-max-age": age}
    other = bench.channel()
    other.declare("t", arguments, durable=True)
    other.publish(b"1", "t")
    other.publish(b"2", "t")


@pytest.mark.ours
def test_streams_know_their_own_arguments(channel: Channel) -> None:
    arguments: dict[str, object] = {
        **STREAM,
        "x-max-length-bytes": 1_000_000,
        "x-max-age": "7D",
        "x-stream-max-segment-size-bytes": 500_000,
    }
    channel.declare("s", arguments, durable=True)
    channel.declare("s", arguments, durable=True)
    channel.refuses(QueueDeclare("t", durable=True, arguments={**STREAM, "x-max-age": "soon"}), 406)


def test_a_stream_that_is_too_large_forgets_its_oldest(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    arguments = {**STREAM, "x-max-length-bytes": 2000, "x-stream-max-segment-size-bytes": 500}
    channel.declare("s", arguments, durable=True)
    channel.select_confirms()
    for number in range(100):
        channel.publish(str(number) * 40, "s")
        node_bench.advance(2.0)
    channel.await_confirms()
    channel.qos(100)
    channel.consume("s", arguments={"x-stream-offset": "first"})
    depth = channel.depth("s")
    assert 0 < depth < 50
    offsets = [delivery.headers["x-stream-offset"] for delivery in channel.deliveries(depth)]
    assert offsets == list(range(100 - depth, 100))


def test_a_stream_forgets_what_is_too_old(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    arguments = {**STREAM, "x-max-age": "1h", "x-stream-max-segment-size-bytes": 100}
    channel.declare("s", arguments, durable=True)
    append(node_bench, 0, 10)
    node_bench.advance(3 * 3600.0)
    append(node_bench, 10, 10)
    channel.qos(100)
    channel.consume("s", arguments={"x-stream-offset": "first"})
    assert channel.next().method.NAME == "basic.deliver"
    assert channel.depth("s") < 15


def test_deleting_a_stream(stream: Channel) -> None:
    stream.consume("s", arguments={"x-stream-offset": "first"})
    stream.deliveries(10)
    stream.send(QueueDelete("s"))
    replies = [stream.next().method.NAME, stream.next().method.NAME]
    assert sorted(replies) == ["basic.cancel", QueueDeleteOk.NAME]
    stream.refuses(QueueDeclare("s", passive=True), 404)


def test_readers_see_only_what_is_durable(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.declare("s", STREAM, durable=True)
    channel.qos(10)
    channel.consume("s", arguments={"x-stream-offset": "first"})
    node_bench.is_stuck = True
    channel.publish(b"1", "s")
    channel.expect_nothing()
    node_bench.is_stuck = False
    node_bench.settle()
    assert channel.bodies(1) == [b"1"]


def test_a_stream_confirms_every_message_by_the_disk(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.declare("s", STREAM, durable=True)
    channel.exchange("x", "headers")
    channel.bind("x", "s", arguments={"a": 1})
    channel.select_confirms()
    node_bench.is_stuck = True
    channel.publish(b"1", "s")
    channel.publish(b"2", "", "x", headers={"a": 1})
    channel.expect_nothing()
    node_bench.is_stuck = False
    node_bench.settle()
    channel.await_confirms()


def test_a_stream_that_is_bound_gets_copies(stream: Channel) -> None:
    stream.declare("q")
    stream.exchange("x", "fanout")
    stream.bind("x", "s")
    stream.bind("x", "q")
    stream.publish(b"10", "", "x")
    stream.await_confirms()
    assert stream.take("q").headers == {}
    assert read(stream, 10, 1) == numbers(10)


def test_acks_of_another_channel_are_unknown(stream: Channel) -> None:
    stream.refuses(BasicAck(1), 406)
