"""A client of AMQP 1.0 that tests write by hand, frame by frame, on a node in virtual time.

    peer = Peer(bench)
    peer.open()
    session = peer.begin()
    sender = session.sender("/queues/q")
    sender.send(b"...")

What the node sends is kept by channel, in order; every call that expects an answer takes the next one of its kind.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tests.engine.amqp091.peer import EngineWire, NodeBench
from waybill.model.queue import Queue
from waybill.wire.amqp10.composite import Composite, decode_composite
from waybill.wire.amqp10.frames import (
    AMQP_HEADER,
    FRAME_SASL,
    PROTOCOL_HEADER_SIZE,
    SASL_HEADER,
    frame,
    parse_frame,
    sasl_frame,
)
from waybill.wire.amqp10.message import Header
from waybill.wire.amqp10.messaging import Accepted, Source, Target
from waybill.wire.amqp10.performatives import (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
)
from waybill.wire.amqp10.sections import MessageFacts, decode_annotations, decode_header, encode_data, scan_message
from waybill.wire.amqp10.transactions import Coordinator

P = TypeVar("P", bound=Composite)
MAX_FRAME_SIZE: Final = 131_072


@dataclass
class Delivery:
    """A whole delivery: the first transfer of it, and the payload of all of them."""

    transfer: Transfer
    payload: bytes

    @property
    def number(self) -> int:
        assert self.transfer.delivery_id is not None
        return self.transfer.delivery_id

    @property
    def facts(self) -> MessageFacts:
        facts = MessageFacts()
        scan_message(self.payload, 0, len(self.payload), facts)
        return facts

    @property
    def header(self) -> Header:
        facts = self.facts
        return decode_header(self.payload, facts.header, facts.header_end) if facts.header >= 0 else Header()

    @property
    def bare(self) -> bytes:
        facts = self.facts
        return self.payload[facts.bare : facts.bare_end]

    @property
    def annotations(self) -> dict[object, object]:
        facts = self.facts
        if facts.message_annotations < 0:
            return {}
        return decode_annotations(self.payload, facts.message_annotations, facts.message_annotations_end)


@dataclass
class Peer:
    """The client's end of one connection."""

    bench: NodeBench
    received: deque[tuple[int, Composite, bytes]] = field(default_factory=deque)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.wire = EngineWire(self.bench)
        self.bench.wires.append(self.wire)
        self.raw = b""
        self.expected_headers: list[bytes] = []
        self.frame_sizes: list[int] = []
        self.empty_frames = 0

    # --- opening and closing ---

    def open(self, *, container_id: str = "peer", hostname: str | None = None, **fields: Any) -> Open:
        """With ANONYMOUS, and everything in one write."""
        self.write(AMQP_HEADER + frame(0, Open(container_id, hostname, **fields).encode()))
        self.take_header(AMQP_HEADER)
        return self.expect(Open)

    def log_in(self, mechanism: str, response: bytes) -> Composite:
        """The SASL layer, up to its next frame after the init."""
        from waybill.wire.amqp10.security import SaslInit, SaslMechanisms

        self.write(SASL_HEADER)
        self.take_header(SASL_HEADER)
        mechanisms = self.expect(SaslMechanisms)
        assert mechanism in mechanisms.sasl_server_mechanisms
        self.write(sasl_frame(SaslInit(mechanism, response).encode()))
        return self.next()

    def take_header(self, header: bytes) -> None:
        self.pull()
        assert self.raw[:PROTOCOL_HEADER_SIZE] == header, self.raw
        self.raw = self.raw[PROTOCOL_HEADER_SIZE:]
        self._cut()

    def close(self) -> None:
        self.send(0, Close())
        self.expect(Close)
        assert self.wire.is_closed

    def expect_closed(self, condition: str) -> str:
        """The node closes the connection with this condition; answer."""
        close = self.expect(Close)
        assert close.error is not None
        assert close.error.condition == condition, close.error
        if not self.wire.is_closed:
            self.send(0, Close())
        assert self.wire.is_closed
        return close.error.description or ""

    # --- frames ---

    def write(self, data: bytes) -> None:
        self.wire.write(data)

    def send(self, channel: int, *performatives: Performative) -> None:
        self.write(b"".join(frame(channel, performative.encode()) for performative in performatives))

    def pull(self) -> None:
        self.raw += self.wire.read(0.0)

    def _cut(self) -> None:
        offset = 0
        while not self.raw.startswith(b"AMQP", offset):
            parsed = parse_frame(self.raw, offset, MAX_FRAME_SIZE)
            if parsed is None:
                break
            octets, end = parsed
            self.frame_sizes.append(end - offset)
            offset = end
            if not octets.body:
                self.empty_frames += 1
                continue
            value, payload = decode_composite(octets.body)
            channel = -1 if octets.type == FRAME_SASL else octets.channel
            self.received.append((channel, value, octets.body[payload:]))
        self.raw = self.raw[offset:]

    def receive(self) -> None:
        self.pull()
        self._cut()

    def next(self, channel: int | None = None) -> Composite:
        return self.next_frame(channel)[0]

    def next_frame(self, channel: int | None = None, skipped: tuple[type, ...] = ()) -> tuple[Composite, bytes]:
        """The next performative of a channel (None: of any), and its payload. Those `skipped` stay to be taken."""
        self.receive()
        for index, (number, value, payload) in enumerate(self.received):
            if (channel is None or number == channel) and not isinstance(value, skipped):
                del self.received[index]
                return value, payload
        raise AssertionError(f"nothing came on channel {channel}; there is {list(self.received)}")

    def expect(self, kind: type[P], channel: int | None = None) -> P:
        value = self.next(channel)
        assert isinstance(value, kind), value
        return value

    def expect_nothing(self) -> None:
        self.receive()
        assert not self.received, list(self.received)

    # --- sessions ---

    def begin(self, channel: int = 0, *, incoming_window: int = 2048, **fields: Any) -> "Session":
        session = Session(self, channel)
        self.send(
            channel,
            Begin(next_outgoing_id=0, incoming_window=incoming_window, outgoing_window=2048, **fields),
        )
        session.answer = self.expect(Begin, channel)
        return session


class Session:
    """One session of a peer."""

    def __init__(self, peer: Peer, channel: int) -> None:
        self.peer = peer
        self.channel = channel
        self.answer: Begin | None = None
        self.next_handle = 0
        self.next_delivery_id = 0
        self.next_incoming_id = 0
        self.next_outgoing_id = 0

    def send(self, *performatives: Performative) -> None:
        self.peer.send(self.channel, *performatives)

    def expect(self, kind: type[P]) -> P:
        """The next performative, which is of this kind. Flows and deliveries come when they like: they are left."""
        skipped = tuple(other for other in (Flow, Transfer) if not issubclass(kind, other))
        value, _ = self.peer.next_frame(self.channel, skipped)
        assert isinstance(value, kind), value
        return value

    def expect_nothing(self) -> None:
        self.peer.receive()
        others = [value for number, value, _ in self.peer.received if number == self.channel]
        assert not [value for value in others if not isinstance(value, Flow)], others

    def expect_ended(self, condition: str) -> str:
        """The node ends the session with this condition; answer."""
        end = self.expect(End)
        assert end.error is not None
        assert end.error.condition == condition, end.error
        self.send(End())
        return end.error.description or ""

    def end(self) -> None:
        self.send(End())
        self.expect(End)

    def attach(self, attach: Attach) -> Attach:
        self.send(attach)
        return self.expect(Attach)

    def expect_refused(self, attach: Attach, condition: str) -> str:
        """The link is refused: attached without its terminus, and detached for good (2.6.3)."""
        answer = self.attach(attach)
        assert answer.name == attach.name
        assert (answer.target if attach.role == ROLE_SENDER else answer.source) is None
        detach = self.expect(Detach)
        assert detach.closed
        assert detach.error is not None
        assert detach.error.condition == condition, detach.error
        self.send(Detach(attach.handle, closed=True))
        return detach.error.description or ""

    def sender_attach(
        self, address: str | None, *, name: str = "", target: Target | Coordinator | None = None, **fields: Any
    ) -> Attach:
        handle = self.next_handle
        self.next_handle += 1
        fields.setdefault("source", Source())
        return Attach(
            name or f"link-{self.channel}-{handle}",
            handle,
            ROLE_SENDER,
            target=target if target is not None else Target(address),
            initial_delivery_count=0,
            **fields,
        )

    def sender(self, address: str | None, **fields: Any) -> "Sender":
        attach = self.sender_attach(address, **fields)
        sender = Sender(self, attach)
        sender.answer = self.attach(attach)
        assert sender.answer.target is not None, self.peer.next(self.channel)
        sender.take_credit()
        return sender

    def receiver_attach(
        self, address: str | None, *, name: str = "", source: Source | None = None, **fields: Any
    ) -> Attach:
        handle = self.next_handle
        self.next_handle += 1
        fields.setdefault("target", Target())
        return Attach(
            name or f"link-{self.channel}-{handle}", handle, ROLE_RECEIVER, source=source or Source(address), **fields
        )

    def receiver(self, address: str | None, *, credit: int = 0, **fields: Any) -> "Receiver":
        attach = self.receiver_attach(address, **fields)
        receiver = Receiver(self, attach)
        receiver.answer = self.attach(attach)
        assert receiver.answer.source is not None, self.peer.next(self.channel)
        if credit:
            receiver.flow(credit)
        return receiver

    def flow(self, **fields: Any) -> None:
        fields.setdefault("next_incoming_id", self.next_incoming_id)
        fields.setdefault("incoming_window", 2048)
        fields.setdefault("next_outgoing_id", self.next_outgoing_id)
        self.send(Flow(outgoing_window=2048, **fields))


class Link:
    """One end of a link."""

    def __init__(self, session: Session, attach: Attach) -> None:
        self.session = session
        self.attach = attach
        self.handle = attach.handle
        self.answer: Attach | None = None

    def detach(self, *, closed: bool = True) -> Detach:
        self.session.send(Detach(self.handle, closed=closed))
        return self.session.expect(Detach)

    def expect_detached(self, condition: str, *, closed: bool = True) -> str:
        detach = self.session.expect(Detach)
        assert detach.closed == closed
        assert detach.error is not None
        assert detach.error.condition == condition, detach.error
        self.session.send(Detach(self.handle, closed=closed))
        return detach.error.description or ""


class Sender(Link):
    """Sends to the node."""

    def __init__(self, session: Session, attach: Attach) -> None:
        super().__init__(session, attach)
        self.credit = 0
        self.delivery_count = 0

    def take_credit(self) -> Flow:
        """The node's next flow for this link."""
        while True:
            flow = self.session.expect(Flow)
            if flow.handle == self.handle:
                assert flow.link_credit is not None
                self.credit = flow.link_credit
                return flow

    def transfer(self, payload: bytes, **fields: Any) -> int:
        """One transfer frame that begins a delivery. Returns the delivery-id."""
        number = self.session.next_delivery_id
        self.session.next_delivery_id += 1
        fields.setdefault("delivery_tag", b"tag-%d" % number)
        fields.setdefault("message_format", 0)
        transfer = Transfer(self.handle, number, **fields)
        self.session.next_outgoing_id += 1
        self.session.peer.write(frame(self.session.channel, transfer.encode(), payload))
        return number

    def more(self, payload: bytes, **fields: Any) -> None:
        """One transfer frame that goes on with a delivery."""
        self.session.next_outgoing_id += 1
        self.session.peer.write(frame(self.session.channel, Transfer(self.handle, **fields).encode(), payload))

    def send(self, message: bytes, **fields: Any) -> Disposition:
        """A whole message, and its outcome."""
        number = self.transfer(message, **fields)
        disposition = self.session.expect(Disposition)
        assert disposition.role == ROLE_RECEIVER
        assert disposition.first == number
        return disposition


class Receiver(Link):
    """Receives from the node."""

    def __init__(self, session: Session, attach: Attach) -> None:
        super().__init__(session, attach)
        self.delivery_count = 0

    def flow(self, credit: int, **fields: Any) -> None:
        fields.setdefault("delivery_count", self.delivery_count)
        self.session.flow(handle=self.handle, link_credit=credit, **fields)

    def delivery(self) -> Delivery:
        """The next delivery, all of it."""
        payload = b""
        first: Transfer | None = None
        while True:
            value, piece = self._next_transfer()
            self.session.next_incoming_id += 1
            if first is None:
                first = value
                self.delivery_count += 1
            payload += piece
            if not value.more:
                return Delivery(first, payload)

    def _next_transfer(self) -> tuple[Transfer, bytes]:
        """Of this link, in order."""
        peer = self.session.peer
        peer.receive()
        for index, (channel, value, payload) in enumerate(peer.received):
            if channel == self.session.channel and isinstance(value, Transfer) and value.handle == self.handle:
                del peer.received[index]
                return value, payload
        raise AssertionError(f"no delivery came; there is {list(peer.received)}")

    def settle(self, delivery: Delivery, state: Composite | None = None, *, settled: bool = True) -> None:
        self.session.send(
            Disposition(
                ROLE_RECEIVER,
                delivery.number,
                settled=settled,
                state=Accepted() if state is None else state,
            )
        )

    def expect_nothing(self) -> None:
        self.session.expect_nothing()


def message(body: bytes = b"body", *, header: Header | None = None) -> bytes:
    """A message with one data section."""
    return (header.encode() if header is not None else b"") + encode_data(body)


def declare(bench: NodeBench, name: str = "q", *, durable: bool = True, **arguments: object) -> Queue:
    """A queue, by way of the model."""
    virtual_host = bench.node.virtual_hosts["/"]
    renamed: dict[str, object] = {key.replace("_", "-"): value for key, value in arguments.items()}
    return virtual_host.declare_queue(
        name, durable=durable, auto_delete=False, exclusive_to=None, connection=None, arguments=renamed
    )


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.bare for delivery in deliveries]
