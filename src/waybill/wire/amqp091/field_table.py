"""Field tables (0-9-1, 4.2.5.5) in the dialect that RabbitMQ and its clients speak (errata 3 and 4).

    field-table = long-uint size, *(shortstr name, octet type, value)
    field-array = long-uint size, *(octet type, value)

| type | value | Python |
|---|---|---|
| t | octet | bool |
| b B s u I i l | int of 8, u8, 16, u16, 32, u32, 64 bits | int |
| f d | IEEE 754 single, double | float |
| D | octet scale, signed long | Decimal |
| S | longstr | str |
| x | longstr | bytes |
| A | field-array | list |
| T | u64 Unix seconds | datetime in UTC, or RawTimestamp where datetime ends |
| F | field-table | dict |
| V | nothing | None |

A decimal is signed, as section 4.2.5.5 says in words and as clients write it, though the grammar says long-uint.
Tables come from peers: depth and number of values are limited, so that a small frame cannot occupy much memory or
the whole stack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from librt.strings import BytesWriter, write_f64_be
from mypy_extensions import i64

from waybill.wire.amqp091.errors import DecodeError, EncodeError, FrameError
from waybill.wire.amqp091.octets import (
    MAX_U64,
    Reader,
    text_octets,
    write_long_octets,
    write_short_string,
    write_unsigned,
)

MAX_DEPTH: Final = 32
"""The depth of nested tables and arrays, the outermost included."""

MAX_VALUES: Final = 65_536
"""The limit of values in a table, nested values included."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MAX_DATETIME_SECONDS: Final = 253_402_300_799
"""23:59:59 on the last day of the year 9999, where datetime ends."""

MAX_DECIMAL_SCALE: Final = 255
MIN_I32: Final = -(2**31)
MAX_I32: Final = 2**31 - 1
MIN_I64: Final = -(2**63)
MAX_I64: Final = 2**63 - 1

TYPE_BOOLEAN: Final = ord("t")
TYPE_S8: Final = ord("b")
TYPE_U8: Final = ord("B")
TYPE_S16: Final = ord("s")
TYPE_U16: Final = ord("u")
TYPE_S32: Final = ord("I")
TYPE_U32: Final = ord("i")
TYPE_S64: Final = ord("l")
TYPE_FLOAT: Final = ord("f")
TYPE_DOUBLE: Final = ord("d")
TYPE_DECIMAL: Final = ord("D")
TYPE_STRING: Final = ord("S")
TYPE_BYTES: Final = ord("x")
TYPE_ARRAY: Final = ord("A")
TYPE_TIMESTAMP: Final = ord("T")
TYPE_TABLE: Final = ord("F")
TYPE_VOID: Final = ord("V")


@dataclass(frozen=True)
class RawTimestamp:
    """A timestamp after the year 9999, as from clients that send milliseconds. `seconds`: Unix time, 64 bits."""

    seconds: int


@dataclass(frozen=True)
class EncodedField:
    """A value that is already encoded, to be written unchanged.

    `kind` is the octet of its type, `count` how many values it is, with those inside of it.
    """

    kind: int
    octets: bytes
    count: int = 1


def encode_table(table: object) -> bytes:
    """Encode a mapping of strings with its size in front. Raises EncodeError for other types, and beyond the limits."""
    if not isinstance(table, Mapping):
        raise EncodeError(f"a mapping is needed, not {type(table).__name__}")
    out = BytesWriter()
    _TableEncoder().write_table(out, table, 1)
    return out.getvalue()


def decode_table(data: bytes, offset: i64) -> tuple[dict[str, object], int]:
    """Decode the table at `offset`; the table and the offset after it. Raises DecodeError."""
    reader = Reader(data, offset, len(data))
    table = read_table(reader)
    return table, reader.offset


def read_table(reader: Reader) -> dict[str, object]:
    """Read a table. If a name is repeated, the last value counts. Raises DecodeError."""
    return _TableDecoder(reader).read_table(1)


def unix_seconds(value: object) -> int:
    """Seconds since 1970 of an int, datetime (naive: UTC) or RawTimestamp. Raises EncodeError."""
    seconds: int
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        seconds = (moment - EPOCH) // timedelta(seconds=1)
    elif isinstance(value, RawTimestamp):
        seconds = value.seconds
    elif isinstance(value, int):
        seconds = value
    else:
        raise EncodeError(f"a timestamp is needed, not {type(value).__name__}")
    if not 0 <= seconds <= MAX_U64:
        raise EncodeError(f"{seconds} is not a timestamp: they start in 1970 and have 64 bits")
    return seconds


class _TableDecoder:
    """One decoding: its reader, and the number of values that it may still create."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.values_left: i64 = MAX_VALUES

    def read_table(self, depth: i64) -> dict[str, object]:
        reader = self.reader
        outer_end = self.enter(depth)
        table: dict[str, object] = {}
        while reader.offset < reader.end:
            name = reader.short_string()
            table[name] = self.read_value(depth)
        reader.end = outer_end
        return table

    def read_array(self, depth: i64) -> list[object]:
        reader = self.reader
        outer_end = self.enter(depth)
        array: list[object] = []
        while reader.offset < reader.end:
            array.append(self.read_value(depth))
        reader.end = outer_end
        return array

    def enter(self, depth: i64) -> i64:
        """Confine the reader to the table or array that begins here. Returns the end to restore after it."""
        if depth > MAX_DEPTH:
            raise DecodeError(f"tables nested deeper than {MAX_DEPTH}")
        reader = self.reader
        size = reader.u32()
        outer_end = reader.end
        if size > outer_end - reader.offset:
            raise FrameError(f"a table of {size} octets in {outer_end - reader.offset}")
        reader.end = reader.offset + size
        return outer_end

    def read_value(self, depth: i64) -> object:  # noqa: C901, PLR0911, PLR0912 - one branch a type, most frequent first
        self.values_left -= 1
        if self.values_left < 0:
            raise DecodeError(f"a table with more than {MAX_VALUES} values")
        reader = self.reader
        kind = reader.u8()
        if kind == TYPE_STRING:
            return reader.long_string()
        if kind == TYPE_S32:
            return reader.s32()
        if kind == TYPE_S64:
            return reader.s64()
        if kind == TYPE_BOOLEAN:
            return reader.u8() != 0
        if kind == TYPE_TABLE:
            return self.read_table(depth + 1)
        if kind == TYPE_ARRAY:
            return self.read_array(depth + 1)
        if kind == TYPE_TIMESTAMP:
            return _timestamp(reader.u64())
        if kind == TYPE_DOUBLE:
            return reader.f64()
        if kind == TYPE_VOID:
            return None
        if kind == TYPE_BYTES:
            return reader.long_octets()
        if kind == TYPE_S8:
            return reader.s8()
        if kind == TYPE_U8:
            return reader.u8()
        if kind == TYPE_S16:
            return reader.s16()
        if kind == TYPE_U16:
            return reader.u16()
        if kind == TYPE_U32:
            return reader.u32()
        if kind == TYPE_FLOAT:
            return reader.f32()
        if kind == TYPE_DECIMAL:
            scale = reader.u8()
            return Decimal(f"{reader.s32()}E-{scale}")  # exact, whatever the precision of the thread's context
        raise DecodeError(f"unknown field type {kind}")


def _timestamp(seconds: int) -> object:
    if seconds > MAX_DATETIME_SECONDS:
        return RawTimestamp(seconds)
    return EPOCH + timedelta(seconds=seconds)


class _TableEncoder:
    """One encoding, and the number of values that it may still write: as many as a decoder accepts."""

    def __init__(self) -> None:
        self.values_left: i64 = MAX_VALUES

    def write_table(self, out: BytesWriter, table: Mapping[object, object], depth: i64) -> None:
        self.enter(depth)
        body = BytesWriter()
        for name, value in table.items():
            if not isinstance(name, str):
                raise EncodeError(f"a field's name is a string, not {type(name).__name__}")
            write_short_string(body, name)
            self.write_value(body, value, depth)
        write_long_octets(out, body.getvalue())

    def write_array(self, out: BytesWriter, array: list[object] | tuple[object, ...], depth: i64) -> None:
        self.enter(depth)
        body = BytesWriter()
        for value in array:
            self.write_value(body, value, depth)
        write_long_octets(out, body.getvalue())

    def enter(self, depth: i64) -> None:
        if depth > MAX_DEPTH:
            raise EncodeError(f"tables nested deeper than {MAX_DEPTH}")

    def write_value(self, out: BytesWriter, value: object, depth: i64) -> None:
        self.values_left -= value.count if isinstance(value, EncodedField) else 1
        if self.values_left < 0:
            raise EncodeError(f"a table with more than {MAX_VALUES} values")
        if isinstance(value, str):
            out.append(TYPE_STRING)
            write_long_octets(out, text_octets(value))
        elif isinstance(value, bool):
            out.append(TYPE_BOOLEAN)
            out.append(1 if value else 0)
        elif isinstance(value, int):
            _write_integer(out, value)
        elif value is None:
            out.append(TYPE_VOID)
        elif isinstance(value, float):
            out.append(TYPE_DOUBLE)
            write_f64_be(out, value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            out.append(TYPE_BYTES)
            write_long_octets(out, bytes(value))
        elif isinstance(value, Mapping):
            out.append(TYPE_TABLE)
            self.write_table(out, value, depth + 1)
        elif isinstance(value, (list, tuple)):
            out.append(TYPE_ARRAY)
            self.write_array(out, value, depth + 1)
        elif isinstance(value, (datetime, RawTimestamp)):
            out.append(TYPE_TIMESTAMP)
            write_unsigned(out, unix_seconds(value), 8)
        elif isinstance(value, Decimal):
            _write_decimal(out, value)
        elif isinstance(value, EncodedField):
            out.append(value.kind)
            out.write(value.octets)
        else:
            raise EncodeError(f"no field type for {type(value).__name__}")


def _write_integer(out: BytesWriter, value: int) -> None:
    if MIN_I32 <= value <= MAX_I32:
        out.append(TYPE_S32)
        out.write(value.to_bytes(4, "big", signed=True))
    elif MIN_I64 <= value <= MAX_I64:
        out.append(TYPE_S64)
        out.write(value.to_bytes(8, "big", signed=True))
    else:
        raise EncodeError(f"{value} does not fit 64 bits")


def _write_decimal(out: BytesWriter, value: Decimal) -> None:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise EncodeError(f"no field type for the decimal {value}")
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    # The wire has no positive exponents; ten digits exceed 32 bits.
    if unscaled and exponent > 0:
        unscaled *= 10 ** min(exponent, 10)
    scale = max(-exponent, 0)
    if scale > MAX_DECIMAL_SCALE or not MIN_I32 <= unscaled <= MAX_I32:
        raise EncodeError(f"the decimal {value} does not fit 32 bits and a scale of {MAX_DECIMAL_SCALE}")
    out.append(TYPE_DECIMAL)
    out.append(scale)
    out.write(unscaled.to_bytes(4, "big", signed=True))
