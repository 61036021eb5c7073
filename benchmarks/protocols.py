"""CPU that the broker's engine takes for a message, by protocol: no socket, no disk, no client.

    python -m benchmarks.protocols [messages]

Each protocol publishes messages of 1 KiB with confirms (0-10: completions), in reads of about 64 KiB, and then consumes
them with an acknowledgement each (0-10: acceptance). The octets are made before the time is taken.
"""

import sys
from time import process_time

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

BODY = bytes(1024)
RUN = 60
"""Messages in one read."""
ROUNDS = 5


class Bench:
    """A node in memory, with one connection."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.node = Node(self.store, NodeOptions("bench", "0", bytes, 1 << 30), 1.0)
        self.engine: ServerEngine = Negotiation(self.node, None, "127.0.0.1", 1.0)
        self.octets = 0

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


def bench_091(count: int) -> tuple[float, float]:
    bench = Bench()
    open_connection = [
        PROTOCOL_HEADER,
        method_frame(0, methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest")),
        method_frame(0, methods.ConnectionTuneOk(100, 131_072, 0)),
        method_frame(0, methods.ConnectionOpen("/")),
        method_frame(1, methods.ChannelOpen()),
        method_frame(1, methods.QueueDeclare("q", durable=True)),
        method_frame(1, methods.ConfirmSelect()),
    ]
    for octets in open_connection:
        bench.send(octets)
    one = method_frame(1, methods.BasicPublish("", "q")) + content_frames(
        1, BasicProperties(delivery_mode=2), BODY, 131_072
    )
    published = timed(bench, [one * RUN] * (count // RUN))
    prefetch = method_frame(1, methods.BasicQos(prefetch_count=RUN)) + method_frame(1, methods.BasicConsume("q"))
    acks = [method_frame(1, methods.BasicAck(tag, multiple=False)) for tag in range(1, count + 1)]
    reads = [prefetch] + [b"".join(acks[start : start + RUN]) for start in range(0, count, RUN)]
    return published, timed(bench, reads)


def bench_010(count: int) -> tuple[float, float]:
    bench = Bench()
    open_connection = [
        HEADER_010,
        encode_control(0, ops.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")),
        encode_control(0, ops.ConnectionTuneOk(100, 65_535, 0)),
        encode_control(0, ops.ConnectionOpen("/")),
        encode_control(1, ops.SessionAttach(b"bench")) + encode_control(1, ops.SessionCommandPoint(0, 0)),
        encode_command(1, ops.QueueDeclare("q", durable=True)),
    ]
    for octets in open_connection:
        bench.send(octets)
    header = encode_header(ops.DeliveryProperties(routing_key="q", delivery_mode=2), ops.MessageProperties(1024))
    one = encode_command(1, ops.MessageTransfer("", 1, 0), header=header, body=BODY)
    published = timed(bench, [one * RUN] * (count // RUN))
    subscribe = (
        encode_command(1, ops.MessageSubscribe("q", "d"))
        + encode_command(1, ops.MessageSetFlowMode("d", 1))
        + encode_command(1, ops.MessageFlow("d", 1, 0xFFFFFFFF))
        + encode_command(1, ops.MessageFlow("d", 0, RUN))
    )
    reads = [subscribe]
    for start in range(0, count, RUN):
        accepts = [encode_command(1, ops.MessageAccept(((one, one),))) for one in range(start, start + RUN)]
        reads.append(b"".join(accepts) + encode_control(1, ops.SessionCompleted(((start, start + RUN - 1),))))
    return published, timed(bench, reads)


def timed(bench: Bench, reads: list[bytes]) -> float:
    began = process_time()
    for octets in reads:
        bench.send(octets)
    return process_time() - began


def main() -> None:
    count = (int(sys.argv[1]) if len(sys.argv) > 1 else 60_000) // RUN * RUN
    figures: dict[str, list[tuple[float, float]]] = {"0-9-1": [], "0-10": []}
    for _ in range(ROUNDS):
        figures["0-9-1"].append(bench_091(count))
        figures["0-10"].append(bench_010(count))
    for name, rounds in figures.items():
        publish, consume = (min(one[index] for one in rounds) / count * 1e6 for index in (0, 1))
        print(f"{name:6} publish and confirm {publish:5.2f} us   consume and acknowledge {consume:5.2f} us")


if __name__ == "__main__":
    main()
