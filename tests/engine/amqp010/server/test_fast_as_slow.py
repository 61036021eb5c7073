"""A session recognises transfers that repeat themselves, and answers them as the first of their kind, however odd.

Each case is sent by a session that has sent nothing yet, as the third and as the thousandth transfer after well-formed
ones that look alike, and three times in a row; whole, octet by octet, and in random cuts. The answers, and what a
consumer gets of it, must be the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import pytest

from tests.engine.amqp010.peer import Peer, Session
from tests.engine.amqp091.peer import Cut, NodeBench
from tests.wire.amqp010.frame_parser import Assembled
from waybill.wire.amqp010.class_connection import ConnectionClose
from waybill.wire.amqp010.class_exchange import ExchangeDeclare
from waybill.wire.amqp010.class_message import (
    DeliveryProperties,
    MessageAccept,
    MessageCancel,
    MessageProperties,
    MessageReject,
    MessageTransfer,
    ReplyTo,
)
from waybill.wire.amqp010.class_queue import QueueDeclare
from waybill.wire.amqp010.class_session import SessionCommandPoint
from waybill.wire.amqp010.class_tx import TxSelect
from waybill.wire.amqp010.codec import command_payload
from waybill.wire.amqp010.frames import BODY, COMMAND, CONTROL, HEADER
from waybill.wire.amqp010.message_header import encode_header
from waybill.wire.amqp010.struct import Struct
from waybill.wire.amqp10.types import Uuid

FIRST: Final = 0x0B
MIDDLE: Final = 0x03
LAST: Final = 0x07
WHOLE: Final = 0x0F
CHANNEL: Final = 1
MESSAGE_SIZE_MAX: Final = 100_000


def head(**fields: object) -> bytes:
    """A header segment that routes to the queue, with more fields of delivery-properties."""
    return encode_header(DeliveryProperties(**{"routing_key": "q", **fields}))  # type: ignore[arg-type]


def transfer(exchange: str = "", accept_mode: int | None = 1, acquire_mode: int | None = 0) -> bytes:
    # None: the field is not there.
    return command_payload(MessageTransfer(exchange, accept_mode, acquire_mode))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """The segments of a transfer; or frames in place of them: flags, type, channels to add, payload."""

    payload: bytes = transfer()
    header: bytes | None = head(delivery_mode=2)
    body: bytes | None = b"body"
    frames: tuple[tuple[int, int, int, bytes], ...] = ()
    reserved: int = 0

    def octets(self) -> bytes:
        frames = self.frames or self._whole()
        return b"".join(self._frame(*one) for one in frames)

    def _whole(self) -> tuple[tuple[int, int, int, bytes], ...]:
        found = [(FIRST if self.header is not None or self.body is not None else WHOLE, COMMAND, 0, self.payload)]
        if self.header is not None:
            found.append((MIDDLE if self.body is not None else LAST, HEADER, 0, self.header))
        if self.body is not None:
            found.append((LAST, BODY, 0, self.body))
        return tuple(found)

    def _frame(self, flags: int, kind: int, channels: int, payload: bytes) -> bytes:
        track = 0 if kind == CONTROL else 1
        size = len(payload) + 12
        octets = [flags, kind, size >> 8 & 0xFF, size & 0xFF, 0, track, 0, CHANNEL + channels]
        return bytes(octets) + self.reserved.to_bytes(4, "big") + payload


# --- cases ---


def payload_cases() -> Iterator[Case]:
    for accept_mode in (None, 0, 1, 2):
        for acquire_mode in (None, 0, 1):
            yield Case(transfer("", accept_mode, acquire_mode))
    yield Case(transfer("no such exchange"))
    yield Case(transfer("amq.direct"))
    yield Case(transfer("headers"))
    yield Case(transfer("internal\x00"))
    normal = transfer()
    for place in range(len(normal)):
        yield Case(normal[:place] + bytes([normal[place] ^ 0x01]) + normal[place + 1 :])
        yield Case(normal[:place] + b"\xff" + normal[place + 1 :])
        yield Case(normal[:place])
    yield Case(normal + b"\x00")


def header_cases() -> Iterator[Case]:
    fields: list[dict[str, object]] = [
        {"priority": 0}, {"priority": 9}, {"priority": 255}, {"delivery_mode": 0}, {"delivery_mode": 1},
        {"delivery_mode": 9}, {"ttl": 0}, {"ttl": 1}, {"ttl": 60_000}, {"ttl": 2**64 - 1}, {"timestamp": 1},
        {"expiration": 0}, {"expiration": 1}, {"expiration": 2**33}, {"immediate": True}, {"redelivered": True},
        {"discard_unroutable": True}, {"exchange": "other"}, {"routing_key": "nobody"}, {"routing_key": ""},
        {"routing_key": "nobody", "discard_unroutable": True}, {"resume_id": "id"}, {"resume_ttl": 5},
    ]  # fmt: skip
    for one in fields:
        yield Case(header=head(**one))
        yield Case(transfer(accept_mode=0), header=head(**one))
    properties: list[Struct] = [
        MessageProperties(content_length=4), MessageProperties(content_length=99), MessageProperties(user_id=b"guest"),
        MessageProperties(user_id=b"somebody"), MessageProperties(user_id=b""),
        MessageProperties(message_id=Uuid(bytes(16)), correlation_id=b"c", reply_to=ReplyTo("e", "k")),
        MessageProperties(application_headers={"a": 1, "x": "y"}), MessageProperties(),
    ]  # fmt: skip
    for struct in properties:
        yield Case(header=head() + encode_header(struct))
        yield Case(header=head(delivery_mode=2) + encode_header(struct))
        yield Case(header=encode_header(struct) + head())
        yield Case(transfer("headers"), header=head() + encode_header(struct))
    whole = head(delivery_mode=2) + encode_header(properties[5], properties[6])
    for end in range(1, len(whole), 3):
        yield Case(header=whole[:end])
    for place in range(0, len(whole), 3):
        yield Case(header=whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
    yield Case(header=head() + head())
    for twice in (head(), head(delivery_mode=2), b"\x00\x00\x00\x04\x04\x01\xff\xff", b"\x00\x00\x00\x02\x04\x01"):
        yield Case(header=head(delivery_mode=2) + encode_header(properties[0]) + twice)
    yield Case(header=head() + encode_header(properties[0], properties[0]))
    yield Case(header=head() + b"\x00\x00\x00\x04\x77\x77\x01\x02")
    yield Case(header=b"")
    yield Case(header=None)


def segment_cases() -> Iterator[Case]:
    plain = Case()
    for octets in (None, b"", b"x", b"another body", bytes(5000), b"x" * 60_000):
        yield replace(plain, body=octets)
    assert plain.header is not None
    command = (FIRST, COMMAND, 0, plain.payload)
    header = (MIDDLE, HEADER, 0, plain.header)
    body = (LAST, BODY, 0, b"body")
    cut = ((0x06, BODY, 0, b"bo"), (0x04, BODY, 0, b""), (0x05, BODY, 0, b"dy"))
    yield Case(frames=(command, header, *cut))
    yield Case(frames=(command, header, *cut, *cut))
    yield Case(frames=(command, (0x02, HEADER, 0, plain.header[:5]), (0x01, HEADER, 0, plain.header[5:]), body))
    yield Case(frames=((0x0A, COMMAND, 0, plain.payload[:5]), (0x09, COMMAND, 0, plain.payload[5:]), header, body))
    yield Case(frames=(command, header, (WHOLE, CONTROL, 0, b"\x02\x0c\x00\x00"), body))
    for flags in range(16):
        yield Case(frames=((flags, COMMAND, 0, plain.payload), header, body))
        yield Case(frames=(command, (flags, HEADER, 0, plain.header), body))
        yield Case(frames=(command, header, (flags, BODY, 0, b"body")))
    for kind in range(5):
        yield Case(frames=(command, (MIDDLE, kind, 0, plain.header), body))
        yield Case(frames=(command, header, (LAST, kind, 0, b"body")))
    yield Case(frames=(command, header, (LAST, BODY, 1, b"body")))
    yield Case(frames=(command, (MIDDLE, HEADER, 1, plain.header), body))
    yield Case(frames=(command, body))
    yield Case(frames=(command, header))
    yield Case(frames=(command, header, header, body))
    yield Case(frames=(command, command, header, body))
    yield Case(reserved=7)
    yield Case(frames=(command, header, *[(0x06 if not at else 0x04, BODY, 0, bytes(50_000)) for at in range(3)]))


CASES: Final = list(dict.fromkeys([*payload_cases(), *header_cases(), *segment_cases()]))


class Reader(Session):
    """A session that keeps the segments of transfers as they come."""

    def _take_transfer(self, number: int, command: MessageTransfer, one: Assembled) -> None:
        del number, command
        self.raw.append((one.payload, one.header, one.body))

    raw: list[tuple[bytes, bytes | None, bytes | None]]


class Bench:
    """A node, a queue, and a connection that is opened anew."""

    def __init__(self, cut: Cut) -> None:
        self.node = NodeBench(cut, 7)
        self.node.node.limits.message_size_max = MESSAGE_SIZE_MAX
        peer = Peer(self.node)
        peer.open()
        self.reader = Reader(peer, b"reader")
        self.reader.raw = []
        peer.resume(self.reader)
        self.reader.control(SessionCommandPoint(0, 0))
        self.reader.call(QueueDeclare("q", durable=True))
        self.reader.call(ExchangeDeclare("headers", "headers"))
        self.peer: Peer | None = None
        self.sessions = 0

    def fresh_session(self) -> Session:
        if self.peer is None or self.peer.wire.is_closed:
            self.peer = Peer(self.node)
            self.peer.open()
        self.sessions += 1
        return self.peer.session(b"s%d" % self.sessions, CHANNEL)

    def consumed(self) -> list[object]:
        """What is in the queue, as a consumer gets it."""
        reader = self.reader
        reader.subscribe("q", accept_mode=1)
        reader.call(MessageCancel("d"))
        found = list(reader.raw)
        reader.raw.clear()
        return [self.node.node.virtual_hosts["/"].queues["q"].message_count, *found]


class Sending:
    """One session, in which a case is sent after others."""

    def __init__(self, bench: Bench, warm: Case, count: int, *, transaction: bool = False) -> None:
        self.bench = bench
        self.session = bench.fresh_session()
        if transaction:
            self.session.call(TxSelect())
        self.write(warm.octets() * count, count)
        assert bench.node.node.virtual_hosts["/"].queues["q"].purge() == (0 if transaction else count)

    def write(self, octets: bytes, count: int) -> int:
        """Send so many commands. Returns the id of the last one."""
        session = self.session
        for _ in range(count):
            session.sent.add(session.next_id)
            session.next_id += 1
        session.peer.write(octets)
        return session.next_id - 1

    def outcome(self, case: Case) -> list[object]:
        """All that comes of one more transfer."""
        session = self.session
        session.commands.clear()
        number = self.write(case.octets(), 1)
        said: list[object] = [number in session.completed, session.is_attached]
        for _, command in session.commands:
            assert isinstance(command, (MessageAccept, MessageReject)), command
            which = [(first - number, last - number) for first, last in command.transfers]
            said.append((command.NAME, which, getattr(command, "code", None), getattr(command, "text", None)))
        for one in session.exceptions:
            where = None if one.command_id is None else one.command_id - number
            said.append((one.error_code, where, one.class_code, one.command_code, one.description))
        for control in session.peer.client.controls:
            assert isinstance(control, ConnectionClose), control
            said.append((control.reply_code, control.reply_text))
        return [*said, *self.bench.consumed()]

    def close(self, outcome: list[object]) -> None:
        """Leave the channel to the next session, or the connection if it is of no more use."""
        if self.goes_on(outcome):
            self.session.detach()
        else:
            self.session.peer.wire.cut()

    def goes_on(self, outcome: list[object]) -> bool:
        """Whether session and connection are of further use."""
        peer = self.session.peer
        return bool(outcome[0]) and self.session.is_attached and not peer.client.controls and not peer.wire.is_closed


def outcome_of(bench: Bench, case: Case, warm: Case, count: int) -> list[object]:
    sending = Sending(bench, warm, count)
    outcome = sending.outcome(case)
    sending.close(outcome)
    return outcome


@pytest.fixture(scope="module", params=list(Cut), ids=lambda cut: cut.value)
def bench_of_cut(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param)
    yield bench
    bench.node.close()


def some(bench: Bench) -> list[Case]:
    """All cases where octets come whole; else as many as take little time."""
    whole = bench.node.cut is Cut.WHOLE
    return CASES if whole else [case for case in CASES[::5] if len(case.octets()) < 2000]


def test_the_third_of_its_kind_is_answered_as_the_first(bench_of_cut: Bench) -> None:
    for case in some(bench_of_cut):
        cold = outcome_of(bench_of_cut, case, Case(), 0)
        assert outcome_of(bench_of_cut, case, Case(), 2) == cold, case
        if case.payload != Case().payload:
            assert outcome_of(bench_of_cut, case, Case(case.payload), 0) == cold, case


def test_a_case_is_answered_in_the_same_way_each_time(bench_of_cut: Bench) -> None:
    for case in some(bench_of_cut)[::2]:
        sending = Sending(bench_of_cut, Case(), 0)
        first = sending.outcome(case)
        outcome = first
        for _ in range(3):
            if not sending.goes_on(outcome):
                break
            outcome = sending.outcome(case)
            assert outcome == first, case
        sending.close(outcome)


def test_in_a_transaction_the_third_is_answered_as_the_first(bench_of_cut: Bench) -> None:
    for case in some(bench_of_cut)[::5]:
        outcomes = []
        for count in (0, 2):
            sending = Sending(bench_of_cut, Case(), count, transaction=True)
            outcomes.append(sending.outcome(case))
            sending.close(outcomes[-1])
        assert outcomes[0] == outcomes[1], case


def test_the_thousandth_of_its_kind_is_answered_as_the_first(bench_of_cut: Bench) -> None:
    cases = some(bench_of_cut)
    for case in cases[:: len(cases) // (1 if bench_of_cut.node.cut is Cut.BYTES else 4)]:
        cold = outcome_of(bench_of_cut, case, Case(), 0)
        assert outcome_of(bench_of_cut, case, Case(), 999) == cold, case
