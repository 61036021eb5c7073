"""A link recognises what repeats itself, and answers it as the first of its kind, however odd or malformed.

Each case is sent by a link that has sent nothing yet, as the third and as the thousandth transfer after well-formed
ones that look alike, and three times in a row. The errors, their scope, the outcomes, and what consumers of both
protocols, and of dead letters, get of it must be the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from tests.engine.amqp091.peer import Channel, Cut, NodeBench
from tests.engine.amqp10.peer import Peer, Session
from tests.engine.amqp10.server.test_malformed_values import BAD_VALUES, list_of, map_with, section
from waybill.model.queue import Queue
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.frames import frame
from waybill.wire.amqp10.message import Header, Properties
from waybill.wire.amqp10.messaging import Accepted, Rejected
from waybill.wire.amqp10.performatives import Close, Detach, Disposition, End, Flow
from waybill.wire.amqp10.sections import encode_annotations, encode_application_properties, encode_data
from waybill.wire.amqp10.transactions import TransactionalState
from waybill.wire.amqp10.types import Symbol, Timestamp, UByte, UInt, ULong, Uuid

TRANSFER: Final = 0x14
HEADER, DELIVERY, MESSAGE, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = range(0x70, 0x79)
LISTS: Final = (HEADER, PROPERTIES, SEQUENCE)
MAPS: Final = (DELIVERY, MESSAGE, APPLICATION, FOOTER)
BODY: Final = encode_data(b"body")
DURABLE: Final = encode_value(Header(durable=True))
URGENT: Final = encode_value(Header(durable=True, priority=9))
MESSAGE_SIZE_MAX: Final = 100_000


@dataclass(frozen=True)
class Case:
    """A message, and the fields of its transfer by their place (None: null)."""

    payload: bytes
    fields: tuple[tuple[int, bytes], ...] = ()
    fewer_fields: int = 0
    more_fields: tuple[bytes, ...] = ()


# --- messages ---

SCALARS: Final = (
    b"\x40", encode_value(True), encode_value(UInt(0)), encode_value(UInt(7)), encode_value(UInt(2**32 - 1)),
    encode_value(ULong(0)), encode_value(ULong(7)), encode_value(ULong(2**64 - 1)), encode_value(UByte(9)),
    encode_value("text"), encode_value(""), b"\xa1\x02\xff\xfe", b"\xb1\x00\x00\x00\x01x",
    encode_value(Symbol("symbol")),    encode_value(b"octets"),
    b"\xb0\x00\x00\x00\x01x", encode_value(Uuid(b"u" * 16)), encode_value(Timestamp(1)),
    b"\x45", list_of(b"\x40"), map_with(b"\x40"), b"\x00\x53\x99\x40", b"\xa1\xff", b"\x3f", b"\x80\x00", b"\xa1",
)  # fmt: skip


def compound(form: int, count: int, octets: bytes, size: int | None = None) -> bytes:
    """A list or map with sizes in one octet, as false as one likes."""
    return bytes([form, len(octets) + 1 if size is None else size, count]) + octets


def properties_cases() -> Iterator[bytes]:
    for index in range(13):
        for value in SCALARS:
            fields = b"\x40" * index + value
            yield section(PROPERTIES, compound(0xC0, index + 1, fields)) + BODY
    three = encode_value("id") + b"\x40" + encode_value("to")
    for octets in (b"", b"\x40", three):
        for count in (0, 1, 2, 3, 4, 5, 8, 9, 13, 14, 255):
            yield section(PROPERTIES, compound(0xC0, count, octets)) + BODY
        for size in (0, 1, 2, len(octets), len(octets) + 2, len(octets) + 6, 255):
            yield section(PROPERTIES, compound(0xC0, 3, octets, size)) + BODY


def sections_cases() -> Iterator[bytes]:
    for code in range(HEADER, FOOTER + 2):
        body = BODY if code < DATA else b""
        for value in (*SCALARS[::3], *BAD_VALUES[::9]):
            yield section(code, value) + body
        form = 0xC1 if code in MAPS else 0xC0
        for octets in (b"", b"\x40", encode_value("a") + encode_value("b"), encode_value("a")):
            for count in (0, 1, 2, 3, 200):
                yield section(code, compound(form, count, octets)) + body
    for value in BAD_VALUES[::5]:
        yield section(APPLICATION, map_with(value, "x")) + BODY
        yield section(MESSAGE, map_with(value, Symbol("x-opt-x"))) + BODY
        yield section(VALUE, value)
    for index in range(5):
        for value in SCALARS[::2]:
            yield section(HEADER, compound(0xC0, index + 1, b"\x40" * index + value)) + BODY


def order_cases() -> Iterator[bytes]:
    parts = {
        HEADER: DURABLE,
        MESSAGE: encode_annotations(MESSAGE, {"x-opt-a": 1}),
        PROPERTIES: encode_value(Properties(message_id="1")),
        APPLICATION: encode_application_properties({"a": 1}),
        DATA: BODY,
        VALUE: section(VALUE, b"\x40"),
        SEQUENCE: section(SEQUENCE, b"\x45"),
        FOOTER: encode_annotations(FOOTER, {"x": 1}),
    }
    yield b""
    for one in parts.values():
        yield one
        for other in parts.values():
            yield one + other + BODY
    whole = URGENT + parts[PROPERTIES] + parts[APPLICATION] + BODY
    for end in range(1, len(whole), 2):
        yield whole[:end]
    yield whole + b"\x00"
    yield whole + BODY
    yield b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x73\xc0\x01\x00" + BODY
    yield b"\x00\xa3\x10amqp:data:binary\xa0\x01x"
    yield encode_data(b"x" * 300)
    yield encode_data(b"x" * MESSAGE_SIZE_MAX)
    yield encode_annotations(MESSAGE, {"x-cc": ["copy", 1]}) + BODY
    yield encode_application_properties({"CC": "copy", "x-delay": 5}) + BODY


# --- transfers ---


def transfer_cases() -> Iterator[Case]:
    """Each field of a transfer with each value; handle and delivery-id among them."""
    for index in range(11):
        # The peer in this file would lose count of its own delivery-ids.
        values = SCALARS if index != 1 else SCALARS[:2]
        for value in (*values, encode_value(b"t" * 32), encode_value(b"t" * 33), encode_value(False), b"\x56\x01"):
            yield Case(DURABLE + BODY, ((index, value),))
    for state in (Accepted(), TransactionalState(b"none"), Rejected()):
        yield Case(DURABLE + BODY, ((7, encode_value(state)),))
    for count in range(1, 7):
        yield Case(BODY, fewer_fields=count)
    yield Case(BODY, more_fields=(b"\x40",))
    yield Case(BODY, more_fields=(b"\x41", b"\x41", b"\x41", b"\x41", b"\x41", b"\x41", b"\x41"))


def payload_cases() -> list[Case]:
    return [
        *(Case(payload) for payload in dict.fromkeys([*properties_cases(), *sections_cases(), *order_cases()])),
        *transfer_cases(),
    ]


CASES: Final = payload_cases()
BLOCKS: Final = 4


class Bench:
    """A node, two queues behind one exchange, of which one has dead letters, and a connection that is opened anew."""

    def __init__(self) -> None:
        self.node = NodeBench(Cut.WHOLE)
        self.node.node.limits.message_size_max = MESSAGE_SIZE_MAX
        self.channel: Channel = self.node.channel()
        self.channel.declare("dead", {"x-queue-type": "classic"})
        self.channel.declare("one", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        self.channel.declare("two")
        for queue in ("one", "two"):
            self.channel.bind("amq.fanout", queue)
        self.peer: Peer | None = None
        self.session: Session | None = None
        reader = Peer(self.node)
        reader.open()
        self.reader = reader.begin()
        self.two = self.reader.receiver("/queues/two")

    def queue(self, name: str) -> Queue:
        return self.node.node.virtual_hosts["/"].queues[name]

    def fresh_session(self) -> Session:
        if self.peer is None or self.peer.wire.is_closed:
            self.peer = Peer(self.node)
            self.peer.open()
            self.session = None
        if self.session is None:
            self.session = self.peer.begin()
        return self.session


def transfer(handle: int, number: int, case: Case) -> bytes:
    fields = [
        encode_value(UInt(handle)), b"\x70" + number.to_bytes(4, "big"), encode_value(b"tag-%04d" % number),
        encode_value(UInt(0)), b"\x42", b"\x42",
    ]  # fmt: skip
    if case.fewer_fields:
        fields = fields[: -case.fewer_fields]
    fields += case.more_fields
    for index, value in case.fields:
        fields += [b"\x40"] * (index + 1 - len(fields))
        fields[index] = value
    performative = b"\x00\x53" + bytes([TRANSFER]) + compound(0xC0, len(fields), b"".join(fields))
    return frame(0, performative, case.payload)


def said(value: Composite, number: int) -> tuple[object, ...]:
    """What of an answer must be the same, wherever it comes."""
    if isinstance(value, Disposition):
        last = value.first if value.last is None else value.last
        which = "it" if value.first == last == number else f"{value.first}-{last}"
        return "disposition", which, value.settled, str(value.state)
    if isinstance(value, (Detach, End, Close)):
        error = value.error
        return type(value).__name__, error and error.condition, error and error.description
    return type(value).__name__, str(value)


class Sending:
    """One link, on which a case is sent after others."""

    def __init__(self, bench: Bench, warm: Case, count: int) -> None:
        self.bench = bench
        self.session = bench.fresh_session()
        self.session.next_handle = 0
        self.peer = self.session.peer
        self.sender = self.session.sender("/exchanges/amq.fanout/key")
        self.number = self.session.next_delivery_id
        octets = b"".join(transfer(self.sender.handle, self.number + at, warm) for at in range(count))
        self.number += count
        self.write(octets)
        for name in ("one", "two"):
            assert bench.queue(name).purge() == count

    def write(self, octets: bytes) -> list[Composite]:
        self.peer.write(octets)
        self.peer.receive()
        answers = [value for _, value, _ in self.peer.received if not isinstance(value, Flow)]
        self.peer.received.clear()
        return answers

    def outcome(self, case: Case) -> list[object]:
        """All that comes of one more transfer."""
        number = self.number
        self.number += 1
        answers = self.write(transfer(self.sender.handle, number, case))
        self.session.next_delivery_id = self.number
        return [*(said(answer, number) for answer in answers), *self._consumed()]

    def _consumed(self) -> Iterator[object]:
        bench = self.bench
        count = bench.queue("two").message_count
        yield count, bench.queue("one").message_count
        if count:
            bench.two.flow(count)
            for _ in range(count):
                delivery = bench.two.delivery()
                yield delivery.payload
                bench.two.settle(delivery)
        channel = bench.channel
        while (got := channel.get("one", no_ack=False)) is not None:
            yield got.properties, got.body
            channel.reject(got.tag, requeue=False)
        while (dead := channel.get("dead")) is not None:
            yield dead.body, [dict(death, time=0) for death in dead.headers["x-death"]]  # type: ignore[attr-defined]

    def close(self, outcome: list[object]) -> None:
        """Leave the session in a state that the next link can use, or leave it alone."""
        if self.peer.wire.is_closed or any(isinstance(one, tuple) and one[0] == "Close" for one in outcome):
            self.peer.wire.cut()
            self.bench.session = None
            self.bench.peer = None
        elif any(isinstance(one, tuple) and one[0] == "End" for one in outcome):
            self.session.send(End())
            self.bench.session = None
        else:
            self.session.send(Detach(self.sender.handle, closed=True))
            self.peer.receive()
            self.peer.received.clear()


def outcome_of(bench: Bench, case: Case, warm: Case, count: int) -> list[object]:
    sending = Sending(bench, warm, count)
    outcome = sending.outcome(case)
    sending.close(outcome)
    return outcome


@pytest.fixture(scope="module")
def fast_bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.node.close()


def alike(case: Case) -> Case:
    """A well-formed transfer that looks like it: what is compared is the transfer but for its tag, and the header."""
    return Case(next((header + BODY for header in (URGENT, DURABLE) if case.payload.startswith(header)), BODY))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_the_third_of_its_kind_is_answered_as_the_first(fast_bench: Bench, block: int) -> None:
    for case in CASES[block::BLOCKS]:
        cold = outcome_of(fast_bench, case, Case(BODY), 0)
        assert outcome_of(fast_bench, case, alike(case), 2) == cold, case


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_case_is_answered_in_the_same_way_each_time(fast_bench: Bench, block: int) -> None:
    for case in CASES[block :: BLOCKS * 2]:
        sending = Sending(fast_bench, Case(BODY), 0)
        first = sending.outcome(case)
        outcome = first
        for _ in range(3):
            if not (isinstance(outcome[0], tuple) and outcome[0][0] == "disposition"):
                break
            outcome = sending.outcome(case)
            assert outcome == first, case
        sending.close(outcome)


def test_the_thousandth_of_its_kind_is_answered_as_the_first(fast_bench: Bench) -> None:
    for case in CASES[:: len(CASES) // 6]:
        assert outcome_of(fast_bench, case, alike(case), 999) == outcome_of(fast_bench, case, Case(BODY), 0), case
