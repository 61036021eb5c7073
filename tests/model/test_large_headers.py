"""Decoding the headers of a message costs work, wherever it happens: they may be most of a message."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.engine.amqp010.peer import Peer as Peer010
from tests.engine.amqp010.strict import UNLIMITED
from tests.engine.amqp091.peer import Channel, Cut, NodeBench
from tests.engine.amqp10.peer import Peer, declare, message
from waybill.wire.amqp010.class_message import MessageFlow, MessageSubscribe
from waybill.wire.amqp010.constants import UNIT_MESSAGE
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicConsume, BasicNack, BasicPublish
from waybill.wire.amqp091.methods_tx import TxCommit, TxCommitOk, TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10.descriptors import MESSAGE_ANNOTATIONS
from waybill.wire.amqp10.frames import frame
from waybill.wire.amqp10.performatives import Flow, Transfer
from waybill.wire.amqp10.sections import encode_annotations, encode_application_properties
from waybill.wire.amqp10.types import Symbol

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


@pytest.mark.parametrize(("name", "times"), [("CC", 1), ("BCC", 2)])
def test_copies(whole_bench: NodeBench, publisher: Channel, name: str, times: int) -> None:
    publisher.declare()
    assert spent(whole_bench, publisher, published("x", **{name: ["q"]})) > UNITS * times
    assert publisher.depth() == 1


def test_publishing(whole_bench: NodeBench, publisher: Channel) -> None:
    """They are checked."""
    publisher.declare()
    assert spent(whole_bench, publisher, published("q")) > UNITS


def test_annotations_of_a_message_of_1_0(whole_bench: NodeBench) -> None:
    declare(whole_bench)
    peer = Peer(whole_bench)
    peer.open()
    session = peer.begin()
    session.sender("/queues/q")
    payload = encode_annotations(MESSAGE_ANNOTATIONS, {Symbol(f"x-{n}"): True for n in range(2000)}) + message()
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"1", message_format=0, settled=True)
    whole_bench.node.end_turn()
    before = whole_bench.node.runtime.work_left
    peer.wire.engine.receive_data(frame(session.channel, transfer.encode() + payload), whole_bench.now)
    assert before - whole_bench.node.runtime.work_left > 2000 * 6 // 32


def consume(bench: NodeBench, publisher: Channel, protocol: str) -> None:
    """One read that makes a consumer, with credit for all messages."""
    if protocol == "0-9-1":
        bench.node.end_turn()
        publisher.peer.wire.engine.receive_data(method_frame(1, BasicConsume("q")), bench.now)  # type: ignore[attr-defined]
    elif protocol == "1.0":
        peer = Peer(bench)
        peer.open()
        session = peer.begin()
        session.receiver("/queues/q")
        flow = Flow(next_incoming_id=0, incoming_window=9, next_outgoing_id=0, outgoing_window=9, handle=0)
        flow = replace(flow, delivery_count=0, link_credit=9)
        bench.node.end_turn()
        peer.wire.engine.receive_data(frame(session.channel, flow.encode()), bench.now)
    else:
        peer010 = Peer010(bench)
        peer010.open()
        session010 = peer010.session()
        session010.call(MessageSubscribe("q", "d", 0, 0))
        session010.flow(octets=UNLIMITED)
        session010.send(MessageFlow("d", UNIT_MESSAGE, UNLIMITED))
        bench.node.end_turn()
        peer010.wire.engine.receive_data(peer010.client.take_output(), bench.now)


@pytest.mark.parametrize("protocol", ["0-9-1", "0-10", "1.0"])
def test_conversions_in_a_run(whole_bench: NodeBench, publisher: Channel, protocol: str) -> None:
    """A run of messages ends when converting them has used up the turn."""
    queue = declare(whole_bench, durable=False)
    if protocol == "0-9-1":
        peer = Peer(whole_bench)
        peer.open()
        sender = peer.begin().sender("/queues/q")
        for _ in range(4):
            sender.send(encode_application_properties({f"h{n}": True for n in range(2000)}) + message())
    else:
        for _ in range(4):
            publisher.peer.write(published("q"))
    whole_bench.node.runtime.turn_units = 64
    consume(whole_bench, publisher, protocol)
    counts = [0]
    for _ in range(8):
        whole_bench.node.work(whole_bench.now)
        counts.append(int(queue.unsettled_count))
        whole_bench.node.end_turn()
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert counts[-1] == 4


@pytest.mark.parametrize("target", ["deduplicating", "delayed"])
def test_publishing_in_a_transaction(publisher: Channel, target: str) -> None:
    """A commit is one step."""
    publisher.declare(arguments={"x-message-deduplication": True} if target == "deduplicating" else None)
    publisher.exchange("later", "x-delayed-message", {"x-delayed-type": "fanout"})
    publisher.call(TxSelect(), TxSelectOk)
    exchange = "later" if target == "delayed" else ""
    properties = BasicProperties(headers={**HEADERS, "x-delay": 1000})
    octets = method_frame(1, BasicPublish(exchange, "q")) + content_frames(1, properties, b"", 131_072)
    publisher.peer.write(octets * (16_384 // UNITS + 1))
    publisher.expect_refused(406)


def test_rejecting_in_a_transaction(publisher: Channel) -> None:
    publisher.declare(arguments={"x-dead-letter-exchange": "amq.fanout"})
    publisher.peer.write(published("q") * 30)
    publisher.consume()
    last = publisher.deliveries(30)[-1]
    publisher.call(TxSelect(), TxSelectOk)
    publisher.refuses(BasicNack(last.tag, multiple=True, requeue=False), 406)
    publisher.reopen()
    publisher.call(TxSelect(), TxSelectOk)
    publisher.consume()
    publisher.nack(publisher.deliveries(30)[0].tag, requeue=False)
    publisher.call(TxCommit(), TxCommitOk)


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


def test_only_some_of_many_large_reads_are_taken_before_others_are_served(whole_bench: NodeBench) -> None:
    channels = [whole_bench.channel() for _ in range(40)]
    channels[0].declare()
    queue = whole_bench.node.virtual_hosts["/"].queues["q"]
    whole_bench.node.end_turn()
    for channel in channels:
        channel.peer.wire.engine.receive_data(published("q") * 4, whole_bench.now)  # type: ignore[attr-defined]
    assert 4 <= queue.ready_count < 30
    whole_bench.settle()
    assert queue.ready_count == 160
