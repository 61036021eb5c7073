import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.wire.amqp10.strategies import ELEMENTS, same, values
from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.codes import MAX_DEPTH, MAX_VALUES
from waybill.wire.amqp10.decode import decode_value
from waybill.wire.amqp10.encode import encode_value
from waybill.wire.amqp10.errors import DecodeError, EncodeError
from waybill.wire.amqp10.skip import skip_value
from waybill.wire.amqp10.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    OddMap,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Uuid,
)

ID = bytes(range(16))

SHORTEST: list[tuple[bytes, object]] = [
    (b"\x40", None),
    (b"\x41", True),
    (b"\x42", False),
    (b"\x50\xff", UByte(255)),
    (b"\x60\xff\xfe", UShort(0xFFFE)),
    (b"\x43", UInt(0)),
    (b"\x52\xff", UInt(255)),
    (b"\x70\x00\x00\x01\x00", UInt(256)),
    (b"\x70\xff\xff\xff\xff", UInt(2**32 - 1)),
    (b"\x44", ULong(0)),
    (b"\x53\x14", ULong(0x14)),
    (b"\x80\x00\x00\x00\x00\x00\x00\x01\x00", ULong(256)),
    (b"\x80\xff\xff\xff\xff\xff\xff\xff\xff", ULong(2**64 - 1)),
    (b"\x51\x80", Byte(-128)),
    (b"\x61\x80\x00", Short(-32768)),
    (b"\x54\xff", Int(-1)),
    (b"\x71\x80\x00\x00\x00", Int(-(2**31))),
    (b"\x55\x80", -128),
    (b"\x81\x00\x00\x00\x00\x00\x00\x00\x80", 128),
    (b"\x81\x80\x00\x00\x00\x00\x00\x00\x00", -(2**63)),
    (b"\x72\x3f\xc0\x00\x00", Float(1.5)),
    (b"\x82\xbf\xf8\x00\x00\x00\x00\x00\x00", -1.5),
    (b"\x82\x7f\xf0\x00\x00\x00\x00\x00\x00", math.inf),
    (b"\x74\x01\x02\x03\x04", Decimal32(b"\x01\x02\x03\x04")),
    (b"\x84" + ID[:8], Decimal64(ID[:8])),
    (b"\x94" + ID, Decimal128(ID)),
    (b"\x73\x00\x01\xf6\x00", Char("\U0001f600")),
    (bytes.fromhex("830000013167adb8a1"), Timestamp(1311704463521)),
    (b"\x83\xff\xff\xff\xff\xff\xff\xff\xff", Timestamp(-1)),
    (b"\x98" + ID, Uuid(ID)),
    (b"\xa0\x02\xff\x00", b"\xff\x00"),
    (b"\xb0\x00\x00\x01\x00" + b"b" * 256, b"b" * 256),
    (b"\xa1\x1eHello Glorious Messaging World", "Hello Glorious Messaging World"),
    (b"\xa1\x03\xe2\x82\xac", "€"),
    (b"\xb1\x00\x00\x01\x00" + b"s" * 256, "s" * 256),
    (b"\xa3\x03URL", Symbol("URL")),
    (b"\xb3\x00\x00\x01\x00" + b"y" * 256, Symbol("y" * 256)),
    (b"\x45", []),
    (b"\xc0\x04\x03\x40\x41\x43", [None, True, UInt(0)]),
    (b"\xd0\x00\x00\x01\x04\x00\x00\x01\x00" + b"\x40" * 256, [None] * 256),
    (b"\xc1\x01\x00", {}),
    (b"\xc1\x07\x02\xa3\x01a\xa1\x01b", {Symbol("a"): "b"}),
    (b"\xe0\x08\x02\xa3\x01a\x03xyz", Array(codes.SYMBOL_8, (Symbol("a"), Symbol("xyz")))),
    (b"\xe0\x02\x00\x40", Array(codes.NULL)),
    (b"\xe0\x02\x03\x41", Array(codes.TRUE, (True, True, True))),
    (
        b"\xe0\x0a\x02\xe0\x02\x00\x43\x04\x02\x50\x01\x02",
        Array(codes.ARRAY_8, (Array(codes.UINT_0), Array(codes.UBYTE, (UByte(1), UByte(2))))),
    ),
    (b"\xe0\x05\x02\x00\x53\x24\x45", Array(codes.LIST_0, ([], []), (ULong(0x24),))),
    (b"\x00\xa1\x03URL\xa1\x1ehttp://example.org/hello-world", Described("URL", "http://example.org/hello-world")),
    (b"\x00\x00\x53\x01\x53\x02\x45", Described(Described(ULong(1), ULong(2)), [])),
]

LONGER: list[tuple[bytes, object]] = [
    (b"\x56\x00", False),
    (b"\x56\x01", True),
    (b"\x52\x00", UInt(0)),
    (b"\x70\x00\x00\x00\x05", UInt(5)),
    (b"\x53\x00", ULong(0)),
    (b"\x80\x00\x00\x00\x00\x00\x00\x00\x05", ULong(5)),
    (b"\x71\xff\xff\xff\xff", Int(-1)),
    (b"\x81\xff\xff\xff\xff\xff\xff\xff\xff", -1),
    (b"\xb0\x00\x00\x00\x01x", b"x"),
    (b"\xb1\x00\x00\x00\x01x", "x"),
    (b"\xb3\x00\x00\x00\x01x", Symbol("x")),
    (b"\xc0\x01\x00", []),
    (b"\xd0\x00\x00\x00\x05\x00\x00\x00\x01\x40", [None]),
    (b"\xd1\x00\x00\x00\x06\x00\x00\x00\x02\x43\x40", {UInt(0): None}),
]

UNKNOWN_CODES: list[bytes] = [
    b"",
    b"\x01",
    b"\x3f",
    b"\x46",
    b"\x4f\x00",
    b"\x57\x00",
    b"\x62\x00\x00",
    b"\x75\x00\x00\x00\x00",
    b"\x85" + bytes(8),
    b"\x95" + bytes(16),
    b"\xa2\x00",
    b"\xb2\x00\x00\x00\x00",
    b"\xc2\x01\x00",
    b"\xd2\x00\x00\x00\x04\x00\x00\x00\x00",
    b"\xe1\x02\x00\x40",
    b"\xf1" + bytes(8),
    b"\xff",
]

MALFORMED: list[bytes] = [
    b"\x56\x02",  # a boolean that is neither
    b"\x73\x00\x11\x00\x00",  # beyond Unicode
    b"\x73\x00\x00\xd8\x00",  # a surrogate
    b"\xa1\x01\xff",  # no UTF-8
    b"\xa1\x03\xed\xa0\x80",  # a surrogate in UTF-8
    b"\xa1\x02\xc0\x80",  # overlong
    b"\xa3\x01\x80",  # no ASCII
    b"\xc0\x00",  # no room for the count
    b"\xd0\x00\x00\x00\x03\x00\x00\x00",
    b"\xc0\x02\x00\x40",  # more octets than values
    b"\xc0\x02\x02\x40",  # fewer
    b"\xc0\x03\x02\x40\xa1",  # a value that reaches beyond its list
    b"\xc1\x02\x01\x40",  # a key without a value
    b"\xc1\x05\x04\x43\x40\x43\x40",  # a key twice
    b"\xc1\x06\x04\x43\x40\x52\x00\x40",  # the same in another form
    b"\xc1\x05\x04\x45\x40\x45\x40",  # a list as a key, twice
    b"\xe0\x01\x00",  # no constructor
    b"\xe0\x02\x01\x50",  # an element that is not there
    b"\xe0\x03\x00\x50\x01",  # one too many
    b"\xe0\x03\x01\x50",
    b"\xe0\x04\x01\x00\x53\x24",  # a descriptor and no constructor
    b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xb0\xff\xff\xff\xff",
]


@pytest.mark.parametrize(("octets", "value"), SHORTEST + LONGER)
def test_every_form_is_decoded(octets: bytes, value: object) -> None:
    decoded, end = decode_value(b"??" + octets + b"beyond", 2)
    assert same(decoded, value)
    assert end == 2 + len(octets)
    assert skip_value(b"??" + octets + b"beyond", 2, 2 + len(octets)) == end


@pytest.mark.parametrize(("octets", "value"), SHORTEST)
def test_every_type_is_encoded_in_its_shortest_form(octets: bytes, value: object) -> None:
    assert encode_value(value) == octets


@pytest.mark.parametrize(("octets", "value"), SHORTEST + LONGER)
def test_every_form_cut_anywhere_is_refused(octets: bytes, value: object) -> None:
    for size in range(len(octets)):
        with pytest.raises(DecodeError):
            decode_value(octets[:size])
        with pytest.raises(DecodeError):
            decode_value(octets, 0, size)
        with pytest.raises(DecodeError):
            skip_value(octets, 0, size)


def test_the_book_of_the_specification() -> None:
    title = b"\xa1\x15AMQP for & by Dummies"
    authors = b"\xe0\x25\x02\xa1\x0eRob J. Godfrey\x13Rafael H. Schloming"
    body = b"\x03" + title + authors + b"\x40"
    octets = b"\x00\xa3\x11example:book:list\xc0" + bytes([len(body)]) + body
    names = Array(codes.STRING_8, ("Rob J. Godfrey", "Rafael H. Schloming"))
    book = Described(Symbol("example:book:list"), ["AMQP for & by Dummies", names, None])
    assert len(body) == 0x40
    assert same(decode_value(octets), (book, len(octets)))
    assert encode_value(book) == octets


@pytest.mark.parametrize("octets", UNKNOWN_CODES)
def test_unknown_format_codes_are_refused(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_value(octets)


@pytest.mark.parametrize("octets", MALFORMED)
def test_malformed_values_are_refused(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_value(octets)


@pytest.mark.parametrize("code", [codes.NULL, codes.TRUE, codes.FALSE, codes.UINT_0, codes.ULONG_0, codes.LIST_0])
def test_arrays_of_nothing_are_limited_by_their_count(code: int) -> None:
    def array_of(count: int) -> bytes:
        return b"\xf0\x00\x00\x00\x05" + count.to_bytes(4, "big") + bytes([code])

    for count in (MAX_VALUES, 2**31, 2**32 - 1):
        with pytest.raises(DecodeError):
            decode_value(array_of(count))
    decoded, _ = decode_value(array_of(1000))
    assert isinstance(decoded, Array)
    assert len(decoded.items) == 1000


def test_nested_arrays_of_nothing_share_one_limit() -> None:
    inner = b"\x00\x00\x00\x05" + (10_000).to_bytes(4, "big") + b"\x40"
    octets = b"\xf0" + (4 + 1 + 10 * len(inner)).to_bytes(4, "big") + (10).to_bytes(4, "big") + b"\xf0" + inner * 10
    with pytest.raises(DecodeError):
        decode_value(octets)
    decoded, _ = decode_value(octets, max_values=200_000)
    assert isinstance(decoded, Array)


def test_the_number_of_values_is_limited() -> None:
    count = MAX_VALUES
    octets = b"\xd0" + (4 + count).to_bytes(4, "big") + count.to_bytes(4, "big") + b"\x40" * count
    with pytest.raises(DecodeError):
        decode_value(octets)
    decoded, _ = decode_value(octets, max_values=count + 1)
    assert decoded == [None] * count


def lists_nested(depth: int) -> bytes:
    octets = b"\x45"
    for _ in range(depth - 1):
        octets = b"\xd0" + (4 + len(octets)).to_bytes(4, "big") + b"\x00\x00\x00\x01" + octets
    return octets


@given(st.lists(values, min_size=1, max_size=6), st.integers(1, 4))
def test_described_values_alike_are_decoded_as_each_is_alone(some: list[object], repeats: int) -> None:
    described = [Described(UInt(index & 1), value) for index, value in enumerate(some) for _ in range(repeats)]
    octets = encode_value(dict(enumerate(described)))
    decoded, end = decode_value(octets)
    assert end == len(octets)
    assert isinstance(decoded, dict)
    alone = [decode_value(encode_value(one))[0] for one in described]
    assert all(same(one, other) for one, other in zip(decoded.values(), alone, strict=True))


def test_described_values_alike_count_as_others_and_end_where_their_map_ends() -> None:
    state = Described(ULong(0x24), [True, True])
    octets = encode_value({b"1": state, b"2": state, b"3": state})
    # The map; for each delivery its tag, its state, a descriptor, a list and two booleans.
    count = 1 + 3 * (1 + 1 + 1 + 3)
    assert decode_value(octets, max_values=count)[0] == {b"1": state, b"2": state, b"3": state}
    with pytest.raises(DecodeError, match="more values"):
        decode_value(octets, max_values=count - 1)
    assert octets[0] == codes.MAP_8
    for size in range(octets[1]):
        with pytest.raises(DecodeError):
            decode_value(bytes([codes.MAP_8, size]) + octets[2:])


@pytest.mark.parametrize(
    "octets",
    [
        lists_nested(5000),
        b"\x00" * 5000,
        b"\x00\x44" * 5000 + b"\x40",
        b"\xf0\x00\x00\x27\x20\x00\x00\x00\x01" + b"\x00\x44" * 5000 + b"\x40",
        b"\xe0\xfe\x01" * 84,
    ],
)
def test_depth_is_limited(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_value(octets)


@pytest.mark.parametrize("octets", [b"\x00" * 5000, b"\x00\x44" * 5000 + b"\x40"])
def test_depth_is_limited_in_skipping(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        skip_value(octets, 0, len(octets))


def test_the_encoder_stops_where_the_decoder_does() -> None:
    value: object = [None]
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert same(decode_value(encode_value(value))[0], value)
    with pytest.raises(EncodeError):
        encode_value([value])
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(EncodeError):
        encode_value(endless)


@pytest.mark.parametrize(
    "value",
    [
        UByte(256),
        UByte(-1),
        UShort(2**16),
        UInt(2**32),
        UInt(-1),
        ULong(2**64),
        ULong(-1),
        Byte(128),
        Short(2**15),
        Int(2**31),
        2**63,
        Timestamp(2**63),
        Float(1e39),
        Float(-3.4028235677973366e38),
        Symbol("é"),
        "\ud800",
        Char(""),
        Char("ab"),
        Char("\udfff"),
        Uuid(b"short"),
        Decimal32(b"12345"),
        object(),
        {1, 2},
        [object()],
        Array(0x4F),
        Array(codes.UBYTE, (256,)),
        Array(codes.UBYTE, (True,)),
        Array(codes.SMALL_UINT, (300,)),
        Array(codes.STRING_8, ("x" * 256,)),
        Array(codes.STRING_8, (b"x",)),
        Array(codes.TRUE, (False,)),
        Array(codes.LIST_8, ([None] * 300,)),
        Array(codes.ARRAY_8, ([],)),
        Array(codes.UUID, (b"x",)),
    ],
)
def test_values_without_an_encoding_are_refused(value: object) -> None:
    with pytest.raises(EncodeError):
        encode_value(value)


def test_keys_that_python_cannot_tell_apart_stay_apart() -> None:
    pairs = (("a", 1), (Symbol("a"), 2), (1, 3), (UInt(1), 4), (True, 5), (1.0, 6), ([1], 7))
    decoded, _ = decode_value(encode_value(OddMap(pairs)))
    assert same(decoded, OddMap(pairs))


def test_octets_of_every_kind_are_binary() -> None:
    for value in (bytearray(b"xy"), memoryview(b"xy")):
        assert encode_value(value) == b"\xa0\x02xy"


def test_tuples_are_lists() -> None:
    assert encode_value((None, ())) == b"\xc0\x03\x02\x40\x45"


def test_wrappers_are_what_they_wrap() -> None:
    assert UInt(5) == 5
    assert Symbol("amqp:not-found") == "amqp:not-found"
    assert str(Uuid(ID)) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


@given(values)
def test_values_survive_a_round_trip(value: object) -> None:
    octets = encode_value(value)
    decoded, end = decode_value(octets)
    assert end == len(octets)
    assert skip_value(octets, 0, end) == end
    assert same(decoded, value)
    assert encode_value(decoded) == octets


@given(values)
def test_every_cut_of_a_value_is_refused(value: object) -> None:
    octets = encode_value(value)
    for size in range(0, len(octets), max(1, len(octets) // 60)):
        with pytest.raises(DecodeError):
            decode_value(octets[:size])
        with pytest.raises(DecodeError):
            skip_value(octets, 0, size)


def only_decode_errors(octets: bytes) -> None:
    """Whatever decodes at all is encodable and skippable; all else raises DecodeError."""
    try:
        value, end = decode_value(octets)
    except DecodeError:
        return
    assert skip_value(octets, 0, end) == end
    again, _ = decode_value(encode_value(value))
    assert same(again, value)


@given(st.binary(max_size=80))
@example(b"\xe0\x00")
def test_any_octets_give_a_value_or_a_decode_error(octets: bytes) -> None:
    only_decode_errors(octets)


@given(st.lists(st.sampled_from([bytes([code]) for code in [0, *sorted(codes.ALL)]]) | st.binary(max_size=3)))
def test_any_codes_give_a_value_or_a_decode_error(parts: list[bytes]) -> None:
    only_decode_errors(b"".join(parts))


@given(values, st.integers(0), st.integers(0, 255))
def test_any_changed_octet_gives_a_value_or_a_decode_error(value: object, place: int, octet: int) -> None:
    octets = bytearray(encode_value(value))
    octets[place % len(octets)] = octet
    only_decode_errors(bytes(octets))


@given(values, st.integers(0, 300), st.integers(0, 300))
def test_skipping_any_range_stays_within_it(value: object, start: int, size: int) -> None:
    octets = encode_value(value)
    end = min(start + size, len(octets))
    try:
        after = skip_value(octets, start, end)
    except DecodeError:
        return
    assert start < after <= end


def test_every_primitive_code_has_a_test_of_its_arrays() -> None:
    compound = {codes.LIST_8, codes.LIST_32, codes.MAP_8, codes.MAP_32, codes.ARRAY_8, codes.ARRAY_32}
    assert set(ELEMENTS) == codes.ALL - compound
