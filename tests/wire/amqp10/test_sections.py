from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from tests.conformance.requirement import requirement
from tests.wire.amqp10.strategies import (
    DESCRIPTOR_FORMS,
    binaries,
    field_maps,
    headers,
    properties,
    same,
    scalars,
    strings,
    symbols,
    values,
)
from waybill.wire.amqp10 import codes, descriptors
from waybill.wire.amqp10.descriptors import NAMES
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.errors import DecodeError, EncodeError
from waybill.wire.amqp10.message import Header, Properties
from waybill.wire.amqp10.sections import (
    MessageFacts,
    data_of,
    decode_annotations,
    decode_application_properties,
    decode_body,
    decode_header,
    decode_properties,
    encode_amqp_value,
    encode_annotations,
    encode_application_properties,
    encode_data,
    encode_sequence,
    scan_message,
    section_starts,
    write_header,
)
from waybill.wire.amqp10.types import Array, Described, Symbol, UByte, UInt, ULong

HEADER = Header(durable=True, priority=7, ttl=1000, first_acquirer=True, delivery_count=2).encode()
DELIVERY_ANNOTATIONS = encode_annotations(descriptors.DELIVERY_ANNOTATIONS, {"x-opt-a": 1})
MESSAGE_ANNOTATIONS = encode_annotations(descriptors.MESSAGE_ANNOTATIONS, {"x-opt-b": 2, 3: None})
PROPERTIES = Properties("id", to="queue").encode()
APPLICATION_PROPERTIES = encode_application_properties({"name": "value", "count": 5})
DATA = encode_data(b"body")
SEQUENCE = encode_sequence([1, "two"])
VALUE = encode_amqp_value({"key": [1]})
FOOTER = encode_annotations(descriptors.FOOTER, {"x-opt-hash": b"hash"})
BEFORE = HEADER + DELIVERY_ANNOTATIONS + MESSAGE_ANNOTATIONS
BARE = PROPERTIES + APPLICATION_PROPERTIES + DATA


def scanned(message: bytes) -> MessageFacts:
    facts = MessageFacts()
    scan_message(message, 0, len(message), facts)
    return facts


def test_every_section_is_found() -> None:
    message = b"??" + BEFORE + BARE + FOOTER + b"??"
    facts = MessageFacts()
    scan_message(message, 2, len(message) - 2, facts)
    assert message[facts.header : facts.header_end] == HEADER
    assert message[facts.delivery_annotations : facts.delivery_annotations_end] == DELIVERY_ANNOTATIONS
    assert message[facts.message_annotations : facts.message_annotations_end] == MESSAGE_ANNOTATIONS
    assert message[facts.properties : facts.properties_end] == PROPERTIES
    assert message[facts.application_properties : facts.application_properties_end] == APPLICATION_PROPERTIES
    assert message[facts.body : facts.body_end] == DATA
    assert message[facts.bare : facts.bare_end] == BARE
    assert message[facts.footer : facts.footer_end] == FOOTER
    assert facts.body_kind == descriptors.DATA
    assert facts.body_count == 1
    assert (facts.durable, facts.priority, facts.ttl, facts.first_acquirer, facts.delivery_count) == (
        True,
        7,
        1000,
        True,
        2,
    )


def test_facts_are_filled_again() -> None:
    facts = MessageFacts()
    full = BEFORE + BARE + FOOTER
    scan_message(full, 0, len(full), facts)
    scan_message(VALUE, 0, len(VALUE), facts)
    fresh = scanned(VALUE)
    names = [name for name in dir(fresh) if not name.startswith("_") and name != "clear"]
    assert {name: getattr(facts, name) for name in names} == {name: getattr(fresh, name) for name in names}
    assert facts.header == -1
    assert facts.priority == 4
    assert facts.ttl == -1
    assert not facts.durable


@pytest.mark.parametrize(
    ("body", "kind", "count"),
    [
        (DATA, descriptors.DATA, 1),
        (DATA * 3, descriptors.DATA, 3),
        (SEQUENCE * 2, descriptors.AMQP_SEQUENCE, 2),
        (VALUE, descriptors.AMQP_VALUE, 1),
    ],
)
def test_bodies_of_every_kind(body: bytes, kind: int, count: int) -> None:
    message = HEADER + PROPERTIES + body + FOOTER
    facts = scanned(message)
    assert (facts.body_kind, facts.body_count) == (kind, count)
    assert message[facts.body : facts.body_end] == body
    assert message[facts.bare : facts.bare_end] == PROPERTIES + body


@pytest.mark.parametrize("message", [b"", HEADER, BEFORE + FOOTER, FOOTER, BEFORE])
def test_a_message_may_have_no_bare_message(message: bytes) -> None:
    facts = scanned(message)
    assert facts.body_kind == -1
    assert facts.bare == facts.bare_end
    assert message[: facts.bare] + message[facts.bare_end :] == message
    assert not message[facts.bare :] or message[facts.bare :] == FOOTER


@pytest.mark.parametrize(
    "message",
    [
        HEADER + HEADER + DATA,
        DELIVERY_ANNOTATIONS + HEADER + DATA,
        MESSAGE_ANNOTATIONS + DELIVERY_ANNOTATIONS + DATA,
        MESSAGE_ANNOTATIONS * 2 + DATA,
        PROPERTIES * 2 + DATA,
        APPLICATION_PROPERTIES + PROPERTIES + DATA,
        PROPERTIES + HEADER + DATA,
        DATA + PROPERTIES,
        DATA + VALUE,
        DATA + SEQUENCE,
        SEQUENCE + DATA,
        VALUE + VALUE,
        FOOTER + DATA,
        DATA + FOOTER + FOOTER,
        DATA + b"\x40",
        DATA + b"\x00",
        b"body",
        encode_value("body"),
        encode_value(Described(ULong(0x79), {})),
        encode_value(Described(ULong(0x6F), [])),
        encode_value(Described(ULong(0x14), [UInt(0)])),
        encode_value(Described(Symbol("example:section:map"), {})),
        encode_value(Described(ULong(0x70), {})),
        encode_value(Described(ULong(0x72), [])),
        encode_value(Described(ULong(0x73), {})),
        encode_value(Described(ULong(0x74), [])),
        encode_value(Described(ULong(0x75), "text")),
        encode_value(Described(ULong(0x75), None)),
        encode_value(Described(ULong(0x76), {})),
        encode_value(Described(ULong(0x78), [])),
        encode_value(Described(ULong(0x70), [1])),
        encode_value(Described(ULong(0x70), [True, UInt(4)])),
        encode_value(Described(ULong(0x70), [True, UByte(4), ULong(1)])),
        encode_value(Described(ULong(0x70), [True, UByte(4), UInt(1), True, UInt(1), None])),
    ],
)
def test_messages_that_cannot_be_are_refused(message: bytes) -> None:
    with pytest.raises(DecodeError):
        scanned(message)


@pytest.mark.parametrize("form", DESCRIPTOR_FORMS)
def test_sections_are_found_with_every_form_of_descriptor(form: Callable[[int], bytes]) -> None:
    parts = [HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, FOOTER]
    odd = [form(part[2]) + part[3:] for part in parts]
    message = b"".join(odd)
    facts = scanned(message)
    assert message[facts.bare : facts.bare_end] == b"".join(odd[3:6])
    assert decode_header(message, facts.header, facts.header_end).ttl == 1000
    assert decode_properties(message, facts.properties, facts.properties_end).to == "queue"
    assert data_of(message, facts) == b"body"
    assert section_starts(message, 0, len(message)) == [sum(map(len, odd[:index])) for index in range(7)]


def test_long_forms_are_found() -> None:
    message = (
        b"\x00\x53\x70\xd0\x00\x00\x00\x06\x00\x00\x00\x02\x56\x01"
        b"\x00\x53\x72\xd1\x00\x00\x00\x04\x00\x00\x00\x00"
        b"\x00\x53\x73\xc0\x01\x00"
        b"\x00\x53\x75\xb0\x00\x00\x00\x02ab"
    )
    with pytest.raises(DecodeError):
        scanned(message)
    message = message.replace(b"\x02\x56\x01", b"\x01\x56\x01", 1)
    facts = scanned(message)
    assert facts.durable
    assert data_of(message, facts) == b"ab"
    assert decode_annotations(message, facts.message_annotations, facts.message_annotations_end) == {}


def test_every_cut_is_refused_or_ends_between_sections() -> None:
    message = BEFORE + BARE + FOOTER
    ends = {*section_starts(message, 0, len(message)), len(message)}
    assert len(ends) == 8
    for size in range(len(message)):
        if size in ends:
            scan_message(message, 0, size, MessageFacts())
        else:
            with pytest.raises(DecodeError):
                scan_message(message, 0, size, MessageFacts())


def test_the_last_section_of_a_part_of_a_message_may_be_cut_off() -> None:
    message = HEADER + PROPERTIES + DATA
    assert section_starts(message, 0, 0) == []
    assert section_starts(message, 0, 1) == [0]
    assert section_starts(message, 0, len(HEADER)) == [0]
    assert section_starts(message, 0, len(HEADER) + 1) == [0, len(HEADER)]
    assert section_starts(message, 0, len(message) - 1) == [0, len(HEADER), len(HEADER + PROPERTIES)]
    with pytest.raises(DecodeError):
        section_starts(HEADER + b"body", 0, len(HEADER) + 4)


@given(headers)
def test_headers_are_written_scanned_and_decoded_alike(header: Header) -> None:
    out = BytesWriter()
    write_header(
        out,
        durable=header.durable,
        priority=header.priority,
        ttl=-1 if header.ttl is None else header.ttl,
        first_acquirer=header.first_acquirer,
        delivery_count=header.delivery_count,
    )
    octets = out.getvalue()
    assert octets == (b"" if header == Header() else header.encode())
    if not octets:
        return
    assert decode_header(octets, 0, len(octets)) == header
    facts = scanned(octets)
    assert facts.durable == header.durable
    assert facts.priority == header.priority
    assert facts.ttl == (-1 if header.ttl is None else header.ttl)
    assert facts.first_acquirer == header.first_acquirer
    assert facts.delivery_count == header.delivery_count


@given(properties)
def test_properties_survive_a_round_trip(value: Properties) -> None:
    octets = value.encode()
    assert decode_properties(b"?" + octets, 1, 1 + len(octets)) == value


@given(field_maps)
def test_annotations_survive_a_round_trip(annotations: dict[object, object]) -> None:
    octets = encode_annotations(descriptors.FOOTER, annotations)
    assert same(decode_annotations(octets, 0, len(octets)), annotations)


@given(st.dictionaries(strings, scalars, max_size=4))
def test_application_properties_survive_a_round_trip(value: dict[str, object]) -> None:
    octets = encode_application_properties(value)
    assert same(decode_application_properties(octets, 0, len(octets)), value)


@given(st.lists(binaries, min_size=1, max_size=4))
def test_data_is_joined(parts: list[bytes]) -> None:
    message = b"".join(encode_data(part) for part in parts)
    facts = scanned(message)
    assert data_of(message, facts) == b"".join(parts)
    assert decode_body(message, facts.body, facts.body_end) == parts


@given(values, st.lists(st.lists(values, max_size=3), min_size=1, max_size=3))
def test_values_and_sequences_survive_a_round_trip(value: object, sequences: list[list[object]]) -> None:
    message = encode_amqp_value(value)
    facts = scanned(message)
    assert same(decode_body(message, facts.body, facts.body_end), [value])
    message = b"".join(encode_sequence(sequence) for sequence in sequences)
    facts = scanned(message)
    assert same(decode_body(message, facts.body, facts.body_end), sequences)


@pytest.mark.parametrize(
    ("decode", "octets"),
    [
        (decode_header, PROPERTIES),
        (decode_header, HEADER + b"\x40"),
        (decode_properties, HEADER),
        (decode_annotations, encode_value(Described(ULong(0x72), {"string": 1}))),
        (decode_annotations, encode_value(Described(ULong(0x72), {1: 1}))),
        (decode_annotations, encode_value(Described(ULong(0x72), [1]))),
        (decode_annotations, MESSAGE_ANNOTATIONS + b"\x40"),
        (decode_application_properties, encode_value(Described(ULong(0x74), {Symbol("a"): 1}))),
        (decode_application_properties, encode_value(Described(ULong(0x74), {None: 1}))),
        (decode_application_properties, encode_value(Described(ULong(0x74), []))),
        (decode_body, HEADER),
        (decode_body, DATA[:-1]),
    ],
)
def test_wrong_sections_are_refused(decode: Callable[[bytes, int, int], object], octets: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(octets, 0, len(octets))


def test_data_is_asked_of_data_only() -> None:
    with pytest.raises(DecodeError):
        data_of(VALUE, scanned(VALUE))


@requirement("M10-040")
@pytest.mark.parametrize("properties", [{"a": {}}, {"a": []}, {"a": Array(codes.NULL)}, {Symbol("a"): 1}, {1: 1}])
def test_application_properties_are_simple_values_with_strings_as_names(properties: dict[str, object]) -> None:
    with pytest.raises(EncodeError):
        encode_application_properties(properties)


@pytest.mark.parametrize("key", [b"binary", None, True, 1.5])
def test_keys_of_annotations_are_symbols_or_numbers(key: object) -> None:
    with pytest.raises(EncodeError):
        encode_annotations(descriptors.FOOTER, {key: 1})


SECTIONS = [HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, FOOTER]


def only_decode_errors(message: bytes) -> None:
    facts = MessageFacts()
    try:
        scan_message(message, 0, len(message), facts)
    except DecodeError:
        return
    assert 0 <= facts.bare <= facts.bare_end <= len(message)
    for decode, start, end in [
        (decode_header, facts.header, facts.header_end),
        (decode_annotations, facts.delivery_annotations, facts.delivery_annotations_end),
        (decode_annotations, facts.message_annotations, facts.message_annotations_end),
        (decode_properties, facts.properties, facts.properties_end),
        (decode_application_properties, facts.application_properties, facts.application_properties_end),
        (decode_body, facts.body, facts.body_end),
        (decode_annotations, facts.footer, facts.footer_end),
    ]:
        if start >= 0:
            try:
                decode(message, start, end)
            except DecodeError:
                # Only the header's fields are checked by the scan.
                assert start != facts.header
    section_starts(message, 0, len(message))


@given(st.lists(st.integers(0), max_size=4), st.lists(st.integers(0, 255), min_size=4, max_size=4))
def test_any_damage_gives_a_message_or_a_decode_error(places: list[int], octets: list[int]) -> None:
    message = bytearray(b"".join(SECTIONS))
    for place, octet in zip(places, octets, strict=False):
        message[place % len(message)] = octet
    only_decode_errors(bytes(message))


@given(st.lists(st.sampled_from([b"\x00\x53" + bytes([code]) for code in NAMES]) | st.binary(max_size=8), max_size=8))
def test_any_octets_give_a_message_or_a_decode_error(parts: list[bytes]) -> None:
    only_decode_errors(b"".join(parts))


@given(st.dictionaries(symbols, scalars, max_size=3), properties, st.lists(binaries, min_size=1, max_size=3))
def test_the_bare_message_is_what_lies_between(
    annotations: dict[object, object], value: Properties, parts: list[bytes]
) -> None:
    before = encode_annotations(descriptors.MESSAGE_ANNOTATIONS, annotations)
    bare = value.encode() + b"".join(encode_data(part) for part in parts)
    facts = scanned(before + bare + FOOTER)
    assert (before + bare + FOOTER)[facts.bare : facts.bare_end] == bare
