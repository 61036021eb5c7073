"""CPU that the broker's engine takes for a message, by protocol: no socket, no disk, no client.

    python -m benchmarks.protocols [messages [rounds]]

Each protocol publishes messages of 1 KiB, and the broker answers for each (0-9-1: confirms; 0-10: completions; 1.0:
outcomes). Then a consumer takes them, and settles each by itself (0-9-1: acknowledges; 0-10 and 1.0: accepts). The
octets of a client are made before the time is taken, and come in reads of 60 messages. Each figure is the least of all
rounds, and rounds of the protocols take turns, so that what else runs on the machine concerns them alike.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import Final

from waybill.cli.garbage import collect_rarely
from waybill.engine.negotiation import Negotiation
from waybill.engine.server_engine import ServerEngine
from waybill.node.node import Node, NodeOptions
from waybill.storage.memory import MemoryStore
from waybill.wire.amqp010 import operations as ops
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.frames import PROTOCOL_HEADER as HEADER_010
from waybill.wire.amqp010.message_header import encode_header
from waybill.wire.amqp091 import methods
from waybill.wire.amqp091.frames import PROTOCOL_HEADER, content_frames, method_frame
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10 import performatives
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.frames import AMQP_HEADER, frame
from waybill.wire.amqp10.message import Header
from waybill.wire.amqp10.messaging import Accepted, Source, Target
from waybill.wire.amqp10.sections import encode_data

BODY: Final = bytes(1024)
RUN: Final = 60
"""Messages in one read."""
MESSAGES: Final = 12_000
ROUNDS: Final = 15
BASELINE: Final = "0-9-1"

Figures = tuple[float, float]
"""Seconds of CPU to publish, and to consume."""


def check(condition: object, what: str) -> None:
    """Raise RuntimeError unless the run did what is measured."""
    if not condition:
        raise RuntimeError(f"not true: {what}")


class Bench:
    """A node in memory, with one connection."""

    def __init__(self, openings: list[bytes]) -> None:
        self.store = MemoryStore()
        self.node = Node(self.store, NodeOptions("bench", "0", bytes, 1 << 30), 1.0)
        self.engine: ServerEngine = Negotiation(self.node, None, "127.0.0.1", 1.0)
        self.octets = 0
        for octets in openings:
            self.send(octets)

    def send(self, data: bytes) -> None:
        """One read, and all that follows from it."""
        self.engine.receive_data(data, 1.0)
        self.node.flush(1.0, self._serve)
        while (commit := self.store.begin_commit()) is not None:
            commit.execute()
            self.store.end_commit(commit)
            self.node.flush(1.0, self._serve)

    def _serve(self, engine: ServerEngine) -> None:
        self.octets += len(engine.data_to_send())

    def timed(self, reads: list[bytes]) -> float:
        """The CPU that these reads take."""
        began = process_time()
        for octets in reads:
            self.send(octets)
        return process_time() - began

    def measure(self, publishing: list[bytes], consuming: list[bytes], count: int) -> Figures:
        """Publish and consume `count` messages, and see that they came and went."""
        published = self.timed(publishing)
        queue = self.node.virtual_hosts["/"].queues["q"]
        check(queue.message_count == count, "all messages are in the queue")
        before = self.octets
        consumed = self.timed(consuming)
        check(queue.message_count == queue.unsettled_count == 0, "all messages are settled")
        check(self.octets - before > count * len(BODY), "all messages were sent")
        return published, consumed


def bench_091(count: int, *, durable: bool) -> Figures:
    """Confirms, a prefetch count of one read, and basic.ack for each message."""
    bench = Bench(
        [
            PROTOCOL_HEADER,
            method_frame(0, methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest")),
            method_frame(0, methods.ConnectionTuneOk(100, 131_072, 0)),
            method_frame(0, methods.ConnectionOpen("/")),
            method_frame(1, methods.ChannelOpen()),
            method_frame(1, methods.QueueDeclare("q", durable=True)),
            method_frame(1, methods.ConfirmSelect()),
        ]
    )
    properties = BasicProperties(delivery_mode=2 if durable else 1)
    one = method_frame(1, methods.BasicPublish("", "q")) + content_frames(1, properties, BODY, 131_072)
    consume = method_frame(1, methods.BasicQos(prefetch_count=RUN)) + method_frame(1, methods.BasicConsume("q"))
    acks = [method_frame(1, methods.BasicAck(tag, multiple=False)) for tag in range(1, count + 1)]
    reads = [b"".join(acks[start : start + RUN]) for start in range(0, count, RUN)]
    return bench.measure([one * RUN] * (count // RUN), [consume, *reads], count)


def bench_010(count: int, *, durable: bool, one_accept: bool = False) -> Figures:
    """Credit for one read as a window, message.accept for each message, session.completed for each read.

    `one_accept`: one message.accept for all messages of a read, as clients send it that wait for more.
    """
    bench = Bench(
        [
            HEADER_010,
            encode_control(0, ops.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")),
            encode_control(0, ops.ConnectionTuneOk(100, 65_535, 0)),
            encode_control(0, ops.ConnectionOpen("/")),
            encode_control(1, ops.SessionAttach(b"bench")) + encode_control(1, ops.SessionCommandPoint(0, 0)),
            encode_command(1, ops.QueueDeclare("q", durable=True)),
        ]
    )
    delivery = ops.DeliveryProperties(routing_key="q", delivery_mode=2 if durable else None)
    header = encode_header(delivery, ops.MessageProperties(content_length=len(BODY)))
    one = encode_command(1, ops.MessageTransfer("", 1, 0), header=header, body=BODY)
    subscribe = (
        encode_command(1, ops.MessageSubscribe("q", "d"))
        + encode_command(1, ops.MessageSetFlowMode("d", 1))
        + encode_command(1, ops.MessageFlow("d", 1, 0xFFFFFFFF))
        + encode_command(1, ops.MessageFlow("d", 0, RUN))
    )
    reads = [subscribe]
    for first in range(0, count, RUN):
        last = first + RUN - 1
        ranges = [(first, last)] if one_accept else [(number, number) for number in range(first, last + 1)]
        accepts = [encode_command(1, ops.MessageAccept((each,))) for each in ranges]
        reads.append(b"".join(accepts) + encode_control(1, ops.SessionCompleted(((first, last),))))
    return bench.measure([one * RUN] * (count // RUN), reads, count)


def bench_010_ranges(count: int, *, durable: bool) -> Figures:
    """`bench_010` with one message.accept for each read."""
    return bench_010(count, durable=durable, one_accept=True)


def bench_10(count: int, *, durable: bool) -> Figures:
    """Unsettled transfers; credit for one read, and a disposition for each message."""
    source, target = Source("/queues/q"), Target("/queues/q")
    bench = Bench(
        [
            AMQP_HEADER + frame(0, performatives.Open("bench").encode()),
            frame(0, performatives.Begin(next_outgoing_id=0, incoming_window=2048, outgoing_window=2048).encode()),
        ]
    )
    bench.node.virtual_hosts["/"].declare_queue(
        "q", durable=True, auto_delete=False, exclusive_to=None, connection=None, arguments={}
    )
    attach = performatives.Attach("in", 0, role=False, source=Source(), target=target, initial_delivery_count=0)
    bench.send(frame(0, attach.encode()))
    payload = (encode_value(Header(durable=True)) if durable else b"") + encode_data(BODY)
    transfers = [
        frame(0, performatives.Transfer(0, number, b"%08d" % number, 0, settled=False).encode(), payload)
        for number in range(count)
    ]
    publishing = [b"".join(transfers[start : start + RUN]) for start in range(0, count, RUN)]
    attach = performatives.Attach("out", 1, role=True, source=source, target=Target())
    reads = [frame(0, attach.encode()) + _flow_10(count, 0)]
    accepted = Accepted()
    for first in range(0, count, RUN):
        numbers = range(first, first + RUN)
        dispositions = [
            performatives.Disposition(role=True, first=number, settled=True, state=accepted) for number in numbers
        ]
        reads.append(b"".join(frame(0, one.encode()) for one in dispositions) + _flow_10(count, first + RUN))
    return bench.measure(publishing, reads, count)


def _flow_10(sent: int, received: int) -> bytes:
    """Credit for one read more."""
    flow = performatives.Flow(
        next_incoming_id=received, incoming_window=2048, next_outgoing_id=sent, outgoing_window=2048, handle=1,
        delivery_count=received, link_credit=RUN,
    )  # fmt: skip
    return frame(0, flow.encode())


@dataclass
class Row:
    """One protocol in one way of use. The figures are microseconds for a message."""

    protocol: str
    durable: bool
    run: Callable[..., Figures]
    publish: float = 1e9
    consume: float = 1e9

    def measure(self, count: int) -> None:
        """One round."""
        published, consumed = self.run(count, durable=self.durable)
        self.publish = min(self.publish, published / count * 1e6)
        self.consume = min(self.consume, consumed / count * 1e6)


def measured(count: int, rounds: int) -> list[Row]:
    """All protocols, the baseline first."""
    kinds = (
        (BASELINE, bench_091),
        ("0-10", bench_010),
        ("0-10, accepts of a read in one", bench_010_ranges),
        ("1.0", bench_10),
    )
    rows = [Row(protocol, durable, run) for durable in (True, False) for protocol, run in kinds]
    for _ in range(rounds):
        for row in rows:
            row.measure(count)
    return rows


def table(rows: list[Row]) -> list[str]:
    """The figures, and how many times the baseline's each is."""
    lines = [
        "| protocol | messages | publish us | msgs/s | ratio | consume us | msgs/s | ratio |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        base = next(one for one in rows if one.protocol == BASELINE and one.durable == row.durable)
        kind = "durable" if row.durable else "transient"
        publishing = f"{row.publish:.2f} | {1e6 / row.publish:,.0f} | {row.publish / base.publish:.2f}"
        consuming = f"{row.consume:.2f} | {1e6 / row.consume:,.0f} | {row.consume / base.consume:.2f}"
        lines.append(f"| {row.protocol} | {kind} | {publishing} | {consuming} |")
    return lines


def main() -> None:
    """Print the table."""
    count = (int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES) // RUN * RUN
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS
    collect_rarely()
    print("\n".join(table(measured(count, rounds))))


if __name__ == "__main__":
    main()
