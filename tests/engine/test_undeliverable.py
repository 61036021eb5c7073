"""What a consumer's protocol has no form for dies, is reported, and never stands in the way of what comes behind it.

Such content cannot be published any more; it is in data directories of older versions.
"""

from collections.abc import Iterator

import pytest

from tests.engine.amqp091.peer import Channel, Cut, NodeBench
from tests.engine.amqp10.peer import Peer
from waybill.engine.amqp10.message_format import AMQP10
from waybill.model.message import NO_TTL, Address, Message
from waybill.model.operator_log import OperatorLog
from waybill.model.queue import Queue
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.message import Properties
from waybill.wire.amqp10.messaging import Source
from waybill.wire.amqp10.sections import encode_data
from waybill.wire.amqp10.types import Described, Symbol

BROKEN = [
    b"\x00\x53\x73\xc0\x02\xff\x40\x00\x53\x75\xa0\x00",
    b"\x00\x53\x72\xc1\x01\x09\x00\x53\x75\xa0\x01x",
    b"\x00\x53\x75\xa0\xff",
    b"none at all",
    b"\x00",
]
SELECTOR = {Symbol("s"): Described(Symbol("apache.org:selector-filter:string"), "a = 1 OR TRUE")}
DEAD: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


class Reports(OperatorLog):
    """Keeps what an operator is told of queue 'q'."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, detail: str, user: str = "", address: str = "") -> None:
        if event != "link detached":
            assert "queue 'q'" in detail
            self.events.append(event)


@pytest.fixture
def bench() -> Iterator[NodeBench]:
    bench = NodeBench(Cut.WHOLE)
    bench.node.runtime.operator_log = Reports()
    yield bench
    assert not bench.node.runtime.store.messages.is_in_atomic_section
    bench.close()


@pytest.fixture
def channel(bench: NodeBench) -> Channel:
    channel = bench.channel()
    channel.declare("dead")
    return channel


def events(bench: NodeBench) -> list[str]:
    reports = bench.node.runtime.operator_log
    assert isinstance(reports, Reports)
    return reports.events


def put(bench: NodeBench, content: bytes) -> Queue:
    """Have a message in the queue, as recovery would find it, and a good one behind it."""
    queue = bench.node.virtual_hosts["/"].queues["q"]
    for octets in (content, encode_data(b"behind it")):
        message = Message(AMQP10, octets, Address("", "q"), True, 4, NO_TTL, bench.now)
        queue.publish(message, 0)
    bench.settle()
    return queue


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("arguments", [{}, DEAD, {**DEAD, "x-max-length-bytes": 5000}, {"x-queue-type": "quorum"}])
@pytest.mark.parametrize("no_ack", [False, True])
def test_a_consumer_gets_what_is_behind_it(
    bench: NodeBench,
    channel: Channel,
    content: bytes,
    arguments: dict[str, object],
    no_ack: bool,
) -> None:
    channel.declare("q", arguments, durable=True)
    channel.consume("q", no_ack=no_ack)
    for _ in range(3):
        queue = put(bench, content)
        delivery = channel.delivery()
        assert delivery.body == b"behind it"
        if not no_ack:
            channel.ack(delivery.tag)
    channel.expect_nothing()
    channel.sync()
    assert (queue.message_count, queue.unsettled_count) == (0, 0)
    assert events(bench).count("message undeliverable") == 3
    # A dead letter of it cannot be written either.
    assert channel.depth("dead") == 0


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("no_ack", [False, True])
def test_polling_gets_what_is_behind_it(bench: NodeBench, channel: Channel, content: bytes, no_ack: bool) -> None:
    channel.declare("q", DEAD)
    queue = put(bench, content)
    got = channel.get("q", no_ack=no_ack)
    assert got is not None
    assert got.body == b"behind it"
    if not no_ack:
        channel.ack(got.tag)
        channel.sync()
    assert (queue.message_count, queue.unsettled_count) == (0, 0)
    assert events(bench) == ["message undeliverable", "dead letter dropped"]


@pytest.mark.parametrize("content", BROKEN)
def test_many_at_once_are_delivered_without_it(bench: NodeBench, channel: Channel, content: bytes) -> None:
    channel.declare("q")
    for _ in range(5):
        queue = put(bench, content)
    channel.qos(100)
    channel.consume("q")
    deliveries = channel.deliveries(5)
    assert [delivery.tag for delivery in deliveries] == [1, 2, 3, 4, 5]
    channel.ack(5, multiple=True)
    channel.sync()
    assert (queue.message_count, queue.unsettled_count) == (0, 0)


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("filters", [None, SELECTOR])
def test_a_link_gets_what_is_behind_it(
    bench: NodeBench, channel: Channel, content: bytes, filters: dict[str, object] | None
) -> None:
    channel.declare("q")
    put(bench, content)
    peer = Peer(bench)
    peer.open()
    receiver = peer.begin().receiver("/queues/q", credit=10, source=Source("/queues/q", filter=filters))
    while not (delivery := receiver.delivery()).payload.endswith(b"behind it"):
        # A peer of 1.0 may get what it alone can judge.
        receiver.settle(delivery)
    receiver.settle(delivery)


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("arguments", [DEAD, {"x-dead-letter-exchange": "amq.headers"}])
def test_its_rejection_and_expiry_hold_up_nobody(
    bench: NodeBench, channel: Channel, content: bytes, arguments: dict[str, object]
) -> None:
    channel.declare("q", arguments | {"x-message-ttl": 1000})
    channel.bind("amq.headers", "dead", arguments={"a": 1})
    queue = put(bench, content)
    entry = queue.take(no_ack=False)
    assert entry is not None
    queue.reject(entry)
    put(bench, content)
    bench.advance(2.0)
    assert (queue.message_count, queue.unsettled_count) == (0, 0)
    # The node still commits.
    channel.select_confirms()
    channel.publish(b"confirmed", "dead")
    channel.await_confirms()


def test_a_routing_key_that_is_longer_than_0_9_1_can_say_is_cut(bench: NodeBench, channel: Channel) -> None:
    channel.declare("q")
    channel.bind("amq.fanout", "q")
    peer = Peer(bench)
    peer.open()
    sender = peer.begin().sender("/exchanges/amq.fanout")

    for _ in range(2):
        sender.send(encode_value(Properties(subject="k" * 300)) + encode_data(b"x"))
    assert channel.take().method.routing_key == "k" * 255
    channel.consume("q")
    assert channel.delivery().method.routing_key == "k" * 255
    sender.transfer(encode_value(Properties(subject="k" * 70_000)) + encode_data(b"x"))
    sender.expect_detached("amqp:invalid-field")
