import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.amqp010.strategies import maps, values
from waybill.wire.amqp010 import codes
from waybill.wire.amqp010.encode import encode_map
from waybill.wire.amqp010.errors import DecodeError, EncodeError
from waybill.wire.amqp010.octets import Reader
from waybill.wire.amqp010.types import Array, Typed
from waybill.wire.amqp010.value_check import check_map
from waybill.wire.amqp010.values import MAX_DEPTH, Decoder
from waybill.wire.amqp10.types import Char, Int, Symbol, Timestamp, UByte, Uuid


def decode_map(octets: bytes) -> dict[str, object]:
    decoder = Decoder(octets, 0, len(octets))
    found = decoder.map(1)
    decoder.reader.finish()
    return found


def checks(octets: bytes) -> bool:
    reader = Reader(octets, 0, len(octets))
    try:
        check_map(reader)
        reader.finish()
    except DecodeError:
        return False
    return True


def a_map(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def one(code: int, value: bytes) -> bytes:
    """A map with the key k."""
    return a_map(b"\0\0\0\1\1k" + bytes([code]) + value)


@given(maps)
def test_a_map_survives_a_round_trip_and_the_check(mapping: dict[str, object]) -> None:
    octets = encode_map(mapping)
    found = decode_map(octets)
    assert found == mapping
    assert encode_map(found) == octets
    assert checks(octets)


@given(values, values)
def test_a_value_keeps_its_type(value: object, other: object) -> None:
    found = decode_map(encode_map({"a": value, "b": [other]}))
    assert type(found["a"]) is type(value)
    assert found["b"] == [other]


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        (one(codes.BOOLEAN, b"\1"), True),
        (one(codes.BOOLEAN, b"\0"), False),
        (one(codes.BIT, b""), True),
        (one(codes.VOID, b""), None),
        (one(codes.UINT8, b"\xff"), UByte(255)),
        (one(codes.INT32, b"\xff\xff\xff\xfe"), Int(-2)),
        (one(codes.STR8, b"\2hi"), "hi"),
        (one(codes.STR8_LATIN, b"\1\xa4"), "€"),
        (one(codes.STR16_LATIN, b"\0\1\xe4"), "ä"),
        (one(codes.STR8_UTF16, b"\2\0h"), "h"),
        (one(codes.STR16_UTF16, b"\0\2\0h"), "h"),
        (one(codes.VBIN8, b"\1\xff"), b"\xff"),
        (one(codes.VBIN16, b"\0\1\xff"), b"\xff"),
        (one(codes.CHAR_UTF32, b"\0\1\xf6\0"), Char("😀")),
        (one(codes.DEC32, b"\2\0\0\0\5"), Typed(codes.DEC32, b"\2\0\0\0\5")),
        (one(codes.UUID, b"u" * 16), Uuid(b"u" * 16)),
        (one(0x9A, b"\0\3abc"), Typed(0x9A, b"abc")),
        (one(0xDF, b"123456789"), Typed(0xDF, b"123456789")),
        (one(codes.MAP, a_map(b"")), {}),
        (one(codes.LIST, a_map(b"")), []),
        (one(codes.ARRAY, a_map(b"")), Array(codes.VOID)),
        (one(codes.ARRAY, a_map(b"\x02\0\0\0\2\1\2")), Array(codes.UINT8, (1, 2))),
        (one(codes.STRUCT32, a_map(b"\x7f\x01rest")), Typed(codes.STRUCT32, b"\x7f\x01rest")),
    ],
)
def test_every_type_is_decoded(octets: bytes, value: object) -> None:
    assert decode_map(octets) == {"k": value}
    assert checks(octets)


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\4",
        a_map(b"\0\0\0\1"),
        a_map(b"\0\0\0\0more"),
        a_map(b"\xff\xff\xff\xff\1k\xf0"),
        a_map(b"\0\0\0\1\1k"),
        one(codes.STR8, b"\5hi"),
        one(codes.STR8, b"\1\xff"),
        one(codes.STR16, b"\0\1\xff"),
        one(codes.UINT64, b"\0"),
        one(0xB0, b"\0"),
        one(0xE0, b"\0"),
        one(codes.CHAR_UTF32, b"\0\0\xd8\0"),
        one(codes.CHAR_UTF32, b"\0\x11\0\0"),
        one(codes.LIST, a_map(b"\0\0\0\2\xf0")),
        one(codes.ARRAY, a_map(b"\xf0\xff\xff\xff\xff")),
        one(codes.ARRAY, a_map(b"\xf0\x00\x01\xff\xff")),
        one(codes.STRUCT32, a_map(b"\x7f")),
        one(codes.VOID, b"more"),
    ],
)
def test_malformed_maps_are_refused(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_map(octets)
    assert not checks(octets)


def test_two_equal_keys_are_refused() -> None:
    with pytest.raises(DecodeError, match="two keys"):
        decode_map(a_map(b"\0\0\0\2\1k\xf0\1k\xf0"))


def test_depth_is_limited() -> None:
    def nested(depth: int) -> bytes:
        octets = a_map(b"\0\0\0\0")
        for _ in range(depth - 1):
            octets = one(codes.MAP, octets)
        return octets

    decode_map(nested(MAX_DEPTH))
    assert checks(nested(MAX_DEPTH))
    with pytest.raises(DecodeError, match="deeper"):
        decode_map(nested(MAX_DEPTH + 1))
    assert not checks(nested(MAX_DEPTH + 1))
    value: object = {}
    for _ in range(MAX_DEPTH):
        value = {"k": value}
    with pytest.raises(EncodeError, match="deeper"):
        encode_map({"k": value})


@given(st.binary(max_size=60))
def test_noise_raises_nothing_else(octets: bytes) -> None:
    try:
        decode_map(a_map(octets))
    except DecodeError:
        return
    assert checks(a_map(octets))


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, object(), "\ud800", "x" * 65536, UByte(256), Typed(codes.UINT16, b"1"), Timestamp(1)],
)
def test_what_has_no_encoding_is_refused(value: object) -> None:
    with pytest.raises(EncodeError):
        encode_map({"k": value})


def test_keys_are_short_strings() -> None:
    with pytest.raises(EncodeError):
        encode_map({"k" * 256: 1})
    with pytest.raises(EncodeError):
        encode_map({1: 1})  # type: ignore[dict-item]


def test_names_of_other_protocols_are_strings() -> None:
    assert decode_map(encode_map({"k": Symbol("s"), "t": (1, "a")})) == {"k": "s", "t": [1, "a"]}
