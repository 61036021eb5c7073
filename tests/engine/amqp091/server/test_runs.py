"""Messages alike that come and go many at a time: the broker handles them together, and nobody may notice."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from tests.engine.amqp091.peer import Bench, Channel, NodeBench
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicPublish
from waybill.wire.amqp091.methods_tx import TxCommit, TxCommitOk, TxRollback, TxRollbackOk, TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp091.reply_codes import FRAME_ERROR, PRECONDITION_FAILED

LENGTH = 300
FRAME_MAX = 4096


@dataclass(frozen=True)
class Published:
    """A message as its publisher cuts it."""

    body: bytes
    properties: BasicProperties = field(default_factory=BasicProperties)
    key: str = "q"
    exchange: str = ""
    mandatory: bool = False
    frame_max: int = 131_072

    def octets(self, channel: int) -> bytes:
        method = BasicPublish(self.exchange, self.key, mandatory=self.mandatory)
        return method_frame(channel, method) + content_frames(channel, self.properties, self.body, self.frame_max)

    def queues(self) -> list[str]:
        """Where it arrives if the exchange "both" is bound to both-1 and both-2."""
        if self.exchange:
            return ["both-1", "both-2"]
        copies = (self.properties.headers or {}).get("CC", [])
        assert isinstance(copies, list)
        return [] if self.key == "nowhere" else [self.key, *copies]


def publish(channel: Channel, messages: list[Published]) -> None:
    """All of them in one write."""
    channel.published += len(messages)
    channel.peer.write(b"".join(message.octets(channel.number) for message in messages))


def numbered(count: int, size: int = 8) -> list[Published]:
    return [Published(f"{number:0{size}}".encode()) for number in range(count)]


def bodies(messages: list[Published]) -> list[bytes]:
    return [message.body for message in messages]


@pytest.mark.parametrize("size", [1, 8, 3000])
def test_a_row_of_messages_arrives_whole_and_in_order(bench: Bench, channel: Channel, size: int) -> None:
    channel.declare("q")
    channel.select_confirms()
    messages = [Published(bytes([number % 256]) * size) for number in range(LENGTH)]
    publish(channel, messages)
    channel.await_confirms()
    assert channel.confirmed == set(range(1, LENGTH + 1))
    assert channel.depth() == LENGTH
    consumer = bench.channel()
    consumer.consume()
    assert consumer.bodies(LENGTH) == bodies(messages)


def test_messages_without_a_body_come_in_rows_too(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    publish(channel, [Published(b"")] * 50 + [Published(b"x")] + [Published(b"")] * 50)
    channel.sync()
    assert channel.take_all() == [b""] * 50 + [b"x"] + [b""] * 50


@pytest.mark.ours  # across the channels of a connection RabbitMQ keeps no order
@pytest.mark.parametrize("seed", range(8))
def test_nothing_changes_where_a_row_is_broken(bench: Bench, seed: int) -> None:
    random = Random(seed)
    peer = bench.connect()
    channels = [peer.open_channel(1), peer.open_channel(2)]
    first = channels[0]
    for queue in ("q", "r", "both-1", "both-2"):
        first.declare(queue)
    first.exchange("both", "fanout")
    first.bind("both", "both-1")
    first.bind("both", "both-2")
    kinds = [
        Published(b""),
        Published(b"", BasicProperties(delivery_mode=2)),
        Published(b"", BasicProperties(priority=3)),
        Published(b"", BasicProperties(headers={"n": 1})),
        Published(b"", BasicProperties(headers={"CC": ["r"]})),
        Published(b"", BasicProperties(expiration="60000")),
        Published(b"", BasicProperties(reply_to="somewhere", correlation_id="1")),
        Published(b"", BasicProperties(user_id="guest")),
        Published(b"", key="r"),
        Published(b"", exchange="both"),
        Published(b"", key="nowhere", mandatory=True),
        Published(b"", frame_max=12),
    ]
    expected: dict[str, list[tuple[bytes, BasicProperties]]] = {"q": [], "r": [], "both-1": [], "both-2": []}
    returned = {1: 0, 2: 0}
    octets = b""
    for row in range(60):
        kind = random.choice(kinds)
        channel = random.choice(channels)
        size = random.choice([0, 4, 4, 9])
        for number in range(random.randint(1, 6)):
            message = replace(kind, body=f"{row}.{number}...."[:size].encode())
            octets += message.octets(channel.number)
            returned[channel.number] += not message.queues()
            for queue in message.queues():
                expected[queue].append((message.body, message.properties))
    peer.write(octets)
    for channel in channels:
        for _ in range(returned[channel.number]):
            channel.expect_return()
        channel.sync()
    for queue, messages in expected.items():
        for body, properties in messages:
            delivery = first.take(queue)
            assert (delivery.body, delivery.properties) == (body, properties)
        assert first.get(queue) is None


def test_a_message_like_the_last_but_one_keeps_its_own_priority(channel: Channel) -> None:
    channel.declare("q", {"x-max-priority": 5})
    levels = [1, 1, 3, 1, 3, 3, 1, 2, 2, 3]
    messages = [Published(bytes([48 + at]), BasicProperties(priority=level)) for at, level in enumerate(levels)]
    publish(channel, messages)
    channel.sync()
    by_level = sorted(range(len(levels)), key=lambda at: -levels[at])
    assert channel.take_all() == [messages[at].body for at in by_level]


def test_a_full_queue_refuses_the_messages_of_a_row_one_by_one(channel: Channel) -> None:
    channel.declare("q", {"x-max-length": 3, "x-overflow": "reject-publish"})
    channel.select_confirms()
    publish(channel, numbered(2))
    channel.await_confirms()
    publish(channel, numbered(7))
    channel.await_confirms()
    assert (channel.confirmed, channel.refused) == ({1, 2, 3}, set(range(4, 10)))
    channel.take()
    publish(channel, numbered(2))
    channel.await_confirms()
    assert (channel.confirmed, channel.refused) == ({1, 2, 3, 10}, {*range(4, 10), 11})


def test_a_row_in_a_transaction_waits_for_its_commit(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    other = bench.channel()
    channel.call(TxSelect(), TxSelectOk)
    publish(channel, numbered(10))
    channel.sync()
    assert other.depth() == 0
    channel.call(TxRollback(), TxRollbackOk)
    publish(channel, numbered(20))
    channel.call(TxCommit(), TxCommitOk)
    assert other.take_all() == bodies(numbered(20))


def test_a_row_for_a_queue_that_is_deleted_meanwhile_goes_nowhere(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    other = bench.channel()
    publish(channel, numbered(10))
    channel.sync()
    assert other.take_all() == bodies(numbered(10))
    other.declare("q", auto_delete=False)
    other.declare("next")
    other.exchange("x", "fanout")
    other.bind("x")
    row = [Published(message.body, exchange="x") for message in numbered(10)]
    publish(channel, row)
    channel.sync()
    other.bind("x", "next")
    publish(channel, row)
    channel.sync()
    assert (other.depth(), other.depth("next")) == (20, 10)


def test_a_false_user_in_a_row_closes_the_channel_before_any_is_taken(bystander: Channel, channel: Channel) -> None:
    channel.declare("q")
    false = BasicProperties(user_id="somebody else")
    publish(channel, [Published(b"body", false)] * 5)
    channel.expect_refused(PRECONDITION_FAILED)
    channel.reopen()
    assert channel.depth() == 0


def test_a_damaged_frame_in_a_row_ends_the_connection_after_the_messages_before_it(
    bench: Bench, channel: Channel
) -> None:
    channel.declare("q")
    publish(channel, numbered(4))
    channel.sync()
    octets = b"".join(message.octets(1) for message in numbered(3))
    channel.peer.write(octets[:-1] + b"\xcd")
    channel.peer.expect_refused(FRAME_ERROR)
    assert bench.channel().take_all() == bodies(numbered(4)) + bodies(numbered(2))


def test_a_frame_beyond_frame_max_is_refused_in_a_row_of_messages_that_were_cut(bench: Bench) -> None:
    peer = bench.connect(frame_max=FRAME_MAX)
    channel = peer.open_channel()
    channel.declare("q")
    body = b"x" * (FRAME_MAX + 100)
    publish(channel, [Published(body, frame_max=FRAME_MAX)] * 4)
    channel.sync()
    peer.write(Published(body).octets(1))
    peer.expect_refused(FRAME_ERROR)
    assert bench.channel().take_all() == [body] * 4


def test_many_deliveries_at_once_keep_to_the_prefetch_window(channel: Channel) -> None:
    channel.declare("q")
    publish(channel, numbered(100))
    channel.qos(7)
    channel.consume()
    expected = bodies(numbered(100))
    last = 0
    while expected:
        arrived = channel.deliveries(min(7, len(expected)))
        assert [delivery.tag for delivery in arrived] == list(range(last + 1, last + 1 + len(arrived)))
        assert [delivery.body for delivery in arrived] == expected[: len(arrived)]
        del expected[: len(arrived)]
        last = arrived[-1].tag
        channel.ack(last, multiple=True)
    channel.expect_nothing()


def test_the_window_of_a_channel_counts_what_was_polled(channel: Channel) -> None:
    channel.declare("q")
    channel.declare("r")
    publish(channel, numbered(20))
    publish(channel, [Published(b"polled", key="r")] * 2)
    channel.qos(5, global_=True)
    channel.get("r", no_ack=False)
    channel.consume()
    assert channel.bodies(5) == bodies(numbered(5))
    channel.ack(6, multiple=True)
    assert channel.bodies(5) == bodies(numbered(10))[5:]


def test_of_many_at_once_only_the_expired_are_missing(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    brief = BasicProperties(expiration="100")
    plain = numbered(9)
    publish(channel, [*plain[:3], Published(b"brief", brief), *plain[3:6], Published(b"brief", brief), *plain[6:]])
    channel.sync()
    bench.advance(1)
    channel.consume()
    assert channel.bodies(9) == bodies(plain)


def test_each_of_many_deliveries_tells_its_own_story(bench: Bench, channel: Channel) -> None:
    channel.declare("q")
    channel.exchange("x", "fanout")
    channel.bind("x")
    large = b"y" * (3 * FRAME_MAX)
    publish(channel, [Published(b"old")] * 3)
    channel.consume(tag="first")
    assert len(channel.deliveries(3)) == 3
    channel.nack(2, multiple=True)
    assert channel.bodies(2) == [b"old"] * 2
    channel.peer.wire.cut()
    other = bench.channel()
    publish(other, [Published(b"new"), Published(b"fan", exchange="x"), Published(large), Published(b"new")])
    other.sync()
    peer = bench.connect(frame_max=FRAME_MAX)
    reader = peer.open_channel(3)
    reader.consume()
    arrived = reader.deliveries(7)
    assert [(one.body, one.redelivered, one.method.exchange) for one in arrived] == [
        *[(b"old", True, "")] * 3,
        (b"new", False, ""),
        (b"fan", False, "x"),
        (large, False, ""),
        (b"new", False, ""),
    ]
    assert max(peer.frame_sizes) <= FRAME_MAX


def test_multiple_acknowledgements_reach_every_queue_and_no_other_delivery(channel: Channel) -> None:
    channel.declare("q")
    channel.declare("r")
    channel.consume("q")
    channel.consume("r")
    for number in range(4):
        channel.publish(f"q{number}", "q")
        channel.publish(f"r{number}", "r")
    channel.publish("polled", "polled")
    channel.declare("polled")
    channel.publish("polled", "polled")
    arrived = channel.deliveries(8)
    assert channel.get("polled", no_ack=False) is not None
    channel.ack(5, multiple=True)
    channel.nack(0, multiple=True)
    assert sorted(channel.bodies(3)) == sorted(delivery.body for delivery in arrived if delivery.tag > 5)
    assert channel.depth("polled") == 1


def test_no_consumer_loses_its_turn_when_deliveries_wait_for_the_store(node_bench: NodeBench) -> None:
    publisher = node_bench.channel()
    publisher.declare("q", durable=True)
    consumers = [node_bench.channel(), node_bench.channel(), node_bench.channel()]
    for consumer in consumers:
        consumer.consume()
    persistent = BasicProperties(delivery_mode=2)
    publish(publisher, [Published(message.body, persistent) for message in numbered(LENGTH)])
    publisher.sync()
    taken = [consumer.bodies(LENGTH // 3) for consumer in consumers]
    assert [list(row) for row in zip(*taken, strict=True)] == [
        bodies(numbered(LENGTH))[start : start + 3] for start in range(0, LENGTH, 3)
    ]
