"""What is counted for all that is declared and attached, against what is allocated for it."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Final

import pytest

from tests.engine.amqp091.peer import Channel, Cut, EngineWire, NodeBench
from tests.security.siege import login, login10, methods
from tests.security.sieges import receiver, sender
from waybill.model.runtime import Runtime
from waybill.storage.memory import MemoryStore
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicConsume
from waybill.wire.amqp091.methods_channel import ChannelOpen
from waybill.wire.amqp091.methods_exchange import ExchangeDeclare, ExchangeDelete
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare, QueueDelete, QueueUnbind
from waybill.wire.amqp091.methods_tx import TxSelect, TxSelectOk
from waybill.wire.amqp10.frames import frame as amqp10_frame
from waybill.wire.amqp10.performatives import Begin

LONG: Final = "x" * 200
SOME: Final = 200
# Counted may be so much less than what is allocated, and so much more: compiled objects are half as large.
LEAST: Final = 0.7
MOST: Final = 5.0

Make = Callable[[int], Method]


def exchange(kind: str, **arguments: object) -> Make:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    return lambda n: ExchangeDeclare(f"x{n}", kind, no_wait=True, arguments=dict(given))


def bound(source: str, key: str = "", **arguments: object) -> Make:
    return lambda n: QueueBind("q", source, f"{key}{n}", no_wait=True, arguments=dict(arguments))


MADE: Final[dict[str, Make]] = {
    "queue": lambda n: QueueDeclare(f"q{n}", no_wait=True),
    "durable queue": lambda n: QueueDeclare(f"q{n}", durable=True, no_wait=True),
    "queue of a long name": lambda n: QueueDeclare(f"{LONG}{n}", no_wait=True),
    "queue with arguments": lambda n: QueueDeclare(f"q{n}", no_wait=True, arguments={f"a{m}": LONG for m in range(20)}),
    "queue with priorities": lambda n: QueueDeclare(f"q{n}", no_wait=True, arguments={"x-max-priority": 255}),
    "exclusive queue": lambda n: QueueDeclare(f"q{n}", exclusive=True, no_wait=True),
    "stream": lambda n: QueueDeclare(f"q{n}", durable=True, no_wait=True, arguments={"x-queue-type": "stream"}),
    "direct exchange": exchange("direct"),
    "topic exchange": exchange("topic"),
    "headers exchange": exchange("headers"),
    "consistent hash exchange": exchange("x-consistent-hash"),
    "delayed exchange": exchange("x-delayed-message", x_delayed_type="topic"),
    "binding": bound("amq.direct"),
    "binding of a long key": bound("amq.fanout", LONG),
    "topic binding": bound("amq.topic", "a.b.c.d."),
    "topic binding of many words": lambda n: QueueBind("q", "amq.topic", f"{n}." + "a." * 60, no_wait=True),
    "consumer": lambda n: BasicConsume("q", f"c{n}", no_wait=True),
    "consumer of a long tag": lambda n: BasicConsume("q", f"{LONG}{n}", no_wait=True),
    "headers binding": bound("amq.headers", "", name=LONG, other=1),
}


def grown(channel: Channel, make: Make, start: int) -> int:
    """Bytes that are allocated for some more of what is made."""
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        channel.send(*(make(n) for n in range(start, start + SOME)))
        channel.sync()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", MADE)
def test_what_is_counted_is_what_is_allocated(kind: str) -> None:
    node = NodeBench(Cut.WHOLE)
    channel = node.channel()
    channel.declare("q")
    runtime = node.node.runtime
    make = MADE[kind]
    channel.send(*(make(n) for n in range(10)))
    channel.sync()
    before = int(runtime.footprint_bytes)
    allocated = grown(channel, make, 10)
    counted = int(runtime.footprint_bytes) - before
    assert LEAST * allocated < counted < MOST * allocated, (counted // SOME, allocated // SOME)


def measured(node: NodeBench, work: Callable[[int], None]) -> tuple[int, int]:
    """What is counted and what is allocated for all that `work` does with numbers from 10 on."""
    for n in range(10):
        work(n)
    before = int(node.node.runtime.footprint_bytes)
    tracemalloc.start()
    try:
        gc.collect()
        start = tracemalloc.get_traced_memory()[0]
        for n in range(10, 60):
            work(n)
        gc.collect()
        return int(node.node.runtime.footprint_bytes) - before, tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()


def test_channels() -> None:
    node = NodeBench(Cut.WHOLE)
    wire = EngineWire(node)
    wire.write(login())
    counted, allocated = measured(node, lambda n: wire.write(methods(n + 2, ChannelOpen())))
    assert LEAST * allocated < counted < MOST * allocated, (counted // 50, allocated // 50)


def test_connections() -> None:
    node = NodeBench(Cut.WHOLE)
    wires: list[EngineWire] = []

    def work(n: int) -> None:
        wires.append(EngineWire(node))
        wires[-1].write(login() if n % 2 else login10(f"c{n}"))

    counted, allocated = measured(node, work)
    assert LEAST * allocated < counted < MOST * allocated, (counted // 50, allocated // 50)


def test_sessions_and_links() -> None:
    node = NodeBench(Cut.WHOLE)
    node.channel().declare("links")
    wire = EngineWire(node)
    wire.write(login10("many"))
    begin = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100).encode()
    counted, allocated = measured(node, lambda n: wire.write(amqp10_frame(n + 1, begin)))
    assert LEAST * allocated < counted < MOST * allocated, (counted // 50, allocated // 50)
    counted, allocated = measured(node, lambda n: wire.write(amqp10_frame(0, sender(f"l{n}", n, "/queues/links"))))
    assert LEAST * allocated < counted < MOST * allocated, (counted // 50, allocated // 50)
    counted, allocated = measured(node, lambda n: wire.write(amqp10_frame(1, receiver(f"l{n}", n, "/queues/links"))))
    assert LEAST * allocated < counted < MOST * allocated, (counted // 50, allocated // 50)


def test_what_is_gone_is_not_counted() -> None:
    node = NodeBench(Cut.WHOLE)
    before = node.node.runtime.footprint_bytes
    limit = node.node.runtime.memory_limit_bytes
    channel = node.channel()
    channel.declare("q", arguments={"x-max-priority": 9})
    channel.publish(b"", key="q")
    for kind in ("direct", "topic", "x-delayed-message"):
        arguments = {"x-delayed-type": "topic"} if kind == "x-delayed-message" else {}
        channel.exchange(kind, kind, arguments=dict(arguments))
        channel.bind(kind, "q", "a.b")
        channel.send(QueueBind("q", kind, "more", no_wait=True))
        channel.send(QueueUnbind("q", kind, "a.b"))
        channel.next()
    channel.consume("q", "c")
    channel.send(BasicCancel("c", no_wait=True), QueueDelete("q", no_wait=True))
    channel.send(*(ExchangeDelete(kind, no_wait=True) for kind in ("direct", "topic", "x-delayed-message")))
    channel.exchange("amq.direct", passive=True)
    channel.peer.close()
    node.settle()
    assert node.node.runtime.footprint_bytes == before
    assert node.node.runtime.memory_limit_bytes == limit


def test_declarations_and_incomplete_input_leave_memory_for_each_other() -> None:
    """With a limit of 128 MiB, both together take little more than one of them alone may."""
    mib = 1 << 20
    runtime = Runtime(MemoryStore(), 128 * mib)
    runtime.held_max_bytes = 128 * mib
    runtime.begin_turn()
    assert (runtime.declarable_bytes(), runtime.held_limit_bytes) == (144 * mib, 128 * mib)
    runtime.add_footprint(144 * mib)
    assert (runtime.held_limit_bytes, runtime.memory_limit_bytes) == (32 * mib, 56 * mib)
    runtime.add_footprint(-144 * mib)
    runtime.held_bytes = 128 * mib
    runtime.begin_turn()
    assert (runtime.declarable_bytes(), runtime.held_limit_bytes) == (48 * mib, 128 * mib)
    assert runtime.memory_limit_bytes == 64 * mib


def test_transactions_take_less_where_declarations_take_much(node_bench: NodeBench) -> None:
    runtime = node_bench.node.runtime
    channel = node_bench.channel()
    channel.call(TxSelect(), TxSelectOk)
    runtime.add_footprint(runtime.held_max_bytes * 2)
    room = runtime.held_limit_bytes
    assert room < runtime.held_max_bytes
    runtime.held_bytes = room - 1000
    channel.publish(b"x" * 2000, key="nowhere")
    channel.expect_refused(406)


def test_more_than_fits_is_refused_and_others_go_on() -> None:
    node = NodeBench(Cut.WHOLE)
    channel = node.channel()
    runtime = node.node.runtime
    runtime.footprint_limit_bytes = runtime.footprint_bytes + 1_000_000
    channel.send(*(QueueDeclare(f"q{n}", no_wait=True) for n in range(1000)))
    close = channel.expect_refused(406)
    assert "delete something first" in close.reply_text
    other = node.channel()
    other.publish(b"still served", key="q0")
    assert other.take("q0").body == b"still served"
    channel.reopen()
    for n in range(100):
        channel.send(QueueDelete(f"q{n}", no_wait=True))
    channel.declare("again")
