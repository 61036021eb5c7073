"""A 0-9-1 client that tests write by hand, frame by frame, and the brokers that it can talk to.

    bench = NodeBench(Cut.BYTES)
    peer = bench.connect()
    channel = peer.open_channel(1)
    channel.call(QueueDeclare("q"), QueueDeclareOk)

`NodeBench` joins a `Peer` to a real node without a socket, in virtual time, and cuts what the peer writes as its `Cut`
says. `RabbitBench` puts the same peer on a socket to RabbitMQ, which is how these tests know what RabbitMQ answers.
"""

import enum
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

from waybill.engine.server_engine import ServerEngine
from waybill.node.node import Node, NodeOptions
from waybill.storage.memory import MemoryStore
from waybill.transport.pump import Engine
from waybill.wire.amqp091.frames import (
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    Frame,
    content_frames,
    method_frame,
    parse_frame,
)
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods import decode_method
from waybill.wire.amqp091.methods_basic import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicReject,
    BasicReturn,
)
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk, ChannelOpen, ChannelOpenOk
from waybill.wire.amqp091.methods_confirm import ConfirmSelect, ConfirmSelectOk
from waybill.wire.amqp091.methods_connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from waybill.wire.amqp091.methods_exchange import ExchangeDeclare, ExchangeDeclareOk, ExchangeDelete, ExchangeDeleteOk
from waybill.wire.amqp091.methods_queue import (
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from waybill.wire.amqp091.properties import BasicProperties

START_TIME: Final = 1_700_000_000.0
REPLY_TIMEOUT_S: Final = 5.0
QUIET_TIME_S: Final = 0.1
MEMORY_LIMIT_BYTES: Final = 64 << 20
TIMEOUTS_MAX: Final = 10_000

CLIENT_PROPERTIES: Final[dict[str, object]] = {
    "capabilities": {
        "authentication_failure_close": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "publisher_confirms": True,
    }
}

M = TypeVar("M", bound=Method)


class Cut(enum.Enum):
    """How a peer's octets reach the engine."""

    WHOLE = "whole"
    BYTES = "bytes"
    RANDOM = "random"


@dataclass(frozen=True)
class Delivery:
    """A message that came with a deliver, get-ok or return method."""

    method: Any
    properties: BasicProperties
    body: bytes

    @property
    def tag(self) -> int:
        tag: int = self.method.delivery_tag
        return tag

    @property
    def redelivered(self) -> bool:
        flag: bool = self.method.redelivered
        return flag

    @property
    def headers(self) -> dict[str, object]:
        return self.properties.headers or {}


class Wire:
    """The way to a broker: `write` sends, `read` takes what has arrived, waiting for at most `timeout` real seconds."""

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def read(self, timeout: float) -> bytes:
        raise NotImplementedError

    def cut(self) -> None:
        """Lose the connection without a word."""
        raise NotImplementedError

    def finish(self) -> None:
        """The connection is closed in AMQP's terms: the transport must go as well."""
        raise NotImplementedError

    @property
    def is_closed(self) -> bool:
        """Whether the broker has closed the connection."""
        raise NotImplementedError


@dataclass
class Arrival:
    """A method, and the content that is still to come with it."""

    method: Method
    properties: BasicProperties = field(default_factory=BasicProperties)
    body: bytes = b""
    missing: int = 0


class Peer:
    """The client's end of one connection. Everything it asks is answered before the call returns, or fails."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.channels: dict[int, Channel] = {}
        self.heartbeat_count = 0
        self.frame_max = 131_072
        self.frame_sizes: list[int] = []
        self.raw = b""
        self._arriving: dict[int, Arrival] = {}
        self.connection = Channel(self, 0)
        self.channels[0] = self.connection

    # --- opening and closing ---

    def start(self) -> ConnectionStart:
        self.wire.write(PROTOCOL_HEADER)
        return self.connection.expect(ConnectionStart)

    def log_in(
        self, user: str = "guest", password: str = "guest", client_properties: dict[str, object] | None = None
    ) -> None:
        """Answer connection.start; whatever comes next is left to be read."""
        response = b"\0" + user.encode() + b"\0" + password.encode()
        properties = CLIENT_PROPERTIES if client_properties is None else client_properties
        self.connection.send(ConnectionStartOk(properties, "PLAIN", response))

    def open(self, virtual_host: str = "/", *, heartbeat: int = 0, frame_max: int = 131_072) -> None:
        self.start()
        self.log_in()
        tune = self.connection.expect(ConnectionTune)
        self.frame_max = frame_max
        self.connection.send(ConnectionTuneOk(tune.channel_max, frame_max, heartbeat))
        self.connection.call(ConnectionOpen(virtual_host), ConnectionOpenOk)

    def open_channel(self, number: int = 1) -> "Channel":
        channel = Channel(self, number)
        self.channels[number] = channel
        channel.call(ChannelOpen(), ChannelOpenOk)
        return channel

    def close(self) -> None:
        self.connection.call(ConnectionClose(200, "done", 0, 0), ConnectionCloseOk)
        self.wire.cut()

    def expect_refused(self, code: int) -> str:
        """The broker closes the connection with this code; answer. Returns the text."""
        close = self.connection.expect(ConnectionClose)
        assert close.reply_code == code, close
        self.connection.send(ConnectionCloseOk())
        self.wire.finish()
        return close.reply_text

    def expect_closed(self) -> None:
        """The broker closes the transport."""
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        while not self.wire.is_closed and time.monotonic() < deadline:
            self.receive(QUIET_TIME_S)
        assert self.wire.is_closed

    # --- input ---

    def write(self, data: bytes) -> None:
        self.wire.write(data)

    def receive(self, timeout: float) -> bool:
        """Take in what the broker sent. False if nothing came within `timeout`."""
        data = self.wire.read(timeout)
        self.raw += data
        offset = 0
        while (parsed := parse_frame(self.raw, offset, 0)) is not None:
            frame, end = parsed
            self.frame_sizes.append(end - offset)
            offset = end
            self._take(frame)
        self.raw = self.raw[offset:]
        return bool(data)

    def _take(self, frame: Frame) -> None:
        if frame.type == FRAME_HEARTBEAT:
            self.heartbeat_count += 1
        elif frame.type == FRAME_METHOD:
            assert frame.channel not in self._arriving, "a method within content"
            arrival = Arrival(decode_method(frame.payload))
            if arrival.method.HAS_CONTENT:
                self._arriving[frame.channel] = arrival
            else:
                self.channels[frame.channel].replies.append(arrival)
        else:
            self._take_content(frame)

    def _take_content(self, frame: Frame) -> None:
        arrival = self._arriving[frame.channel]
        if frame.type == FRAME_HEADER:
            arrival.missing = int.from_bytes(frame.payload[4:12], "big")
            arrival.properties = BasicProperties.decode(frame.payload, 12)
        else:
            arrival.body += frame.payload
            arrival.missing -= len(frame.payload)
        assert arrival.missing >= 0
        if arrival.missing == 0:
            del self._arriving[frame.channel]
            self.channels[frame.channel].replies.append(arrival)


class Channel:
    """One channel of a peer: methods out, replies in, in order."""

    def __init__(self, peer: Peer, number: int) -> None:
        self.peer = peer
        self.number = number
        self.replies: deque[Arrival] = deque()
        self.confirmed: set[int] = set()
        self.refused: set[int] = set()
        self.published = 0

    # --- anything ---

    def send(self, *methods: Method) -> None:
        self.peer.write(b"".join(method_frame(self.number, method) for method in methods))

    def call(self, method: Method, kind: type[M]) -> M:
        """Send a method and take its answer: the next thing that the broker says here but for deliveries."""
        self.send(method)
        method_back = self.answer().method
        assert isinstance(method_back, kind), method_back
        return method_back

    def answer(self) -> Arrival:
        """The next reply that is no delivery; deliveries stay to be taken."""
        deliveries = []
        while isinstance((arrival := self.next()).method, BasicDeliver):
            deliveries.append(arrival)
        self.replies.extendleft(reversed(deliveries))
        return arrival

    def expect(self, kind: type[M]) -> M:
        method = self.next().method
        assert isinstance(method, kind), method
        return method

    def next(self) -> Arrival:
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        while not self.replies and time.monotonic() < deadline:
            if not self.peer.receive(REPLY_TIMEOUT_S):
                break
        assert self.replies, f"no answer on channel {self.number}; on the connection: {self.peer.connection.replies}"
        return self.replies.popleft()

    def sync(self) -> None:
        """Until the broker has done all that was sent here so far."""
        self.exchange("amq.direct", passive=True)

    def expect_nothing(self) -> None:
        self.peer.receive(QUIET_TIME_S)
        assert not self.replies

    def expect_refused(self, code: int) -> ChannelClose:
        """The broker closes this channel with this code; answer."""
        close = self.expect(ChannelClose)
        assert close.reply_code == code, close
        self.send(ChannelCloseOk())
        return close

    def refuses(self, method: Method, code: int) -> ChannelClose:
        """Send a method that closes the channel."""
        self.send(method)
        close = self.expect_refused(code)
        assert (close.class_id, close.method_id) == (method.CLASS_ID, method.METHOD_ID)
        return close

    def reopen(self) -> None:
        self.call(ChannelOpen(), ChannelOpenOk)

    # --- topology ---

    def declare(self, name: str = "q", arguments: dict[str, object] | None = None, **flags: bool) -> QueueDeclareOk:
        return self.call(QueueDeclare(name, arguments=arguments or {}, **flags), QueueDeclareOk)

    def depth(self, name: str = "q") -> int:
        return self.declare(name, passive=True).message_count

    def exchange(
        self, name: str, kind: str = "direct", arguments: dict[str, object] | None = None, **flags: bool
    ) -> None:
        self.call(ExchangeDeclare(name, kind, arguments=arguments or {}, **flags), ExchangeDeclareOk)

    def bind(self, exchange: str, queue: str = "q", key: str = "", arguments: dict[str, object] | None = None) -> None:
        self.call(QueueBind(queue, exchange, key, arguments=arguments or {}), QueueBindOk)

    # --- publishing ---

    def publish(
        self,
        body: bytes | str = b"",
        key: str = "q",
        exchange: str = "",
        *,
        mandatory: bool = False,
        properties: BasicProperties | None = None,
        headers: dict[str, object] | None = None,
    ) -> None:
        """One message, its frames in one write."""
        octets = body.encode() if isinstance(body, str) else body
        chosen = properties or BasicProperties(headers=headers)
        self.published += 1
        self.peer.write(
            method_frame(self.number, BasicPublish(exchange, key, mandatory=mandatory))
            + content_frames(self.number, chosen, octets, self.peer.frame_max)
        )

    def select_confirms(self) -> None:
        self.call(ConfirmSelect(), ConfirmSelectOk)
        self.published = 0

    def await_confirms(self) -> None:
        """Until every publish so far is confirmed or refused. Nothing else may arrive."""
        while len(self.confirmed) + len(self.refused) < self.published:
            method = self.next().method
            assert isinstance(method, (BasicAck, BasicNack)), method
            self.note_confirm(method)

    def note_confirm(self, method: BasicAck | BasicNack) -> None:
        settled = self.confirmed if isinstance(method, BasicAck) else self.refused
        known = self.confirmed | self.refused
        tags = range(1, method.delivery_tag + 1) if method.multiple else [method.delivery_tag]
        fresh = [tag for tag in tags if tag not in known]
        assert fresh, f"{method} confirms nothing new"
        assert method.delivery_tag <= self.published
        settled.update(fresh)

    def expect_return(self) -> Delivery:
        arrival = self.next()
        assert isinstance(arrival.method, BasicReturn), arrival.method
        return Delivery(arrival.method, arrival.properties, arrival.body)

    # --- consuming ---

    def qos(self, count: int, *, global_: bool = False) -> None:
        self.call(BasicQos(0, count, global_), BasicQosOk)

    def consume(
        self, queue: str = "q", tag: str = "", arguments: dict[str, object] | None = None, **flags: bool
    ) -> str:
        return self.call(BasicConsume(queue, tag, arguments=arguments or {}, **flags), BasicConsumeOk).consumer_tag

    def delivery(self) -> Delivery:
        arrival = self.next()
        assert isinstance(arrival.method, BasicDeliver), arrival.method
        return Delivery(arrival.method, arrival.properties, arrival.body)

    def deliveries(self, count: int) -> list[Delivery]:
        """Exactly so many deliveries."""
        taken = [self.delivery() for _ in range(count)]
        self.expect_nothing()
        return taken

    def bodies(self, count: int) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries(count)]

    def get(self, queue: str = "q", *, no_ack: bool = True) -> Delivery | None:
        self.send(BasicGet(queue, no_ack))
        arrival = self.answer()
        if isinstance(arrival.method, BasicGetEmpty):
            return None
        assert isinstance(arrival.method, BasicGetOk), arrival.method
        return Delivery(arrival.method, arrival.properties, arrival.body)

    def take(self, queue: str = "q") -> Delivery:
        """The message at the head of a queue, which must have one."""
        delivery = self.get(queue)
        assert delivery is not None, f"{queue} is empty"
        return delivery

    def take_all(self, queue: str = "q") -> list[bytes]:
        taken = []
        while (delivery := self.get(queue)) is not None:
            taken.append(delivery.body)
        return taken

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(BasicAck(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send(BasicNack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool) -> None:
        self.send(BasicReject(tag, requeue))


class Bench:
    """A broker for one test."""

    is_rabbitmq = False

    def plug(self) -> Peer:
        """A peer that has said nothing yet."""
        raise NotImplementedError

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def connect(self, virtual_host: str = "/", *, heartbeat: int = 0, frame_max: int = 131_072) -> Peer:
        peer = self.plug()
        peer.open(virtual_host, heartbeat=heartbeat, frame_max=frame_max)
        return peer

    def channel(self) -> Channel:
        """Channel 1 of a connection of its own."""
        return self.connect().open_channel(1)


class NodeBench(Bench):
    """A node with nothing but memory. `now` is its time in seconds."""

    def __init__(self, cut: Cut, seed: int = 0) -> None:
        self.cut = cut
        self.random = Random(seed)
        self.now = START_TIME
        self.store = MemoryStore()
        options = NodeOptions("bench", "0", self.random.randbytes, MEMORY_LIMIT_BYTES)
        self.node = Node(self.store, options, self.now)
        self.wires: list[EngineWire] = []
        self.is_stuck = False

    def plug(self) -> Peer:
        wire = EngineWire(self)
        self.wires.append(wire)
        return Peer(wire)

    def settle(self) -> None:
        """Let the node do all that it can do now; with `is_stuck` the disk does not answer."""
        self.flush()
        while not self.is_stuck and (commit := self.store.begin_commit()) is not None:
            commit.execute()
            self.node.end_commit(commit)
            self.flush()

    def flush(self) -> None:
        """Turn by turn, all that can be done without the disk."""
        self.node.flush(self.now, serve)

    def advance(self, seconds: float) -> None:
        target = self.now + seconds
        for _ in range(TIMEOUTS_MAX):
            timers: list[tuple[float, int, Callable[[float], None]]] = [
                (at, index, handle) for index, (at, handle) in enumerate(self._timeouts())
            ]
            if not timers or min(timers)[0] > target:
                break
            at, _, handle = min(timers)
            self.now = max(self.now, at)
            handle(self.now)
            for wire in self.wires:
                wire.output.flush()
            self.settle()
        else:
            raise AssertionError("a timeout comes again and again")
        self.now = target
        self.settle()

    def _timeouts(self) -> Iterator[tuple[float, Callable[[float], None]]]:
        at = self.node.next_timeout()
        if at is not None:
            yield at, self.node.handle_timeout
        for wire in self.wires:
            at = wire.engine.next_timeout()
            if at is not None and not wire.is_closed:
                yield at, wire.engine.handle_timeout

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self.cut is Cut.WHOLE:
            yield data
            return
        offset = 0
        while offset < len(data):
            size = 1 if self.cut is Cut.BYTES else self.random.randint(1, min(64, 1 + len(data)))
            yield data[offset : offset + size]
            offset += size

    def close(self) -> None:
        for wire in self.wires:
            wire.cut()


class EngineOutput:
    """The transport of one engine. What it writes is kept until the peer reads it."""

    def __init__(self) -> None:
        self.engine: ServerEngine | None = None
        self.data = b""

    @property
    def is_reading_paused(self) -> bool:
        assert self.engine is not None
        return self.engine.is_reading_paused

    def serve(self, engine: ServerEngine) -> None:
        self.engine = engine
        self.flush()

    def flush(self) -> None:
        if self.engine is not None:
            self.data += self.engine.data_to_send()


def serve(engine: ServerEngine) -> None:
    """Give the transport of an engine what the engine has for it."""
    output = engine.transport
    assert isinstance(output, EngineOutput)
    output.serve(engine)


class EngineWire(Wire):
    """A server engine of a `NodeBench`, fed in pieces."""

    def __init__(self, bench: NodeBench) -> None:
        self.bench = bench
        self.output = EngineOutput()
        self.output.engine = bench.node.accept(self.output, "127.0.0.1:1", bench.now)
        self._is_lost = False

    @property
    def engine(self) -> Engine:
        """What speaks the protocol, or finds out which one."""
        assert self.output.engine is not None
        return self.output.engine

    def write(self, data: bytes) -> None:
        bench = self.bench
        for piece in bench.pieces(data):
            if self.is_closed:
                return
            self.engine.receive_data(piece, bench.now)
            bench.settle()
        self._notice_close()

    def read(self, timeout: float) -> bytes:
        self._notice_close()
        data = self.output.data
        self.output.data = b""
        return data

    def cut(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self.engine.connection_lost(self.bench.now)
            self.bench.settle()

    def finish(self) -> None:
        assert self.is_closed

    @property
    def is_closed(self) -> bool:
        return self._is_lost or self.engine.closed

    def _notice_close(self) -> None:
        if self.engine.closed:
            self.output.flush()
            self.cut()


class RabbitBench(Bench):
    """RabbitMQ on a loopback port. What a test leaves behind is removed by `close`."""

    is_rabbitmq = True

    def __init__(self, port: int) -> None:
        self.port = port
        self.wires: list[SocketWire] = []

    def plug(self) -> Peer:
        wire = SocketWire(self.port)
        self.wires.append(wire)
        return Peer(wire)

    def advance(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        entities = [entity for wire in self.wires for entity in wire.declared]
        for wire in self.wires:
            wire.cut()
        for virtual_host in ("/", "/ojs"):
            channel = self.connect(virtual_host).open_channel(1)
            for kind, name in entities:
                if kind == "queue":
                    channel.call(QueueDelete(name), QueueDeleteOk)
                elif not name.startswith("amq.") and name:
                    channel.call(ExchangeDelete(name), ExchangeDeleteOk)
            channel.peer.close()
            channel.peer.wire.cut()


class SocketWire(Wire):
    """A TCP connection that remembers what was declared over it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=REPLY_TIMEOUT_S)
        self.declared: list[tuple[str, str]] = []
        self._is_closed = False

    def write(self, data: bytes) -> None:
        self._note_declarations(data)
        try:
            self.socket.sendall(data)
        except OSError:
            self._is_closed = True

    def _note_declarations(self, data: bytes) -> None:
        try:
            parsed = parse_frame(data, 0, 0)
            method = decode_method(parsed[0].payload) if parsed and parsed[0].type == FRAME_METHOD else None
        except ValueError:
            return
        if isinstance(method, QueueDeclare) and method.queue:
            self.declared.append(("queue", method.queue))
        elif isinstance(method, ExchangeDeclare):
            self.declared.append(("exchange", method.exchange))

    def read(self, timeout: float) -> bytes:
        if self._is_closed or not select.select([self.socket], [], [], timeout)[0]:
            return b""
        try:
            data = self.socket.recv(1 << 20)
        except OSError:
            data = b""
        self._is_closed = not data
        return data

    def cut(self) -> None:
        self._is_closed = True
        self.socket.close()

    def finish(self) -> None:
        # RabbitMQ leaves it to the client to hang up.
        self.cut()

    @property
    def is_closed(self) -> bool:
        return self._is_closed
