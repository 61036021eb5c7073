from collections.abc import Callable
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp10.strategies import DESCRIPTOR_FORMS, all_composites, performatives, sasl_bodies
from waybill.wire.amqp10 import codes, descriptors, error, field_kinds
from waybill.wire.amqp10.composite import CLASSES, Composite, decode_composite
from waybill.wire.amqp10.decode import decode_value
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.error import Error
from waybill.wire.amqp10.errors import DecodeError, EncodeError, FrameError
from waybill.wire.amqp10.filters import SELECTOR, filter_name
from waybill.wire.amqp10.message import Header, Properties
from waybill.wire.amqp10.messaging import (
    Accepted,
    DeleteOnClose,
    DeleteOnNoMessages,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    lifetime_policy,
)
from waybill.wire.amqp10.performatives import (
    PERFORMATIVES,
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
    decode_performative,
)
from waybill.wire.amqp10.security import (
    SASL_BODIES,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    decode_sasl,
)
from waybill.wire.amqp10.transactions import (
    Coordinator,
    Declare,
    Declared,
    Discharge,
    TransactionalState,
)
from waybill.wire.amqp10.types import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, UShort, Uuid

VECTORS: list[tuple[Composite, bytes]] = [
    (Open("me"), b"\x00\x53\x10\xc0\x05\x01\xa1\x02me"),
    (
        Open("me", max_frame_size=1000, channel_max=255, idle_time_out=30_000, properties={"product": "x"}),
        bytes.fromhex("005310c0260aa1026d6540 70000003e8 6000ff 7000007530 40404040 c10d02a30770726f64756374a10178"),
    ),
    (
        Begin(next_outgoing_id=0, incoming_window=255, outgoing_window=256),
        b"\x00\x53\x11\xc0\x0a\x04\x40\x43\x52\xff\x70\x00\x00\x01\x00",
    ),
    (
        Attach("a", 0, ROLE_RECEIVER, source=Source("q"), target=Target()),
        b"\x00\x53\x12\xc0\x15\x07\xa1\x01a\x43\x41\x40\x40\x00\x53\x28\xc0\x04\x01\xa1\x01q\x00\x53\x29\x45",
    ),
    (
        Flow(next_incoming_id=1, incoming_window=2, next_outgoing_id=3, outgoing_window=4, handle=5, drain=True),
        b"\x00\x53\x13\xc0\x0f\x09\x52\x01\x52\x02\x52\x03\x52\x04\x52\x05\x40\x40\x40\x41",
    ),
    (
        Transfer(0, 1, b"t", 0, settled=True),
        b"\x00\x53\x14\xc0\x09\x05\x43\x52\x01\xa0\x01t\x43\x41",
    ),
    (
        Disposition(ROLE_RECEIVER, 7, settled=True, state=Accepted()),
        b"\x00\x53\x15\xc0\x0a\x05\x41\x52\x07\x40\x41\x00\x53\x24\x45",
    ),
    (Detach(3, closed=True), b"\x00\x53\x16\xc0\x04\x02\x52\x03\x41"),
    (End(), b"\x00\x53\x17\x45"),
    (
        Close(Error(error.NOT_FOUND, "no")),
        b"\x00\x53\x18\xc0\x1b\x01\x00\x53\x1d\xc0\x15\x02\xa3\x0eamqp:not-found\xa1\x02no",
    ),
    (Received(1, 2), b"\x00\x53\x23\xc0\x05\x02\x52\x01\x53\x02"),
    (Rejected(), b"\x00\x53\x25\x45"),
    (Released(), b"\x00\x53\x26\x45"),
    (Modified(delivery_failed=True), b"\x00\x53\x27\xc0\x02\x01\x41"),
    (Coordinator(("amqp:local-transactions",)), b"\x00\x53\x30\xc0\x1d\x01\xe0\x1a\x01\xa3\x17amqp:local-transactions"),
    (Declare(), b"\x00\x53\x31\x45"),
    (Discharge(b"\x01", fail=True), b"\x00\x53\x32\xc0\x05\x02\xa0\x01\x01\x41"),
    (Declared(b"\x01"), b"\x00\x53\x33\xc0\x04\x01\xa0\x01\x01"),
    (TransactionalState(b"\x01", Accepted()), b"\x00\x53\x34\xc0\x08\x02\xa0\x01\x01\x00\x53\x24\x45"),
    (DeleteOnClose(), b"\x00\x53\x2b\x45"),
    (SaslMechanisms(("PLAIN", "ANONYMOUS")), b"\x00\x53\x40\xc0\x15\x01\xe0\x12\x02\xa3\x05PLAIN\x09ANONYMOUS"),
    (SaslInit("PLAIN", b"\0u\0p"), b"\x00\x53\x41\xc0\x0e\x02\xa3\x05PLAIN\xa0\x04\0u\0p"),
    (SaslChallenge(b"c"), b"\x00\x53\x42\xc0\x04\x01\xa0\x01c"),
    (SaslResponse(b"r"), b"\x00\x53\x43\xc0\x04\x01\xa0\x01r"),
    (SaslOutcome(0), b"\x00\x53\x44\xc0\x03\x01\x50\x00"),
    (Header(durable=True, ttl=1000), b"\x00\x53\x70\xc0\x08\x03\x41\x40\x70\x00\x00\x03\xe8"),
    (Properties("id", to="q"), b"\x00\x53\x73\xc0\x09\x03\xa1\x02id\x40\xa1\x01q"),
]


@pytest.mark.parametrize(("value", "octets"), VECTORS)
def test_encoding(value: Composite, octets: bytes) -> None:
    assert value.encode() == octets


@pytest.mark.parametrize(("value", "octets"), VECTORS)
@pytest.mark.parametrize("form", DESCRIPTOR_FORMS)
def test_decoding_with_every_form_of_descriptor(value: Composite, octets: bytes, form: Callable[[int], bytes]) -> None:
    other = form(value.CODE) + octets[3:]
    assert decode_composite(b"??" + other + b"payload", 2) == (value, 2 + len(other))


@pytest.mark.parametrize(("value", "octets"), VECTORS)
def test_every_cut_is_refused(value: Composite, octets: bytes) -> None:
    for size in range(len(octets)):
        with pytest.raises(DecodeError):
            decode_composite(octets[:size])


@pytest.mark.parametrize("cls", CLASSES.values(), ids=lambda cls: cls.__name__)
def test_a_type_is_declared_as_the_dataclass_is(cls: type[Composite]) -> None:
    annotated = [name for name in get_type_hints(cls) if not name.isupper()]
    assert cls.FIELDS.names == annotated
    assert descriptors.NAMES[cls.CODE] == cls.NAME


def test_every_descriptor_of_a_list_has_a_class() -> None:
    lists = {code for code, name in descriptors.NAMES.items() if name.endswith(":list")}
    assert set(CLASSES) == lists - {descriptors.AMQP_SEQUENCE}
    assert {cls.CODE for cls in PERFORMATIVES} == set(range(0x10, 0x19))
    assert {cls.CODE for cls in SASL_BODIES} == set(range(0x40, 0x45))


@given(all_composites)
def test_every_type_survives_a_round_trip(value: Composite) -> None:
    octets = value.encode()
    decoded, end = decode_composite(octets)
    assert end == len(octets)
    assert decoded.encode() == octets


@given(performatives, st.binary(max_size=10))
def test_the_payload_follows_the_performative(value: Performative, payload: bytes) -> None:
    octets = value.encode()
    assert decode_performative(b"??" + octets + payload, 2)[1] == 2 + len(octets)


def test_missing_fields_have_their_defaults() -> None:
    begin = Begin(next_outgoing_id=1, incoming_window=2, outgoing_window=3)
    short = [None, UInt(1), UInt(2), UInt(3)]
    for fields in (short, [*short, None, None, None, None], [*short, UInt(2**32 - 1)]):
        assert decode_composite(encode_value(Described(ULong(0x11), fields)))[0] == begin
    assert decode_composite(b"\x00\x53\x70\x45")[0] == Header()
    assert Header() == Header(durable=False, priority=4, ttl=None, first_acquirer=False, delivery_count=0)


def test_several_values_may_be_one_none_or_an_empty_array() -> None:
    for value, expected in [
        (Symbol("a"), ("a",)),
        (Array(codes.SYMBOL_8, (Symbol("a"),)), ("a",)),
        (Array(codes.SYMBOL_32, (Symbol("a"), Symbol("b"))), ("a", "b")),
        (Array(codes.SYMBOL_8), ()),
        (None, ()),
    ]:
        octets = encode_value(Described(ULong(0x30), [value]))
        assert decode_composite(octets)[0] == Coordinator(expected)


NAME = "link"
ATTACH_START = [NAME, UInt(0), False]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (0x10, []),
        (0x10, [None]),
        (0x10, [b"binary"]),
        (0x10, [Symbol("symbol")]),
        (0x10, ["me", None, ULong(512)]),
        (0x10, ["me", None, 512]),
        (0x10, ["me", None, None, UInt(1)]),
        (0x10, ["me", None, None, None, None, "en-US"]),
        (0x10, ["me", None, None, None, None, Array(codes.STRING_8, ("en-US",))]),
        (0x10, ["me", None, None, None, None, Array(codes.SYMBOL_8, (), (ULong(1),))]),
        (0x10, ["me", None, None, None, None, ["en-US"]]),
        (0x10, ["me", *[None] * 8, {"string": 1}]),
        (0x10, ["me", *[None] * 8, []]),
        (0x10, ["me", *[None] * 9, None]),
        (0x11, [None, UInt(0), UInt(0)]),
        (0x11, [UInt(1), UInt(0), UInt(0), UInt(0)]),
        (0x12, [NAME, UInt(0)]),
        (0x12, [NAME, UInt(0), UInt(1)]),
        (0x12, [*ATTACH_START, 0]),
        (0x12, [*ATTACH_START, UByte(0), UByte(0), "address"]),
        (0x12, [*ATTACH_START, UByte(0), UByte(0), Target()]),
        (0x12, [*ATTACH_START, UByte(0), UByte(0), None, Source()]),
        (0x12, [*ATTACH_START, UByte(0), UByte(0), Described(ULong(0x28), {})]),
        (0x12, [*ATTACH_START, UByte(0), UByte(0), Described(ULong(0x28), [Symbol("q")])]),
        (0x12, [*ATTACH_START, None, None, None, None, {Symbol("tag"): None}]),
        (0x12, [*ATTACH_START, None, None, None, None, {b"tag": True}]),
        (0x12, [*ATTACH_START, None, None, None, None, {b"tag": Error("c")}]),
        (0x13, [UInt(1), UInt(1), UInt(1)]),
        (0x14, []),
        (0x14, [UInt(0), UInt(0), "tag"]),
        (0x14, [UInt(0), *[None] * 6, Source()]),
        (0x15, [True]),
        (0x15, [True, UInt(0), None, None, True]),
        (0x16, [None]),
        (0x17, [Accepted()]),
        (0x17, [Described(Symbol("example:error:list"), [])]),
        (0x17, [Described(ULong(0x1D), [None])]),
        (0x23, [UInt(0)]),
        (0x23, [UInt(0), UInt(0)]),
        (0x28, ["q", None, None, None, None, None, None, None, Received(0, 0)]),
        (0x34, [b"id", TransactionalState(b"id")]),
        (0x34, [None]),
        (0x40, []),
        (0x40, [Array(codes.SYMBOL_8)]),
        (0x41, [None]),
        (0x44, [UInt(0)]),
        (0x70, [UByte(1)]),
        (0x70, [True, UInt(1)]),
        (0x73, [Symbol("id")]),
        (0x73, [UInt(1)]),
        (0x73, [*[None] * 8, 1]),
    ],
)
def test_missing_and_wrong_fields_are_refused(code: int, fields: list[object]) -> None:
    with pytest.raises(DecodeError):
        decode_composite(encode_value(Described(ULong(code), fields)))


@pytest.mark.parametrize(
    "octets",
    [
        encode_value("open"),
        encode_value(Described(ULong(0x10), {})),
        encode_value(Described(ULong(0x19), [])),
        encode_value(Described(UInt(0x10), ["me"])),
        encode_value(Described("amqp:open:list", ["me"])),
        encode_value(Described(Symbol("amqp:open"), ["me"])),
        encode_value(Described(ULong(0x78), {})),
    ],
)
def test_what_is_no_composite_type_is_refused(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_composite(octets)


def test_only_performatives_begin_frames() -> None:
    with pytest.raises(DecodeError):
        decode_performative(Accepted().encode())
    with pytest.raises(DecodeError):
        decode_performative(SaslOutcome(0).encode())


def test_sasl_frames_hold_one_sasl_body() -> None:
    octets = SaslOutcome(1).encode()
    assert decode_sasl(b"?" + octets + b"?", 1, 1 + len(octets)) == SaslOutcome(1)
    for wrong in (octets + b"\x40", Open("me").encode(), b""):
        with pytest.raises(DecodeError):
            decode_sasl(wrong)


@given(sasl_bodies)
def test_sasl_bodies_survive_a_round_trip(value: Composite) -> None:
    assert decode_sasl(value.encode()) == value


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(SaslInit("PLAIN", b"\0user\0secret"))
    assert "secret" not in repr(SaslResponse(b"secret"))


@pytest.mark.parametrize(
    "value",
    [
        Open(""[:0], channel_max=65_536),
        Open("me", max_frame_size=-1),
        Open("me", offered_capabilities=("é",)),
        Open("me", properties={1: 1}),  # type: ignore[dict-item]
        Open(b"me"),  # type: ignore[arg-type]
        Open(None),  # type: ignore[arg-type]
        Attach("a", True, ROLE_SENDER),
        Attach("a", 0, 1),  # type: ignore[arg-type]
        Attach("a", 0, ROLE_SENDER, source="q"),  # type: ignore[arg-type]
        Properties(5),  # type: ignore[arg-type]
        Properties(Symbol("id")),
        SaslMechanisms(()),
        Coordinator((1,)),  # type: ignore[arg-type]
    ],
)
def test_wrong_fields_are_not_encoded(value: Composite) -> None:
    with pytest.raises(EncodeError):
        value.encode()


def test_an_extension_stays_described_where_it_could_be_known() -> None:
    mine = Described(Symbol("example:source:list"), ["x"])
    attach = Attach("a", 0, ROLE_SENDER, source=mine, unsettled={b"t": mine, b"u": None, b"v": Accepted()})
    assert decode_composite(attach.encode())[0] == attach


def test_message_ids_keep_their_types() -> None:
    for value in (ULong(5), Uuid(bytes(16)), b"id", "id"):
        decoded, _ = decode_composite(Properties(value, correlation_id=value).encode())
        assert isinstance(decoded, Properties)
        assert type(decoded.message_id) is type(value)
        assert decoded.correlation_id == value


def test_lifetime_policies() -> None:
    source = Source(dynamic=True, dynamic_node_properties={"lifetime-policy": DeleteOnNoMessages()})
    decoded, _ = decode_composite(source.encode())
    assert isinstance(decoded, Source)
    assert lifetime_policy(decoded.dynamic_node_properties) == DeleteOnNoMessages()
    assert lifetime_policy(None) is None
    assert lifetime_policy({}) is None
    for wrong in (Symbol("delete-on-close"), Accepted(), Described(Symbol("example:policy:list"), [])):
        with pytest.raises(DecodeError):
            lifetime_policy({"lifetime-policy": wrong})


def test_filters_are_named_alike_by_number_and_symbol() -> None:
    assert filter_name(Described(ULong(0x0000468C_00000004), "a = 1")) == SELECTOR
    assert filter_name(Described(Symbol(SELECTOR), "a = 1")) == SELECTOR
    assert filter_name(Described(Symbol("example:mine"), 1)) == "example:mine"
    assert filter_name(Described(ULong(1), 1)) == ""
    assert filter_name(Described("string", 1)) == ""


def test_errors_name_their_condition() -> None:
    assert DecodeError.condition == error.DECODE_ERROR
    assert FrameError.condition == error.FRAMING_ERROR


def test_kinds_of_numbers_are_checked_by_their_wrapper() -> None:
    wrappers = {field_kinds.UINT: UInt, field_kinds.USHORT: UShort, field_kinds.TIMESTAMP: Timestamp}
    assert wrappers.items() <= field_kinds.INTEGER_TYPES.items()


@given(all_composites, st.integers(0), st.integers(0, 255))
def test_any_changed_octet_gives_a_value_or_a_decode_error(value: Composite, place: int, octet: int) -> None:
    octets = bytearray(value.encode())
    octets[place % len(octets)] = octet
    try:
        decoded, _ = decode_composite(bytes(octets))
    except DecodeError:
        return
    decode_composite(decoded.encode())


@given(st.sampled_from(sorted(descriptors.NAMES)), st.binary(max_size=60))
def test_any_octets_after_a_descriptor_give_a_value_or_a_decode_error(code: int, octets: bytes) -> None:
    try:
        decode_value(b"\x00\x53" + bytes([code]) + octets)
        decode_composite(b"\x00\x53" + bytes([code]) + octets)
    except DecodeError:
        return
