import math
import struct
from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp091.strategies import tables
from waybill.wire.amqp091.errors import DecodeError, EncodeError
from waybill.wire.amqp091.field_table import MAX_DEPTH, MAX_VALUES, RawTimestamp, decode_table, encode_table


def table_of(*fields: bytes) -> bytes:
    body = b"".join(fields)
    return len(body).to_bytes(4, "big") + body


def decode_value(octets: bytes) -> object:
    table, end = decode_table(table_of(b"\x01k" + octets), 0)
    assert end == 6 + len(octets)
    return table["k"]


EVERY_TYPE = [
    (b"t\x00", False),
    (b"t\x01", True),
    (b"t\x02", True),
    (b"b\x80", -128),
    (b"B\x80", 128),
    (b"s\x80\x00", -32768),
    (b"u\x80\x00", 32768),
    (b"I\x80\x00\x00\x00", -(2**31)),
    (b"i\x80\x00\x00\x00", 2**31),
    (b"l\x80\x00\x00\x00\x00\x00\x00\x00", -(2**63)),
    (b"l\x7f\xff\xff\xff\xff\xff\xff\xff", 2**63 - 1),
    (b"f\x3f\xc0\x00\x00", 1.5),
    (b"d\xbf\xf8\x00\x00\x00\x00\x00\x00", -1.5),
    (b"D\x02\x00\x00\x01\x3b", Decimal("3.15")),
    (b"D\x02\xff\xff\xfe\xc5", Decimal("-3.15")),
    (b"S\x00\x00\x00\x03\xe2\x82\xac", "€"),
    (b"S\x00\x00\x00\x02\xff\x00", "\udcff\0"),
    (b"x\x00\x00\x00\x02\xff\x00", b"\xff\x00"),
    (b"A\x00\x00\x00\x00", []),
    (b"A\x00\x00\x00\x04VVt\x01", [None, None, True]),
    (b"T\x00\x00\x00\x00\x65\x53\xf1\x00", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
    (b"T\x00\x00\x01\x8b\xcf\xe5\x68\x00", RawTimestamp(1_700_000_000_000)),
    (b"T\xff\xff\xff\xff\xff\xff\xff\xff", RawTimestamp(2**64 - 1)),
    (b"F\x00\x00\x00\x00", {}),
    (b"F\x00\x00\x00\x03\x01aV", {"a": None}),
    (b"V", None),
]


@pytest.mark.parametrize(("octets", "value"), EVERY_TYPE)
def test_every_type_is_decoded(octets: bytes, value: object) -> None:
    decoded = decode_value(octets)
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(("octets", "value"), EVERY_TYPE)
def test_every_type_cut_anywhere_is_refused(octets: bytes, value: object) -> None:
    for size in range(len(octets)):
        with pytest.raises(DecodeError):
            decode_value(octets[:size])
        with pytest.raises(DecodeError):
            decode_table(table_of(b"\x01k" + octets)[: 6 + size], 0)


def test_a_table_with_all_types_at_once() -> None:
    fields = [bytes([1, 97 + index]) + octets for index, (octets, _) in enumerate(EVERY_TYPE)]
    table, _ = decode_table(b"\x00\x00" + table_of(*fields) + b"beyond", 2)
    assert list(table.values()) == [value for _, value in EVERY_TYPE]


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (True, b"t\x01"),
        (1, b"I\x00\x00\x00\x01"),
        (-(2**31), b"I\x80\x00\x00\x00"),
        (2**31, b"l\x00\x00\x00\x00\x80\x00\x00\x00"),
        (-(2**31) - 1, b"l\xff\xff\xff\xff\x7f\xff\xff\xff"),
        (2**63 - 1, b"l\x7f\xff\xff\xff\xff\xff\xff\xff"),
        (1.5, b"d\x3f\xf8\x00\x00\x00\x00\x00\x00"),
        ("a", b"S\x00\x00\x00\x01a"),
        ("\udcff", b"S\x00\x00\x00\x01\xff"),
        (b"a", b"x\x00\x00\x00\x01a"),
        (bytearray(b"a"), b"x\x00\x00\x00\x01a"),
        (memoryview(b"a"), b"x\x00\x00\x00\x01a"),
        (None, b"V"),
        (["a", 1], b"A\x00\x00\x00\x0bS\x00\x00\x00\x01aI\x00\x00\x00\x01"),
        (("a",), b"A\x00\x00\x00\x06S\x00\x00\x00\x01a"),
        (OrderedDict(a=None), b"F\x00\x00\x00\x03\x01aV"),
        (Decimal("-3.15"), b"D\x02\xff\xff\xfe\xc5"),
        (Decimal("1E3"), b"D\x00\x00\x00\x03\xe8"),
        (Decimal("0E999"), b"D\x00\x00\x00\x00\x00"),
        (datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=UTC), b"T\x00\x00\x00\x00\x00\x00\x00\x01"),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), b"T\x00\x00\x00\x00\x00\x00\x00\x00"),
        (datetime(1970, 1, 1, 0, 1), b"T\x00\x00\x00\x00\x00\x00\x00\x3c"),  # noqa: DTZ001 - naive means UTC
        (RawTimestamp(2**64 - 1), b"T\xff\xff\xff\xff\xff\xff\xff\xff"),
    ],
)
def test_values_are_encoded_as_clients_expect(value: object, octets: bytes) -> None:
    assert encode_table({"k": value}) == table_of(b"\x01k" + octets)


@given(tables)
def test_round_trip(table: dict[str, object]) -> None:
    encoded = encode_table(table)
    assert decode_table(b"xyz" + encoded + b"beyond", 3) == (table, 3 + len(encoded))
    assert encode_table(decode_table(encoded, 0)[0]) == encoded


def test_decimals_do_not_depend_on_the_context() -> None:
    with localcontext(prec=2):
        assert decode_value(b"D\x02\x7f\xff\xff\xff").as_tuple().exponent == -2  # type: ignore[attr-defined]
        assert decode_table(encode_table({"k": Decimal("21474836.47")}), 0)[0] == {"k": Decimal("21474836.47")}


def test_not_a_number_survives() -> None:
    decoded, _ = decode_table(encode_table({"n": math.nan}), 0)
    assert math.isnan(struct.unpack("d", struct.pack("d", decoded["n"]))[0])


def test_the_last_of_equal_names_stays() -> None:
    assert decode_table(table_of(b"\x01kB\x01", b"\x01kB\x02"), 0)[0] == {"k": 2}


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        object(),
        {1},
        {1: "a"},
        {"a" * 256: 1},
        {"é" * 128: 1},
        "\ud800",
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal(2**31),
        Decimal("1E10"),
        Decimal("1E999999"),
        Decimal("1E-256"),
        datetime(1969, 12, 31, tzinfo=UTC),
        RawTimestamp(2**64),
        RawTimestamp(-1),
        [[object()]],
    ],
)
def test_what_has_no_encoding_is_refused(value: object) -> None:
    with pytest.raises(EncodeError):
        encode_table({"k": value})


def test_only_mappings_are_tables() -> None:
    with pytest.raises(EncodeError):
        encode_table([("a", 1)])


@pytest.mark.parametrize("kind", sorted(set(range(256)) - set(b"tbBsuIilfdDSxATFV")))
def test_unknown_types_are_refused(kind: int) -> None:
    with pytest.raises(DecodeError, match="unknown field type"):
        decode_value(bytes([kind]) + bytes(16))


@pytest.mark.parametrize(
    "octets",
    [
        b"S\x00\x00\x00\x02a",  # one octet more than there is
        b"S\xff\xff\xff\xffa",  # -1 if it were signed
        b"x\x80\x00\x00\x00a",
        b"A\x00\x00\x00\x02V",
        b"A\xff\xff\xff\xffV",
        b"A\x00\x00\x00\x01I\x00\x00\x00\x01",  # a value across the end of its array
        b"F\x00\x00\x00\x01\x01aV",  # a name across the end of its table
        b"F\x00\x00\x00\x02\x01aV",  # a name without a value
        b"F\x00\x00\x00\x04\x01aV",
        b"F\xff\xff\xff\xf0\x01aV",
        b"VV",
        b"V\x05a",
    ],
)
def test_sizes_that_do_not_fit_are_refused(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_table(table_of(b"\x01k" + octets), 0)


def test_a_nested_table_cannot_take_octets_from_its_neighbour() -> None:
    inner = b"\x01kF\x00\x00\x00\x08\x01aS\x00\x00\x00\x05"
    with pytest.raises(DecodeError):
        decode_table(table_of(inner, b"\x03abcV"), 0)


@pytest.mark.parametrize("offset", [-1, -(2**62), 5, 2**62])
def test_offsets_outside_are_refused(offset: int) -> None:
    with pytest.raises(DecodeError):
        decode_table(b"\0\0\0\0", offset)


def nested(depth: int) -> bytes:
    octets = b"V"
    for _ in range(depth - 1):
        octets = b"A" + len(octets).to_bytes(4, "big") + octets
    return table_of(b"\x01k" + octets)


def test_depth_is_limited_on_both_sides() -> None:
    deepest, _ = decode_table(nested(MAX_DEPTH), 0)
    assert decode_table(encode_table(deepest), 0)[0] == deepest
    with pytest.raises(DecodeError):
        decode_table(nested(MAX_DEPTH + 1), 0)
    with pytest.raises(DecodeError):
        decode_table(nested(20_000), 0)
    with pytest.raises(EncodeError):
        encode_table({"k": [deepest]})
    endless: dict[str, object] = {}
    endless["k"] = endless
    with pytest.raises(EncodeError):
        encode_table(endless)


def test_arrays_of_void_cannot_occupy_memory_without_end() -> None:
    full: list[object] = [None] * (MAX_VALUES - 1)
    assert decode_table(encode_table({"k": full}), 0)[0] == {"k": full}
    octets = b"A" + MAX_VALUES.to_bytes(4, "big") + b"V" * MAX_VALUES
    with pytest.raises(DecodeError):
        decode_value(octets)
    with pytest.raises(EncodeError):
        encode_table({"k": [*full, None]})


@given(st.binary(max_size=200))
def test_garbage_raises_decode_error_only(octets: bytes) -> None:
    for data in (octets, table_of(octets)):
        try:
            decode_table(data, 0)
        except DecodeError:
            continue


@given(tables, st.data())
def test_damage_raises_decode_error_only(table: dict[str, object], data: st.DataObject) -> None:
    octets = bytearray(encode_table(table))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_table(bytes(octets), 0)
    except DecodeError:
        return


@given(tables)
def test_a_table_cut_anywhere_is_refused(table: dict[str, object]) -> None:
    octets = encode_table(table)
    for size in range(len(octets)):
        with pytest.raises(DecodeError):
            decode_table(octets[:size], 0)
