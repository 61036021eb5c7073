"""Peers that are slow, that stop reading, or that never wait: each costs bounded memory, and only itself."""

from collections.abc import Iterator

import pytest

from tests.engine.amqp091.peer import MEMORY_LIMIT_BYTES, Channel, Cut, EngineWire, NodeBench
from tests.engine.disk_bench import DiskBench
from waybill.engine.server_connection import UNREAD_LIMIT, ServerConnection
from waybill.wire.amqp091.methods_basic import BasicGet, BasicGetOk
from waybill.wire.amqp091.methods_connection import ConnectionBlocked
from waybill.wire.amqp091.methods_tx import TxSelect, TxSelectOk
from waybill.wire.amqp091.properties import BasicProperties

KILOBYTE = bytes(1024)
MEGABYTE = bytes(1 << 20)


@pytest.fixture
def whole_bench() -> Iterator[NodeBench]:
    bench = NodeBench(Cut.WHOLE)
    yield bench
    bench.close()


def wire_of(channel: Channel) -> EngineWire:
    wire = channel.peer.wire
    assert isinstance(wire, EngineWire)
    return wire


def stall(channel: Channel) -> None:
    """The peer reads nothing any more, so that the transport's buffer is full."""
    wire_of(channel).engine.pause_writing()


def go_on(bench: NodeBench, channel: Channel) -> None:
    """The peer reads again."""
    wire_of(channel).engine.resume_writing(bench.now)
    bench.settle()


def unread(channel: Channel) -> int:
    return len(wire_of(channel).output.data)


# --- a reader that stalls ---


@pytest.mark.parametrize("no_ack", [True, False])
def test_a_stalled_consumer_is_given_no_more(whole_bench: NodeBench, no_ack: bool) -> None:
    consumer, publisher = whole_bench.channel(), whole_bench.channel()
    consumer.declare("q")
    consumer.consume(no_ack=no_ack)
    stall(consumer)
    for _ in range(40):
        publisher.publish(MEGABYTE)
    assert unread(consumer) == 0
    assert publisher.depth() == 40
    go_on(whole_bench, consumer)
    # What is handed out between two writes is bounded as well, then reading makes room for more.
    assert len(consumer.bodies(40)) == 40


def test_output_of_one_moment_is_bounded(whole_bench: NodeBench) -> None:
    publisher = whole_bench.channel()
    publisher.declare("q")
    for _ in range(40):
        publisher.publish(MEGABYTE)
    consumer = whole_bench.channel()
    consumer.consume(no_ack=True)
    largest = 0
    while len(consumer.replies) < 40:
        size = unread(consumer)
        assert size, "the consumer is stuck"
        largest = max(largest, size)
        consumer.peer.receive(0.0)
        whole_bench.settle()
    assert largest <= 41 << 20


def test_others_get_what_a_stalled_consumer_does_not_take(whole_bench: NodeBench) -> None:
    stalled, consumer, publisher = (whole_bench.channel() for _ in range(3))
    publisher.declare("q")
    stalled.consume()
    consumer.consume(no_ack=True)
    stall(stalled)
    for number in range(100):
        publisher.publish(str(number))
    assert consumer.bodies(100) == [b"%d" % number for number in range(100)]


def test_a_stalled_stream_reader_reads_nothing_from_the_disk() -> None:
    bench = DiskBench()
    channel = bench.channel()
    channel.declare("s", {"x-queue-type": "stream"}, durable=True)
    reader = bench.channel()
    reader.qos(65_535)
    reader.consume("s", arguments={"x-stream-offset": "first"})
    stall(reader)
    channel.select_confirms()
    for _ in range(2000):
        channel.publish(KILOBYTE, "s")
    channel.await_confirms()
    assert unread(reader) == 0
    go_on(bench, reader)
    assert len(reader.bodies(2000)) == 2000


@pytest.mark.parametrize("what", ["return", "get"])
def test_one_who_asks_and_never_reads_is_not_read_either(whole_bench: NodeBench, what: str) -> None:
    channel, other = whole_bench.channel(), whole_bench.channel()
    other.declare("q")
    stall(channel)
    asked = 0
    while not wire_of(channel).output.is_reading_paused:
        if what == "get":
            other.publish(MEGABYTE)
            channel.send(BasicGet("q", no_ack=True))
        else:
            channel.publish(MEGABYTE, "nowhere", mandatory=True)
        asked += 1
        assert unread(channel) <= UNREAD_LIMIT + (2 << 20)
    assert asked > 10
    assert not wire_of(other).output.is_reading_paused
    go_on(whole_bench, channel)
    assert not wire_of(channel).output.is_reading_paused
    channel.peer.receive(0.0)
    assert len(channel.replies) == asked


# --- a consumer that is slow ---


def test_a_consumer_holds_what_its_prefetch_count_allows() -> None:
    bench = DiskBench()
    publisher, consumer = bench.channel(), bench.channel()
    publisher.declare("q", durable=True)
    consumer.qos(10)
    consumer.consume()
    for _ in range(3000):
        publisher.publish(KILOBYTE, properties=BasicProperties(delivery_mode=2))
    assert len(consumer.deliveries(10)) == 10
    assert bench.memory_bytes < 2 << 20


def test_a_consumer_without_a_prefetch_count_is_bounded_too(whole_bench: NodeBench) -> None:
    whole_bench.node.limits.unsettled_per_channel_max = 500
    publisher, consumer = whole_bench.channel(), whole_bench.channel()
    publisher.declare("q")
    consumer.consume()
    for _ in range(1000):
        publisher.publish(b"1")
    taken = consumer.deliveries(500)
    consumer.ack(taken[99].tag, multiple=True)
    assert len(consumer.deliveries(100)) == 100
    assert publisher.depth() == 400


def test_a_consumer_without_a_prefetch_count_must_settle_when_memory_is_short() -> None:
    """A long backlog does not come to memory for one who takes all and settles nothing; publishers go on."""
    bench = DiskBench(memory_limit_bytes=1 << 20)
    publisher, slow = bench.channel(), bench.channel()
    publisher.declare("q", durable=True)
    for _ in range(5000):
        publisher.publish(KILOBYTE, properties=BasicProperties(delivery_mode=2))
    slow.consume()
    while slow.peer.receive(0.0):
        bench.settle()
    taken = [slow.delivery() for _ in range(len(slow.replies))]
    assert 1000 <= len(taken) < 4500
    assert bench.memory_bytes < 3 << 20
    assert not wire_of(publisher).output.is_reading_paused
    quick = bench.channel()
    quick.qos(10)
    quick.consume()
    assert len(quick.deliveries(10)) == 10
    total = len(taken)
    while taken:
        slow.ack(taken[-1].tag, multiple=True)
        slow.peer.receive(0.0)
        taken = [slow.delivery() for _ in range(len(slow.replies))]
        total += len(taken)
    assert total == 4990


def test_a_slow_consumer_costs_others_nothing(whole_bench: NodeBench) -> None:
    """Each message for others is looked at once, however many wait for the slow one: no work grows with its backlog."""
    publisher, slow, quick = (whole_bench.channel() for _ in range(3))
    publisher.declare("slow")
    publisher.declare("quick")
    slow.qos(1)
    slow.consume("slow")
    quick.consume("quick", no_ack=True)
    for _ in range(1000):
        publisher.publish(b"1", "slow")
    queue = whole_bench.node.virtual_hosts["/"].queues["slow"]
    ready, drained = int(queue.ready_count), []
    for _ in range(100):
        publisher.publish(b"1", "quick")
        drained.append(queue.is_dirty)
    assert len(quick.bodies(100)) == 100
    assert int(queue.ready_count) == ready
    assert not any(drained)


# --- a publisher that never waits ---


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_a_backlog_is_on_the_disk(delivery_mode: int) -> None:
    bench = DiskBench()
    publisher = bench.channel()
    publisher.declare("q", durable=True)
    most = 0
    for _ in range(10_000):
        publisher.publish(KILOBYTE, properties=BasicProperties(delivery_mode=delivery_mode))
        most = max(most, bench.memory_bytes)
    assert publisher.depth() == 10_000
    assert most < 2 << 20


def test_without_a_disk_it_must_wait_and_others_need_not(whole_bench: NodeBench) -> None:
    publisher, other = whole_bench.channel(), whole_bench.channel()
    publisher.declare("q")
    written = 0
    while not wire_of(publisher).output.is_reading_paused:
        publisher.publish(MEGABYTE)
        written += 1
        assert written < 100
    publisher.peer.connection.expect(ConnectionBlocked)
    assert other.depth() == written
    assert other.take().body == MEGABYTE


def test_a_transaction_without_end_is_refused(whole_bench: NodeBench) -> None:
    publisher = whole_bench.channel()
    publisher.declare("q")
    publisher.call(TxSelect(), TxSelectOk)
    for _ in range(MEMORY_LIMIT_BYTES >> 20):
        publisher.publish(MEGABYTE)
    assert "unfinished messages" in publisher.expect_refused(406).reply_text
    publisher.reopen()
    assert publisher.depth() == 0
    assert whole_bench.node.runtime.memory_bytes == 0


def test_one_read_cannot_ask_for_everything(whole_bench: NodeBench) -> None:
    publisher, asker = whole_bench.channel(), whole_bench.channel()
    publisher.declare("q")
    for _ in range(60):
        publisher.publish(bytes(2 << 20))
    asker.send(*[BasicGet("q", no_ack=True)] * 20)
    # Each turn sends a few.
    assert len([asker.expect(BasicGetOk) for _ in range(20)]) == 20
    engine = wire_of(asker).engine
    assert isinstance(engine, ServerConnection)
    # The output waits for the disk.
    engine._is_held = True
    asker.send(*[BasicGet("q", no_ack=False)] * 40)
    engine._is_held = False
    whole_bench.node.mark_dirty(engine)
    whole_bench.settle()
    assert "too many messages" in asker.peer.expect_refused(506)
    assert publisher.depth() == 40
