"""Values of 0-9-1's field tables as values of 1.0, and back, type by type.

| field | 1.0 | | field | 1.0 |
|---|---|---|---|---|
| t | boolean | | S | string; binary if it is no UTF-8 |
| b B s u I i l | byte ubyte short ushort int uint long | | x | binary |
| f d | float double | | A | list |
| T | timestamp | | F | map |
| D | decimal64 | | V | null |

1.0 has types that 0-9-1 lacks: `field_of` gives the nearest field for them, and says that it is not exact.
"""

import struct
from typing import Final

from waybill.wire.amqp091.errors import DecodeError
from waybill.wire.amqp091.field_table import MAX_DEPTH, MAX_VALUES, EncodedField
from waybill.wire.amqp091.octets import Reader
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

MAX_I64: Final = 2**63 - 1
MIN_I32: Final = -(2**31)
MAX_I32: Final = 2**31 - 1
TIMESTAMP_FIELD: Final = Symbol("amqp-0-9-1:timestamp")
"""Describes the seconds, a ulong, of a timestamp of 0-9-1 that milliseconds of 64 bits cannot hold."""

_DECIMAL64_BIAS: Final = 398
_DECIMAL64_COEFFICIENT_BITS: Final = 53
_SHORT_STRING_MAX: Final = 255
_NO_FIELD: Final = EncodedField(ord("V"), b"")


class FieldReader:
    """Reads one table. Names that are not UTF-8 become bytes."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.reader = Reader(data, offset, len(data))
        self.values_left = MAX_VALUES

    def table(self, depth: int = 1) -> list[tuple[object, object]]:
        """The pairs of a table, in order. Raises DecodeError."""
        reader = self.reader
        outer_end = self._enter(depth)
        pairs: list[tuple[object, object]] = []
        while reader.offset < reader.end:
            name = text_or_octets(reader.octets(reader.u8()))
            pairs.append((name, self._value(depth)))
        reader.end = outer_end
        return pairs

    def _array(self, depth: int) -> list[object]:
        reader = self.reader
        outer_end = self._enter(depth)
        values: list[object] = []
        while reader.offset < reader.end:
            values.append(self._value(depth))
        reader.end = outer_end
        return values

    def _enter(self, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise DecodeError(f"tables nested deeper than {MAX_DEPTH}")
        reader = self.reader
        size = reader.u32()
        outer_end = reader.end
        if size > outer_end - reader.offset:
            raise DecodeError("a table is cut off")
        reader.end = reader.offset + size
        return outer_end

    def _value(self, depth: int) -> object:  # noqa: C901, PLR0911, PLR0912 - one branch a type
        self.values_left -= 1
        if self.values_left < 0:
            raise DecodeError(f"a table with more than {MAX_VALUES} values")
        reader = self.reader
        kind = chr(reader.u8())
        if kind == "S":
            return text_or_octets(reader.long_octets())
        if kind == "I":
            return Int(reader.s32())
        if kind == "l":
            return int(reader.s64())
        if kind == "t":
            return reader.u8() != 0
        if kind == "F":
            return dict(self.table(depth + 1))
        if kind == "A":
            return self._array(depth + 1)
        if kind == "T":
            return timestamp_of(reader.u64())
        if kind == "d":
            return reader.f64()
        if kind == "f":
            return Float(reader.f32())
        if kind == "V":
            return None
        if kind == "x":
            return reader.long_octets()
        if kind == "D":
            scale = reader.u8()
            return _decimal64(scale, reader.s32())
        if kind == "b":
            return Byte(reader.s8())
        if kind == "B":
            return UByte(reader.u8())
        if kind == "s":
            return Short(reader.s16())
        if kind == "u":
            return UShort(reader.u16())
        if kind == "i":
            return UInt(reader.u32())
        raise DecodeError(f"unknown field type {kind!r}")


def text_or_octets(octets: bytes) -> object:
    """Text if it is UTF-8, else the octets themselves."""
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return octets


def timestamp_of(seconds: int) -> object:
    """A timestamp of 0-9-1."""
    if seconds * 1000 <= MAX_I64:
        return Timestamp(seconds * 1000)
    return Described(TIMESTAMP_FIELD, ULong(seconds))


def _decimal64(scale: int, unscaled: int) -> Decimal64:
    """As IEEE 754 has it with a binary coefficient: sign 1 bit, exponent 10 bits, coefficient 53 bits."""
    sign = 1 << 63 if unscaled < 0 else 0
    number = sign | (_DECIMAL64_BIAS - scale) << _DECIMAL64_COEFFICIENT_BITS | abs(unscaled)
    return Decimal64(number.to_bytes(8, "big"))


def field_of(value: object, depth: int = 1) -> tuple[EncodedField, bool]:
    """The nearest field of 0-9-1, and whether reading it gives `value` again. Never raises."""
    for kind, codes in _INTEGERS.items():
        if type(value) is kind and isinstance(value, int):
            code, octet_count, signed = codes
            return EncodedField(code, int(value).to_bytes(octet_count, "big", signed=signed)), True
    if isinstance(value, (str, bytes)) or value is None or isinstance(value, (bool, int, float)):
        return _simple(value)
    return _compound(value, depth)


_INTEGERS: Final[dict[type, tuple[int, int, bool]]] = {
    int: (ord("l"), 8, True),
    Byte: (ord("b"), 1, True),
    UByte: (ord("B"), 1, False),
    Short: (ord("s"), 2, True),
    UShort: (ord("u"), 2, False),
    Int: (ord("I"), 4, True),
    UInt: (ord("i"), 4, False),
}


def _simple(value: object) -> tuple[EncodedField, bool]:
    if value is None:
        return _NO_FIELD, True
    # Before it is known to be a float: compiled code would unbox it, and forget its type.
    is_single = type(value) is Float
    if isinstance(value, bool):
        return EncodedField(ord("t"), b"\1" if value else b"\0"), True
    if isinstance(value, str):
        return _long(ord("S"), value.encode("utf-8", "surrogateescape")), not isinstance(value, (Symbol, Char))
    if isinstance(value, bytes):
        return _octets(value)
    if type(value) is Timestamp:
        return _timestamp(int(value))
    if isinstance(value, float):
        if is_single:
            return EncodedField(ord("f"), struct.pack(">f", float(value))), True
        return EncodedField(ord("d"), struct.pack(">d", value)), True
    # Only a ulong is left.
    number = int(value) if isinstance(value, int) else 0
    if number <= MAX_I64:
        return EncodedField(ord("l"), number.to_bytes(8, "big")), False
    return _long(ord("S"), str(number).encode()), False


def _long(kind: int, octets: bytes) -> EncodedField:
    return EncodedField(kind, len(octets).to_bytes(4, "big") + octets)


def _timestamp(milliseconds: int) -> tuple[EncodedField, bool]:
    if milliseconds < 0:
        return EncodedField(ord("l"), milliseconds.to_bytes(8, "big", signed=True)), False
    return EncodedField(ord("T"), (milliseconds // 1000).to_bytes(8, "big")), milliseconds % 1000 == 0


def _octets(value: bytes) -> tuple[EncodedField, bool]:
    if isinstance(value, Uuid):
        return _long(ord("S"), f"urn:uuid:{value}".encode()), False
    if isinstance(value, Decimal64):
        number = int.from_bytes(value, "big")
        coefficient = number & ((1 << _DECIMAL64_COEFFICIENT_BITS) - 1)
        scale = _DECIMAL64_BIAS - (number >> _DECIMAL64_COEFFICIENT_BITS & 0x3FF)
        unscaled = -coefficient if number >> 63 else coefficient
        if MIN_I32 <= unscaled <= MAX_I32 and 0 <= scale <= _SHORT_STRING_MAX:
            # As plain octets: mypyc 2.4 compares two objects of such a class by identity.
            is_exact = bytes(_decimal64(scale, unscaled)) == bytes(value)
            return EncodedField(ord("D"), bytes([scale]) + unscaled.to_bytes(4, "big", signed=True)), is_exact
    return _long(ord("x"), bytes(value)), not isinstance(value, (Decimal32, Decimal64, Decimal128))


def _compound(value: object, depth: int) -> tuple[EncodedField, bool]:
    if isinstance(value, Described):
        if value.descriptor == TIMESTAMP_FIELD and type(value.value) is ULong:
            return EncodedField(ord("T"), value.value.to_bytes(8, "big")), True
        return field_of(value.value, depth + 1)[0], False
    if depth >= MAX_DEPTH:
        return _NO_FIELD, False
    if isinstance(value, dict):
        body, is_exact = _table_body(list(value.items()), depth)
        return _long(ord("F"), body), is_exact
    if isinstance(value, OddMap):
        return _long(ord("F"), _table_body(list(value.pairs), depth)[0]), False
    items = list(value.items) if isinstance(value, Array) else value
    if not isinstance(items, list):
        return _NO_FIELD, False
    is_exact = not isinstance(value, Array)
    array = bytearray()
    for item in items:
        field, item_is_exact = field_of(item, depth + 1)
        is_exact = is_exact and item_is_exact
        array.append(field.kind)
        array += field.octets
    return _long(ord("A"), bytes(array)), is_exact


def _table_body(pairs: list[tuple[object, object]], depth: int) -> tuple[bytes, bool]:
    body = bytearray()
    is_exact = True
    for key, value in pairs:
        name = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else str(key).encode()
        if type(key) is bytes:
            name = key
        is_exact = is_exact and (type(key) is str or (type(key) is bytes and text_or_octets(key) is key))
        if len(name) > _SHORT_STRING_MAX:
            is_exact = False
            continue
        field, value_is_exact = field_of(value, depth + 1)
        is_exact = is_exact and value_is_exact
        body.append(len(name))
        body += name
        body.append(field.kind)
        body += field.octets
    return bytes(body), is_exact


def read_back(field: EncodedField) -> object:
    """The value that a reader of the field gets."""
    table = b"\0" + bytes([field.kind]) + field.octets
    return FieldReader(len(table).to_bytes(4, "big") + table, 0).table()[0][1]
