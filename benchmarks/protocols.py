"""CPU that the broker's engine takes for a message, by protocol: no socket, no disk, no client.

    python -m benchmarks.protocols [messages [rounds]]      print the figures of the package that Python finds
    python -m benchmarks.protocols --page                   write those of the built package and of the plain source

Each protocol publishes messages of 1 KiB, and the broker answers for each (0-9-1: confirms; 0-10: completions; 1.0:
outcomes). Then a consumer takes them, and settles each by itself (0-9-1: acknowledges; 0-10 and 1.0: accepts). The
octets of a client are made before the time is taken, and come in reads of 60 messages. Each figure is the least of all
rounds. A ratio is the median of the ratios of each round: the protocols take turns, so that what else runs on the
machine concerns them alike. With `ids`
each message has an id of its own; else they differ in nothing.
"""

import datetime as dt
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import process_time
from typing import Final

from benchmarks.page import write_part
from benchmarks.report import machine
from waybill.cli.garbage_collection import collect_rarely
from waybill.engine.negotiation import Negotiation
from waybill.engine.server_engine import ServerEngine
from waybill.node.node import Node, NodeOptions
from waybill.storage.memory import MemoryStore
from waybill.wire.amqp010 import class_connection, class_message, class_queue, class_session
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.frames import PROTOCOL_HEADER as HEADER_010
from waybill.wire.amqp010.message_header import encode_header
from waybill.wire.amqp091 import methods_basic, methods_channel, methods_confirm, methods_connection, methods_queue
from waybill.wire.amqp091.frames import PROTOCOL_HEADER, content_frames, method_frame
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp10 import performatives
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.frames import AMQP_HEADER, frame
from waybill.wire.amqp10.message import Header
from waybill.wire.amqp10.messaging import Accepted, Source, Target
from waybill.wire.amqp10.sections import encode_data
from waybill.wire.amqp10.types import Uuid

BODY: Final = bytes(1024)
RUN: Final = 60
"""Messages in one read."""
MESSAGES: Final = 3000
ROUNDS: Final = 60
PAGE: Final = Path("docs/benchmarks/broker.md")
HEADINGS: Final = ["messages", "publish us", "messages/s", "ratio", "consume us", "messages/s", "ratio"]
RULE: Final = ["---", *["---:"] * 6]
EXPLANATION: Final = """\
CPU of the engine for a message of 1 KiB, without sockets, disk and clients; the rates of a whole broker are above.
`publish` includes the answer (0-9-1: confirms; 0-10: completions; 1.0: outcomes), `consume` the delivery and an
acknowledgement of each message. Ratios are to 0-9-1 with the same messages, the median of all rounds; the other
figures are the minimum of all rounds. The goal for 0-10 is 1.3, compiled. With ids, each message has its own id;
otherwise all messages are identical. Only publishing with ids is above 1.3: 0-10 checks each header that differs from
the last one.
"""

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
            self.node.end_commit(commit)
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


def reads_of(one: list[bytes], count: int) -> list[bytes]:
    """The octets of messages, in reads; of one message again and again if it is the only one."""
    if len(one) == 1:
        return [one[0] * RUN] * (count // RUN)
    return [b"".join(one[start : start + RUN]) for start in range(0, count, RUN)]


def bench_091(count: int, *, durable: bool, ids: bool = False) -> Figures:
    """Confirms, a prefetch count of one read, and basic.ack for each message."""
    bench = Bench(
        [
            PROTOCOL_HEADER,
            method_frame(0, methods_connection.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest")),
            method_frame(0, methods_connection.ConnectionTuneOk(100, 131_072, 0)),
            method_frame(0, methods_connection.ConnectionOpen("/")),
            method_frame(1, methods_channel.ChannelOpen()),
            method_frame(1, methods_queue.QueueDeclare("q", durable=True)),
            method_frame(1, methods_confirm.ConfirmSelect()),
        ]
    )
    publish = method_frame(1, methods_basic.BasicPublish("", "q"))
    messages = []
    for number in range(count if ids else 1):
        properties = BasicProperties(delivery_mode=2 if durable else 1, message_id=f"{number:016}" if ids else None)
        messages.append(publish + content_frames(1, properties, BODY, 131_072))
    consume = method_frame(1, methods_basic.BasicQos(prefetch_count=RUN)) + method_frame(
        1, methods_basic.BasicConsume("q")
    )
    acks = [method_frame(1, methods_basic.BasicAck(tag, multiple=False)) for tag in range(1, count + 1)]
    return bench.measure(reads_of(messages, count), [consume, *reads_of(acks, count)], count)


def bench_010(count: int, *, durable: bool, ids: bool = False, one_accept: bool = False) -> Figures:
    """Credit for one read as a window, message.accept for each message, session.completed for each read.

    `one_accept`: one message.accept for all messages of a read, as clients send it that wait for more.
    """
    bench = Bench(
        [
            HEADER_010,
            encode_control(0, class_connection.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")),
            encode_control(0, class_connection.ConnectionTuneOk(100, 65_535, 0)),
            encode_control(0, class_connection.ConnectionOpen("/")),
            encode_control(1, class_session.SessionAttach(b"bench"))
            + encode_control(1, class_session.SessionCommandPoint(0, 0)),
            encode_command(1, class_queue.QueueDeclare("q", durable=True)),
        ]
    )
    delivery = class_message.DeliveryProperties(routing_key="q", delivery_mode=2 if durable else None)
    transfer = class_message.MessageTransfer("", 1, 0)
    messages = []
    for number in range(count if ids else 1):
        message_id = Uuid(number.to_bytes(16, "big")) if ids else None
        header = encode_header(
            delivery, class_message.MessageProperties(content_length=len(BODY), message_id=message_id)
        )
        messages.append(encode_command(1, transfer, header=header, body=BODY))
    subscribe = (
        encode_command(1, class_message.MessageSubscribe("q", "d"))
        + encode_command(1, class_message.MessageSetFlowMode("d", 1))
        + encode_command(1, class_message.MessageFlow("d", 1, 0xFFFFFFFF))
        + encode_command(1, class_message.MessageFlow("d", 0, RUN))
    )
    reads = [subscribe]
    for first in range(0, count, RUN):
        last = first + RUN - 1
        ranges = [(first, last)] if one_accept else [(number, number) for number in range(first, last + 1)]
        accepts = [encode_command(1, class_message.MessageAccept((each,))) for each in ranges]
        reads.append(b"".join(accepts) + encode_control(1, class_session.SessionCompleted(((first, last),))))
    return bench.measure(reads_of(messages, count), reads, count)


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
    attach = performatives.Attach("out", 1, role=True, source=source, target=Target())
    reads = [frame(0, attach.encode()) + _flow_10(count, 0)]
    accepted = Accepted()
    for first in range(0, count, RUN):
        numbers = range(first, first + RUN)
        dispositions = [
            performatives.Disposition(role=True, first=number, settled=True, state=accepted) for number in numbers
        ]
        reads.append(b"".join(frame(0, one.encode()) for one in dispositions) + _flow_10(count, first + RUN))
    return bench.measure(reads_of(transfers, count), reads, count)


def _flow_10(sent: int, received: int) -> bytes:
    """Credit for one read more."""
    flow = performatives.Flow(
        next_incoming_id=received, incoming_window=2048, next_outgoing_id=sent, outgoing_window=2048, handle=1,
        delivery_count=received, link_credit=RUN,
    )  # fmt: skip
    return frame(0, flow.encode())


@dataclass
class Row:
    """One protocol in one way of use; ratios are to `base`. The figures are microseconds for a message."""

    name: str
    run: Callable[[int], Figures]
    base: "Row | None" = None
    figures: list[Figures] = field(default_factory=list)

    def measure(self, count: int) -> None:
        """One round."""
        published, consumed = self.run(count)
        self.figures.append((published / count * 1e6, consumed / count * 1e6))

    def cells(self) -> list[str]:
        """The row of the table."""
        base = self.base or self
        found = [self.name]
        for index in (0, 1):
            least = min(one[index] for one in self.figures)
            pairs = zip(self.figures, base.figures, strict=True)
            ratio = statistics.median(own[index] / other[index] for own, other in pairs)
            found += [f"{least:.2f}", f"{1e6 / least:,.0f}", f"{ratio:.2f}"]
        return found


def rows() -> list[Row]:
    """All protocols, each kind of message with its baseline first."""
    found = []
    for kind, durable in (("durable", True), ("transient", False)):
        base = Row(f"0-9-1, {kind}", partial(bench_091, durable=durable))
        found += [
            base,
            Row(f"0-10, {kind}", partial(bench_010, durable=durable), base),
            Row(f"0-10, {kind}, accepts of a read in one", partial(bench_010, durable=durable, one_accept=True), base),
            Row(f"1.0, {kind}", partial(bench_10, durable=durable), base),
        ]
    base = Row("0-9-1, durable, ids", partial(bench_091, durable=True, ids=True))
    return [*found, base, Row("0-10, durable, ids", partial(bench_010, durable=True, ids=True), base)]


def table(count: int, rounds: int) -> str:
    """Measure everything."""
    found = rows()
    for _ in range(rounds):
        for row in found:
            row.measure(count)
    lines = [HEADINGS, *(row.cells() for row in found)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], RULE, *lines[1:]])


def write_page() -> None:
    """Measure both builds, each in a process of its own, and write the page."""
    program = "python -m benchmarks.protocols"
    lines = [
        "## Protocols",
        "",
        f"Written by `{program} --page` on {dt.datetime.now(dt.UTC):%Y-%m-%d}.",
        "",
        EXPLANATION,
        *(f"- {line}" for line in machine()[:2]),
    ]
    for name, path in (("compiled", "build/installed"), ("interpreted", "src")):
        printed = subprocess.run(
            [sys.executable, "-m", "benchmarks.protocols"],
            env={**os.environ, "PYTHONPATH": path},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        lines += ["", f"Waybill {name}:", "", printed.strip()]
    write_part(PAGE, "protocols", "\n".join(lines))


def main() -> None:
    """Print the table, or write the page."""
    arguments = sys.argv[1:]
    if arguments == ["--page"]:
        write_page()
        return
    count = (int(arguments[0]) if arguments else MESSAGES) // RUN * RUN
    rounds = int(arguments[1]) if len(arguments) > 1 else ROUNDS
    collect_rarely()
    print(table(count, rounds))


if __name__ == "__main__":
    main()
