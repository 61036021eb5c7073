"""Every malformed value of the type system, wherever a peer can put one: an error at its scope, and others go on.

The malformed values are those of the codec's tests, and each well-formed one without its last octet.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Peer, Session, declare, message
from tests.wire.amqp10.test_types import LONGER, MALFORMED, SHORTEST, UNKNOWN_CODES
from waybill.wire.amqp10.codes import NULL
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.frames import AMQP_HEADER, frame
from waybill.wire.amqp10.messaging import Accepted, Released
from waybill.wire.amqp10.performatives import Detach, Disposition, Flow, Open, Transfer
from waybill.wire.amqp10.types import Symbol, UInt

DECODE_ERROR = "amqp:decode-error"
OPEN, BEGIN, ATTACH, DISPOSITION = 0x10, 0x11, 0x12, 0x15
MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES, AMQP_VALUE = 0x72, 0x74, 0x77

BAD_VALUES = [
    *UNKNOWN_CODES,
    *MALFORMED,
    *[octets[:-1] for octets, _ in SHORTEST + LONGER if len(octets) > 1],
]


def composite(code: int, *fields: bytes) -> bytes:
    """A list with a descriptor, of encoded fields."""
    return b"\x00\x53" + bytes([code]) + list_of(*fields)


def list_of(*fields: bytes) -> bytes:
    octets = b"".join(fields)
    return b"\xd0" + (len(octets) + 4).to_bytes(4, "big") + len(fields).to_bytes(4, "big") + octets


def map_with(value: bytes, key: object = Symbol("x")) -> bytes:
    octets = encode_value(key) + value
    return b"\xd1" + (len(octets) + 4).to_bytes(4, "big") + (2).to_bytes(4, "big") + octets


def nothing(count: int) -> list[bytes]:
    return [bytes([NULL])] * count


@pytest.fixture
def bystander(bench: NodeBench) -> Iterator[None]:
    """Another connection, which sees nothing of all this."""
    declare(bench, "bystander")
    peer = Peer(bench)
    peer.open(container_id="bystander")
    sender = peer.begin().sender("/queues/bystander")
    yield
    assert sender.send(message()).state == Accepted()


@requirement("BB-033")
@pytest.mark.usefixtures("bystander")
def test_in_open(bench: NodeBench) -> None:
    for value in BAD_VALUES:
        peer = Peer(bench)
        peer.write(AMQP_HEADER + frame(0, composite(OPEN, encode_value("me"), *nothing(8), map_with(value))))
        peer.take_header(AMQP_HEADER)
        peer.expect(Open)
        peer.expect_closed(DECODE_ERROR)


@requirement("BB-034")
@pytest.mark.usefixtures("bystander")
def test_in_begin(bench: NodeBench) -> None:
    windows = [encode_value(UInt(0)), encode_value(UInt(9)), encode_value(UInt(9))]
    for value in BAD_VALUES:
        peer = Peer(bench)
        peer.open()
        peer.write(frame(0, composite(BEGIN, *nothing(1), *windows, *nothing(3), map_with(value))))
        peer.expect_closed(DECODE_ERROR)


@requirement("BB-035")
@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("place", ["properties", "filter", "unsettled"])
def test_in_attach(peer: Peer, place: str) -> None:
    name, handle, role = encode_value("link"), encode_value(UInt(0)), encode_value(True)
    for value in BAD_VALUES:
        bad = map_with(value)
        if place == "properties":
            fields = [*nothing(10), bad]
        elif place == "unsettled":
            fields = [*nothing(4), map_with(value, b"tag")]
        else:
            fields = [*nothing(2), composite(0x28, encode_value("/queues/q"), *nothing(6), bad)]
        session = peer.begin()
        peer.write(frame(0, composite(ATTACH, name, handle, role, *fields)))
        session.expect_ended(DECODE_ERROR)
    assert peer.begin().answer is not None


@requirement("BB-035")
@pytest.mark.usefixtures("bystander")
def test_in_disposition(peer: Peer) -> None:
    role, first = encode_value(True), encode_value(UInt(0))
    for value in BAD_VALUES:
        session = peer.begin()
        modified = composite(0x27, *nothing(2), map_with(value))
        peer.write(frame(0, composite(DISPOSITION, role, first, *nothing(2), modified)))
        session.expect_ended(DECODE_ERROR)


@pytest.mark.usefixtures("bystander")
def test_in_message_annotations(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    for value in BAD_VALUES:
        sender = session.sender("/queues/q")
        sender.transfer(section(MESSAGE_ANNOTATIONS, map_with(value, Symbol("x-opt-x"))) + message())
        sender.expect_detached(DECODE_ERROR)
    assert queue.message_count == 0


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("code", [APPLICATION_PROPERTIES, AMQP_VALUE])
def test_in_the_bare_message(bench: NodeBench, session: Session, code: int) -> None:
    """What cannot be cut into sections is refused with its link. Within them, the bare message is its sender's."""
    queue = declare(bench)
    channel = bench.connect().open_channel()
    carried = 0
    for value in BAD_VALUES:
        sent = section(code, value) if code == AMQP_VALUE else section(code, map_with(value, "x")) + message()
        sender = session.sender("/queues/q")
        sender.transfer(sent)
        answer = session.peer.next_frame(0, (Flow, Transfer))[0]
        if isinstance(answer, Detach):
            assert answer.error is not None
            assert answer.error.condition == DECODE_ERROR
            session.send(Detach(sender.handle, closed=True))
            continue
        carried += 1
        assert isinstance(answer, Disposition)
        assert answer.state == Accepted()
        receiver = session.receiver("/queues/q", credit=1)
        delivery = receiver.delivery()
        assert delivery.bare == sent
        receiver.settle(delivery, Released())
        assert channel.get() is not None
    assert carried == len(BAD_VALUES) if code == APPLICATION_PROPERTIES else 0 < carried < len(BAD_VALUES)
    assert queue.message_count == 0


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes([code]) + value
