"""A little for each of many adds up: what many queues and readers keep in memory is bounded in sum."""

import gc
import tracemalloc
from typing import Final

from tests.engine.amqp091.peer import Channel, Cut, EngineWire, NodeBench, Peer
from tests.engine.disk_bench import DiskBench
from waybill.engine.amqp091.server.connection import Connection
from waybill.engine.held_memory import SPARE_OUTPUT_BYTES, UNREAD_BYTES
from waybill.wire.amqp091.methods_basic import BasicConsume
from waybill.wire.amqp091.methods_queue import QueueDeclare

LIMIT_BYTES: Final = 4 << 20
BODY: Final = b"x" * 80_000
STREAM: Final[dict[str, object]] = {"x-queue-type": "stream"}


def test_a_little_in_each_of_many_queues() -> None:
    bench = DiskBench(memory_limit_bytes=LIMIT_BYTES)
    channel = bench.channel()
    for number in range(200):
        channel.send(QueueDeclare(f"q{number}", no_wait=True))
        channel.publish(BODY, key=f"q{number}")
    channel.sync()
    bench.settle()
    assert bench.node.runtime.memory_bytes < LIMIT_BYTES * 3 // 2
    assert not bench.node.alarm
    for number in (0, 100, 199):
        assert channel.take(f"q{number}").body == BODY


def readers(channel: Channel, count: int) -> int:
    """Bytes that so many readers of a stream make the node hold, who settle nothing."""
    gc.collect()
    tracemalloc.start()
    try:
        channel.send(
            *(
                BasicConsume("s", f"r{number}", no_wait=True, arguments={"x-stream-offset": "first"})
                for number in range(count)
            )
        )
        for _ in range(count):
            channel.sync()
        channel.replies.clear()
        channel.peer.raw = b""
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_many_readers_of_a_stream() -> None:
    bench = DiskBench(memory_limit_bytes=LIMIT_BYTES)
    channel = bench.channel()
    channel.declare("s", STREAM, durable=True)
    for _ in range(100):
        channel.publish(BODY, key="s")
    channel.sync()
    bench.settle()
    channel.qos(5)
    assert readers(channel, 60) < 3 * LIMIT_BYTES
    runtime = bench.node.runtime
    channel.peer.close()
    bench.settle()
    assert runtime.memory_bytes == 0


def test_peers_that_do_not_read() -> None:
    bench = NodeBench(Cut.WHOLE)
    runtime = bench.node.runtime
    runtime.unread_limit_bytes = UNREAD_BYTES
    deaf = [bench.connect(), bench.connect()]
    for peer in deaf:
        engine_of(peer).pause_writing()
    late = bench.connect()
    channel = late.open_channel(1)
    channel.declare("q")
    channel.consume("q")
    assert engine_of(late).output_high_water == SPARE_OUTPUT_BYTES
    channel.publish(b"served", key="q")
    assert channel.delivery().body == b"served"
    engine_of(deaf[0]).resume_writing(bench.now)
    deaf[1].wire.cut()
    bench.settle()
    assert runtime.unread_bytes == 0


def engine_of(peer: Peer) -> Connection:
    wire = peer.wire
    assert isinstance(wire, EngineWire)
    assert isinstance(wire.engine, Connection)
    return wire.engine
