"""Alarms: with little memory or disk left, publishers must wait and are told so; everybody else goes on."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import CLIENT_PROPERTIES, MEMORY_LIMIT_BYTES, Channel, Cut, EngineWire, NodeBench, Peer
from tests.engine.disk_bench import DiskBench
from waybill.wire.amqp091.frames import HEARTBEAT_FRAME
from waybill.wire.amqp091.methods_connection import (
    ConnectionBlocked,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
)
from waybill.wire.amqp091.methods_queue import QueueDelete, QueueDeleteOk
from waybill.wire.amqp091.methods_tx import TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties

MEGABYTE = bytes(1 << 20)
LIMIT_MB = MEMORY_LIMIT_BYTES >> 20
DISK_BYTES = 100 << 20


def is_paused(peer: Peer) -> bool:
    assert isinstance(peer.wire, EngineWire)
    return peer.wire.output.is_reading_paused


@pytest.fixture
def whole_bench() -> NodeBench:
    """What is tested here does not depend on how the input is cut."""
    return NodeBench(Cut.WHOLE)


def fill_memory(bench: NodeBench) -> Channel:
    """A publisher that has filled the memory, and is blocked."""
    channel = bench.channel()
    channel.declare("q")
    for _ in range(LIMIT_MB + 1):
        channel.publish(MEGABYTE)
    return channel


def test_a_publisher_is_blocked_while_memory_is_full_and_then_unblocked(whole_bench: NodeBench) -> None:
    consumer = whole_bench.channel()
    consumer.declare("q")
    publisher = fill_memory(whole_bench)
    reason = publisher.peer.connection.expect(ConnectionBlocked).reason
    assert reason.startswith("low on memory")
    assert is_paused(publisher.peer)
    assert not is_paused(consumer.peer)
    for _ in range(LIMIT_MB // 2):
        consumer.take()
    publisher.peer.connection.expect(ConnectionUnblocked)
    assert not is_paused(publisher.peer)
    consumer.expect_nothing()


def test_the_alarm_ends_with_a_margin(whole_bench: NodeBench) -> None:
    consumer = whole_bench.channel()
    consumer.declare("q")
    publisher = fill_memory(whole_bench)
    publisher.peer.connection.expect(ConnectionBlocked)
    consumer.take()
    consumer.take()
    publisher.peer.connection.expect_nothing()
    for _ in range(LIMIT_MB // 10 + 1):
        consumer.take()
    publisher.peer.connection.expect(ConnectionUnblocked)


def test_an_alarm_ends_once_there_is_nothing_left_to_consume(whole_bench: NodeBench) -> None:
    """What declarations take, and transactions of those who wait, nobody else could give back."""
    node = whole_bench.node
    consumer = whole_bench.channel()
    node._memory_alarm_bytes = int(node.runtime.footprint_bytes)
    consumer.declare("q")
    publisher = whole_bench.channel()
    publisher.declare("other")
    transactional = whole_bench.channel()
    transactional.call(TxSelect(), TxSelectOk)
    transactional.publish(bytes(int(node.runtime.footprint_bytes)))
    publisher.publish(bytes(int(node.runtime.footprint_bytes)))
    publisher.peer.connection.expect(ConnectionBlocked)
    consumer.take()
    publisher.peer.connection.expect(ConnectionUnblocked)
    assert not is_paused(transactional.peer)


def test_messages_that_consumers_hold_count(whole_bench: NodeBench) -> None:
    consumer = whole_bench.channel()
    consumer.declare("q")
    consumer.consume()
    publisher = fill_memory(whole_bench)
    assert publisher.peer.connection.expect(ConnectionBlocked)
    consumer.ack(0, multiple=True)
    publisher.peer.connection.expect(ConnectionUnblocked)


def hold_and_fill_memory(bench: NodeBench) -> Channel:
    """One connection that holds what fills the memory, and has published it."""
    channel = bench.channel()
    channel.declare("q")
    channel.consume()
    for _ in range(LIMIT_MB):
        channel.publish(MEGABYTE)
    return channel


def test_a_publisher_that_holds_what_fills_the_memory_may_settle_it(whole_bench: NodeBench) -> None:
    channel = hold_and_fill_memory(whole_bench)
    channel.peer.connection.expect(ConnectionBlocked)
    assert not is_paused(channel.peer)
    channel.deliveries(LIMIT_MB)
    channel.ack(LIMIT_MB, multiple=True)
    channel.peer.connection.expect(ConnectionUnblocked)


def test_it_is_held_back_if_it_goes_on_publishing(whole_bench: NodeBench) -> None:
    channel = hold_and_fill_memory(whole_bench)
    channel.peer.connection.expect(ConnectionBlocked)
    channel.publish(bytes(1 << 19))
    assert not is_paused(channel.peer)
    channel.publish(bytes(1 << 19))
    assert is_paused(channel.peer)
    channel.peer.connection.expect_nothing()


def test_one_who_does_not_understand_is_only_held_back(whole_bench: NodeBench) -> None:
    peer = whole_bench.plug()
    properties: dict[str, object] = {"capabilities": {"connection.blocked": False}}
    assert "connection.blocked" in CLIENT_PROPERTIES["capabilities"]  # type: ignore[operator]
    open_as(peer, properties)
    channel = peer.open_channel(1)
    channel.declare("q")
    for _ in range(LIMIT_MB + 1):
        channel.publish(MEGABYTE)
    assert is_paused(peer)
    peer.connection.expect_nothing()
    channel.expect_nothing()


def open_as(peer: Peer, properties: dict[str, object]) -> None:
    peer.start()
    peer.log_in(client_properties=properties)
    tune = peer.connection.expect(ConnectionTune)
    peer.connection.send(ConnectionTuneOk(tune.channel_max, tune.frame_max, 0))
    peer.connection.call(ConnectionOpen("/"), ConnectionOpenOk)


def test_who_begins_to_publish_during_an_alarm_is_blocked_too(whole_bench: NodeBench) -> None:
    late = whole_bench.channel()
    fill_memory(whole_bench)
    late.declare("other")
    assert not is_paused(late.peer)
    late.publish(b"1", "other")
    late.peer.connection.expect(ConnectionBlocked)
    assert is_paused(late.peer)


@requirement("OJS-101")
def test_heartbeats_go_on_while_blocked_and_silence_is_forgiven(whole_bench: NodeBench) -> None:
    """Nothing is read from a blocked peer, so its heartbeats are not seen; ours go on."""
    consumer = whole_bench.channel()
    consumer.declare("q")
    peer = whole_bench.connect(heartbeat=10)
    channel = peer.open_channel(1)
    for _ in range(LIMIT_MB + 1):
        channel.publish(MEGABYTE)
    peer.connection.expect(ConnectionBlocked)
    before = peer.heartbeat_count
    whole_bench.advance(60.0)
    peer.receive(0.0)
    assert not peer.wire.is_closed
    assert peer.heartbeat_count >= before + 11
    while consumer.get() is not None:
        pass
    peer.connection.expect(ConnectionUnblocked)
    whole_bench.advance(15.0)
    assert not peer.wire.is_closed
    peer.write(HEARTBEAT_FRAME)
    whole_bench.advance(25.0)
    assert peer.wire.is_closed


def test_a_full_disk_blocks_publishers_until_there_is_room() -> None:
    bench = DiskBench(memory_limit_bytes=1 << 30)
    bench.disk.capacity = DISK_BYTES
    channel = bench.channel()
    consumer = bench.channel()
    channel.declare("q", durable=True)
    published = 0
    while not is_paused(channel.peer):
        channel.publish(MEGABYTE, properties=BasicProperties(delivery_mode=2))
        published += 1
        bench.node.maintain(bench.now)
        bench.settle()
        assert published < 100, "the disk is full and nobody was told"
    assert channel.peer.connection.expect(ConnectionBlocked).reason.startswith("low on disk")
    assert not is_paused(consumer.peer)
    for _ in range(published):
        assert consumer.take().body == MEGABYTE
    bench.disk.capacity = 4 * DISK_BYTES
    bench.node.maintain(bench.now)
    bench.settle()
    channel.peer.connection.expect(ConnectionUnblocked)
    assert not is_paused(channel.peer)


def test_streams_without_a_disk_count_until_they_are_deleted(whole_bench: NodeBench) -> None:
    channel = whole_bench.channel()
    channel.declare("s", {"x-queue-type": "stream"}, durable=True)
    for _ in range(LIMIT_MB + 1):
        channel.publish(MEGABYTE, "s")
    channel.peer.connection.expect(ConnectionBlocked)
    other = whole_bench.channel()
    other.call(QueueDelete("s"), QueueDeleteOk)
    channel.peer.connection.expect(ConnectionUnblocked)
    assert whole_bench.node.runtime.memory_bytes == 0


def test_messages_that_are_delayed_count(whole_bench: NodeBench) -> None:
    channel = whole_bench.channel()
    channel.declare("q")
    channel.exchange("delayed", "x-delayed-message", {"x-delayed-type": "direct"})
    channel.bind("delayed", "q", "q")
    for _ in range(LIMIT_MB + 1):
        channel.publish(MEGABYTE, "q", "delayed", headers={"x-delay": 60_000})
    channel.peer.connection.expect(ConnectionBlocked)
    whole_bench.advance(61.0)
    consumer = whole_bench.channel()
    while consumer.get() is not None:
        pass
    channel.peer.connection.expect(ConnectionUnblocked)
    assert whole_bench.node.runtime.memory_bytes == 0
