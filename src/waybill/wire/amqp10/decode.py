"""Decodes values (1.0, 1.6). Malformed input raises DecodeError and nothing else.

Values come from peers. So their depth and number are limited, and every size and count is checked against the octets
that are present before anything is allocated.
"""

from typing import Final

from mypy_extensions import i64

from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.encode import FIRST_SURROGATE, LAST_SURROGATE, encode_value
from waybill.wire.amqp10.errors import DecodeError, EncodeError
from waybill.wire.amqp10.reader import Reader
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

MAX_CHAR: Final = 0x10FFFF


def decode_value(data: bytes, offset: i64 = 0, end: i64 = -1, max_values: i64 = codes.MAX_VALUES) -> tuple[object, int]:
    """Decode the value at `offset` in `data[:end]` (-1: all). Returns it and the offset after it.

    Raises DecodeError, also for more than `max_values` values in it.
    """
    decoder = Decoder(data, offset, len(data) if end == -1 else end, max_values)
    value = decoder.value(1)
    return value, decoder.reader.offset


class Repeatable:
    """A described value, its octets, and the number of values in it."""

    def __init__(self) -> None:
        self.value: object = None
        self.octets = b""
        self.count: i64 = 0


class Decoder:
    """One decoding, and the number of values that it may still create."""

    def __init__(self, data: bytes, offset: i64, end: i64, max_values: i64 = codes.MAX_VALUES) -> None:
        self.reader = Reader(data, offset, end)
        self.values_left: i64 = max_values

    def value(self, depth: i64) -> object:
        """Decode the next value. Raises DecodeError."""
        self.spend(1)
        code = self.reader.u8()
        if code == codes.DESCRIBED:
            self.enter(depth)
            descriptor = self.value(depth + 1)
            return Described(descriptor, self.value(depth + 1))
        return self.data(code, depth)

    def spend(self, count: i64) -> None:
        if count > self.values_left:
            raise DecodeError("more values than are allowed at once")
        self.values_left -= count

    def enter(self, depth: i64) -> None:
        if depth > codes.MAX_DEPTH:
            raise DecodeError(f"values nested deeper than {codes.MAX_DEPTH}")

    def data(self, code: i64, depth: i64) -> object:
        """Decode the data of a value with this primitive format code."""
        category = code >> 4
        if category == codes.CATEGORY_FIXED_0:
            return self.empty(code)
        if category <= codes.CATEGORY_FIXED_16:
            return self.fixed(code)
        wide = category & 1 == 1
        if category <= codes.CATEGORY_VARIABLE_32:
            return self.variable(code, wide=wide)
        if code == codes.ARRAY_8 or code == codes.ARRAY_32:  # noqa: PLR1714 - native integers
            return self.read_array(depth, wide=wide)
        if code == codes.LIST_8 or code == codes.LIST_32:  # noqa: PLR1714
            return self.read_list(depth, wide=wide)
        if code == codes.MAP_8 or code == codes.MAP_32:  # noqa: PLR1714
            return self.read_map(depth, wide=wide)
        raise _unknown(code)

    def empty(self, code: i64) -> object:
        if code == codes.NULL:
            return None
        if code == codes.TRUE:
            return True
        if code == codes.FALSE:
            return False
        if code == codes.UINT_0:
            return UInt(0)
        if code == codes.ULONG_0:
            return ULong(0)
        if code == codes.LIST_0:
            return []
        raise _unknown(code)

    def fixed(self, code: i64) -> object:  # noqa: C901, PLR0911, PLR0912 - one branch a type
        reader = self.reader
        if code == codes.SMALL_UINT:
            return UInt(reader.u8())
        if code == codes.SMALL_ULONG:
            return ULong(reader.u8())
        if code == codes.UINT:
            return UInt(reader.u32())
        if code == codes.ULONG:
            return ULong(reader.u64())
        if code == codes.UBYTE:
            return UByte(reader.u8())
        if code == codes.USHORT:
            return UShort(reader.u16())
        if code == codes.BOOLEAN:
            return self.boolean()
        if code == codes.SMALL_LONG:
            return reader.s8()
        if code == codes.LONG:
            return reader.s64()
        if code == codes.SMALL_INT:
            return Int(reader.s8())
        if code == codes.INT:
            return Int(reader.s32())
        if code == codes.BYTE:
            return Byte(reader.s8())
        if code == codes.SHORT:
            return Short(reader.s16())
        if code == codes.TIMESTAMP:
            return Timestamp(reader.s64())
        if code == codes.DOUBLE:
            return reader.f64()
        if code == codes.FLOAT:
            return Float(reader.f32())
        if code == codes.UUID:
            return Uuid(reader.octets(16))
        if code == codes.CHAR:
            return self.char()
        if code == codes.DECIMAL_32:
            return Decimal32(reader.octets(4))
        if code == codes.DECIMAL_64:
            return Decimal64(reader.octets(8))
        if code == codes.DECIMAL_128:
            return Decimal128(reader.octets(16))
        raise _unknown(code)

    def boolean(self) -> bool:
        octet = self.reader.u8()
        if octet > 1:
            raise DecodeError(f"a boolean is 0 or 1, not {octet}")
        return octet == 1

    def char(self) -> Char:
        point = self.reader.u32()
        if point > MAX_CHAR or FIRST_SURROGATE <= point <= LAST_SURROGATE:
            raise DecodeError(f"{point:#x} is not a character")
        return Char(chr(point))

    def variable(self, code: i64, *, wide: bool) -> object:
        octets = self.reader.octets(self.reader.size(wide=wide))
        if code == codes.BINARY_8 or code == codes.BINARY_32:  # noqa: PLR1714 - native integers
            return octets
        try:
            if code == codes.STRING_8 or code == codes.STRING_32:  # noqa: PLR1714
                return octets.decode("utf-8")
            if code == codes.SYMBOL_8 or code == codes.SYMBOL_32:  # noqa: PLR1714
                return Symbol(octets.decode("ascii"))
        except UnicodeDecodeError as error:
            raise DecodeError(f"not {error.encoding}: {error.reason}") from None
        raise _unknown(code)

    def confine(self, depth: i64, *, wide: bool) -> i64:
        """Confine the reader to the compound or array that begins here. Returns the end to restore after it."""
        self.enter(depth)
        reader = self.reader
        size = reader.size(wide=wide)
        outer_end = reader.end
        if size > outer_end - reader.offset:
            raise DecodeError(f"{size} octets announced, {outer_end - reader.offset} left")
        reader.end = reader.offset + size
        return outer_end

    def leave(self, outer_end: i64) -> None:
        reader = self.reader
        if reader.offset != reader.end:
            raise DecodeError(f"{reader.end - reader.offset} octets too many in a list, map or array")
        reader.end = outer_end

    def count(self, *, wide: bool) -> i64:
        """The number of values in a list or map; each takes at least one octet."""
        count = self.reader.size(wide=wide)
        if count > self.reader.end - self.reader.offset or count > self.values_left:
            raise DecodeError(f"{count} values announced, more than there are octets or than are allowed")
        return count

    def read_list(self, depth: i64, *, wide: bool) -> object:
        outer_end = self.confine(depth, wide=wide)
        values: list[object] = []
        for _ in range(self.count(wide=wide)):
            values.append(self.value(depth + 1))  # noqa: PERF401 - a comprehension is a function of its own
        self.leave(outer_end)
        return values

    def read_map(self, depth: i64, *, wide: bool) -> object:
        outer_end = self.confine(depth, wide=wide)
        count = self.count(wide=wide)
        if count & 1:
            raise DecodeError("a map with a key and no value")
        pairs: list[tuple[object, object]] = []
        last = Repeatable()
        for _ in range(count >> 1):
            key = self.value(depth + 1)
            pairs.append((key, self.described_again(last, depth + 1)))
        self.leave(outer_end)
        return _mapping(pairs)

    def described_again(self, last: "Repeatable", depth: i64) -> object:
        """Decode the next value; a described one with the octets of the one before is that object.

        An attach can have the same state for each of thousands of deliveries.
        """
        reader = self.reader
        start = reader.offset
        if start >= reader.end or reader.data[start] != codes.DESCRIBED:
            return self.value(depth)
        size: i64 = len(last.octets)
        if size and start + size <= reader.end and reader.data.startswith(last.octets, start):
            self.spend(last.count)
            reader.offset = start + size
            return last.value
        before = self.values_left
        last.value = self.value(depth)
        last.count = before - self.values_left
        last.octets = reader.data[start : reader.offset]
        return last.value

    def read_array(self, depth: i64, *, wide: bool) -> Array:
        outer_end = self.confine(depth, wide=wide)
        reader = self.reader
        count = reader.size(wide=wide)
        descriptors: list[object] = []
        code = reader.u8()
        while code == codes.DESCRIBED:
            self.enter(depth + len(descriptors))
            descriptors.append(self.value(depth + 1))
            code = reader.u8()
        if code not in codes.ALL:
            raise _unknown(code)
        # Only the number of values limits elements without octets.
        if count * _least_size(code) > reader.end - reader.offset:
            raise DecodeError(f"an array announces {count} elements, more than there are octets")
        self.spend(count)
        items: list[object] = []
        for _ in range(count):
            items.append(self.data(code, depth + 1))  # noqa: PERF401 - see read_list
        self.leave(outer_end)
        return Array(code, tuple(items), tuple(descriptors))


def _least_size(code: i64) -> i64:
    """The minimum size of the data of one element."""
    category = code >> 4
    if category <= codes.CATEGORY_FIXED_16:
        return codes.FIXED_SIZES[category - codes.CATEGORY_FIXED_0]
    least: i64 = 4 if category & 1 else 1
    if category > codes.CATEGORY_VARIABLE_32:
        least *= 2
    return least


def _mapping(pairs: list[tuple[object, object]]) -> object:
    try:
        mapping = dict(pairs)
    except TypeError:
        # Lists, maps and values that contain them are legal keys.
        return _odd_map(pairs)
    if len(mapping) != len(pairs):
        return _odd_map(pairs)
    return mapping


def _odd_map(pairs: list[tuple[object, object]]) -> OddMap:
    keys: set[bytes] = set()
    for key, _ in pairs:
        # Two encodings of the same value are the same key, so compare what we would write.
        try:
            keys.add(encode_value(key))
        except EncodeError as error:
            raise DecodeError(f"a key that cannot be encoded: {error}") from None
    if len(keys) != len(pairs):
        raise DecodeError("a map with the same key twice")
    return OddMap(tuple(pairs))


def _unknown(code: i64) -> DecodeError:
    return DecodeError(f"unknown format code {code:#04x}")
