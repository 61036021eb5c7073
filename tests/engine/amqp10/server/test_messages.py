"""What a message may hold, and that it comes out as it went in."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Receiver, Session, declare, message
from waybill.wire.amqp10 import codes, descriptors
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.error import DECODE_ERROR, INVALID_FIELD
from waybill.wire.amqp10.message import MessageId, Properties
from waybill.wire.amqp10.messaging import Accepted, Source
from waybill.wire.amqp10.sections import (
    encode_amqp_value,
    encode_annotations,
    encode_application_properties,
    encode_data,
    encode_sequence,
)
from waybill.wire.amqp10.types import Array, Char, Decimal128, Described, Float, Symbol, Timestamp, UByte, ULong, Uuid

EMPTY_ANNOTATIONS = b"\x00\x53\x72\xc1\x01\x00"


def through(bench: NodeBench, session: Session, sent: bytes) -> bytes:
    """What comes out behind the annotations."""
    declare(bench)
    disposition = session.sender("/queues/q").send(sent)
    assert isinstance(disposition.state, Accepted)
    delivery = session.receiver("/queues/q", credit=1).delivery()
    assert delivery.transfer.message_format == 0
    return delivery.payload[delivery.facts.bare :]


@requirement("M10-006", "M10-027", "M10-029")
@pytest.mark.parametrize("identifier", [ULong(2**64 - 1), Uuid(bytes(range(16))), b"\x00\xff", "text"])
def test_ids_are_of_four_types(bench: NodeBench, session: Session, identifier: MessageId) -> None:
    sent = encode_value(Properties(message_id=identifier, correlation_id=identifier)) + encode_data(b"")
    assert through(bench, session, sent) == sent


@requirement("M10-027", "M10-038", "M10-039")
def test_every_property_is_kept(bench: NodeBench, session: Session) -> None:
    properties = Properties(
        to="/queues/elsewhere",
        subject="s",
        reply_to="/queues/r",
        content_type="a/b",
        content_encoding="gzip",
        creation_time=1_700_000_000_123,
        group_id="g",
        group_sequence=2**32 - 1,
        reply_to_group_id="h",
    )
    sent = encode_value(properties) + encode_data(b"")
    assert through(bench, session, sent) == sent


@requirement("M10-042")
@pytest.mark.parametrize(
    "body",
    [
        encode_data(b"1") + encode_data(b"") + encode_data(b"3"),
        encode_sequence([1, "two"]) + encode_sequence([]),
        encode_amqp_value(None),
        encode_amqp_value({"k": [Float(0.5), Char("x"), Decimal128(bytes(16)), Timestamp(-1), UByte(1)]}),
        encode_amqp_value(Described(Symbol("mine"), Array(codes.LIST_32, ([1], [2, 3])))),
    ],
)
def test_bodies_of_all_kinds_are_carried(bench: NodeBench, session: Session, body: bytes) -> None:
    assert through(bench, session, body) == body


@requirement("M10-023", "M10-026")
def test_no_annotations_and_empty_ones_are_the_same(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    receiver = session.receiver("/queues/q", credit=2)
    for head in (b"", b"\x00\x53\x71\xc1\x01\x00" + EMPTY_ANNOTATIONS):
        sender.send(head + message())
        delivery = receiver.delivery()
        assert delivery.facts.delivery_annotations == -1
        assert delivery.annotations == {"x-exchange": "", "x-routing-key": "q"}


@requirement("M10-024", "M10-045")
def test_annotations_that_nobody_understands_are_carried(bench: NodeBench, session: Session) -> None:
    declare(bench)
    annotations = {"x-opt-unknown": [1, {"deep": Symbol("s")}], ULong(7): b"by number"}
    sent = encode_annotations(descriptors.MESSAGE_ANNOTATIONS, annotations) + message()
    assert isinstance(session.sender("/queues/q").send(sent).state, Accepted)
    received = session.receiver("/queues/q", credit=1).delivery().annotations
    assert received["x-opt-unknown"] == [1, {"deep": Symbol("s")}]
    assert received[ULong(7)] == b"by number"


def test_a_long_map_of_annotations_has_room_for_those_of_the_broker(bench: NodeBench, session: Session) -> None:
    declare(bench)
    annotations = {f"x-opt-{number}": "x" * 50 for number in range(200)}
    sent = encode_annotations(descriptors.MESSAGE_ANNOTATIONS, annotations) + message()
    session.sender("/queues/q").send(sent)
    delivery = session.receiver("/queues/q", credit=1).delivery()
    assert delivery.annotations == {**annotations, "x-exchange": "", "x-routing-key": "q"}
    assert delivery.bare == message()


@requirement("M10-044")
@pytest.mark.parametrize("pairs", [b"\xa1\x01a\x40", b"\x40\x40", b"\x54\x01\x40", b"\xa3\x01a\x40\xa3\x01a\x40"])
def test_keys_of_annotations_are_symbols_and_ulongs(bench: NodeBench, session: Session, pairs: bytes) -> None:
    declare(bench)
    count = 4 if len(pairs) > 4 else 2
    annotations = b"\x00\x53\x72\xc1" + bytes([len(pairs) + 1, count]) + pairs
    sender = session.sender("/queues/q")
    sender.transfer(annotations + message())
    sender.expect_detached(DECODE_ERROR)


# A map of one entry: the name "a", or another key, and a value.
_APPLICATION_PROPERTIES = [
    b"\xa1\x01a\xc1\x01\x00",  # a map
    b"\xa1\x01a\x45",  # a list
    b"\xa1\x01a\xe0\x03\x01\x56\x41",  # an array
    b"\xa1\x01a\x00\xa3\x01d\x41",  # a described value
    b"\xa3\x01a\x41",  # a symbol as the name
    b"\x54\x01\x41",  # a number as the name
    b"\x40\x41",  # no name
]


@requirement("M10-040")
@pytest.mark.parametrize("pair", _APPLICATION_PROPERTIES)
def test_other_application_properties_are_carried_as_they_are(bench: NodeBench, session: Session, pair: bytes) -> None:
    """A library refuses them (tests/wire/amqp10/test_sections.py); the broker tolerates them, and filters too."""
    sent = b"\x00\x53\x74\xc1" + bytes([len(pair) + 1, 2]) + pair + encode_data(b"x")
    assert through(bench, session, sent) == sent
    session.sender("/queues/q").send(sent)
    wanted = Source("/queues/q", filter={"f": selector("a IS NULL OR a = 1")})
    assert session.receiver(None, source=wanted, credit=1).delivery().payload.endswith(sent)


@requirement("M10-112")
@pytest.mark.parametrize("value", ["bare", 5, [Symbol("x")]])
def test_a_filter_is_a_described_value(bench: NodeBench, session: Session, value: object) -> None:
    declare(bench)
    source = Source("/queues/q", filter={"f": value})
    session.expect_refused(session.receiver_attach(None, source=source), INVALID_FIELD)


@requirement("M10-113", "BB-030")
def test_a_link_that_is_attached_again_has_other_filters(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    for color in ("red", "blue"):
        sender.send(encode_application_properties({"color": color}) + encode_data(color.encode()))
    seen = []
    for color in ("blue", "red"):
        wanted: dict[str, object] = {"f": selector(f"color = '{color}'"), "g": selector("color IS NOT NULL"), "h": None}
        receiver = session.receiver(None, name="same", source=Source("/queues/q", filter=wanted), credit=5)
        assert set(source_of(receiver).filter or {}) == {"f", "g"}
        delivery = receiver.delivery()
        seen.append(delivery.bare[-len(color) :])
        receiver.settle(delivery, Accepted())
        receiver.expect_nothing()
        receiver.detach(closed=False)
    assert seen == [b"blue", b"red"]


def selector(text: str) -> Described:
    return Described(Symbol("apache.org:selector-filter:string"), text)


def source_of(receiver: Receiver) -> Source:
    """The source that is in force."""
    assert receiver.answer is not None
    assert isinstance(receiver.answer.source, Source)
    return receiver.answer.source


@requirement("M10-097", "M10-098")
def test_the_source_tells_how_it_distributes(bench: NodeBench, session: Session) -> None:
    declare(bench)
    for asked, told in ((None, "move"), ("move", "move"), ("copy", "copy")):
        receiver = session.receiver(None, source=Source("/queues/q", distribution_mode=asked))
        assert source_of(receiver).distribution_mode == told


@requirement("M10-090", "M10-102", "M10-103")
def test_a_source_without_any_outcomes_takes_accepted(bench: NodeBench, session: Session) -> None:
    queue = declare(bench)
    session.sender("/queues/q").send(message())
    receiver = session.receiver(None, source=Source("/queues/q"), credit=1)
    assert "amqp:accepted:list" in source_of(receiver).outcomes
    receiver.settle(receiver.delivery(), Accepted())
    session.flow(echo=True)
    assert queue.message_count == 0
    assert queue.unsettled_count == 0


@requirement("BB-022")
def test_capabilities_that_nobody_has_are_not_offered(bench: NodeBench, session: Session) -> None:
    declare(bench)
    answer = session.receiver("/queues/q", desired_capabilities=(Symbol("example:unheard-of"),)).answer
    assert answer is not None
    assert "example:unheard-of" not in answer.offered_capabilities
