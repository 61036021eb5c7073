"""Decodes values with their type before them: those of maps, lists and arrays, and structs with a code.

    map    | size u32 | count u32 | str8 key, type u8, value | ...
    list   | size u32 | count u32 | type u8, value           | ...
    array  | size u32 | type u8   | count u32 | value        | ...

The octets after the size may be missing if there are no entries. The high half of a type says how wide its values are,
so that unknown types can be skipped, and kept. Values come from peers: their depth and number are limited.
"""

from typing import Final

from mypy_extensions import i64

from waybill.wire.amqp010 import codes
from waybill.wire.amqp010.errors import DecodeError
from waybill.wire.amqp010.octets import Reader
from waybill.wire.amqp010.sequence import read_ranges
from waybill.wire.amqp010.types import Array, Datetime, Typed
from waybill.wire.amqp10.types import Byte, Char, Float, Int, Short, UByte, UInt, ULong, UShort, Uuid

MAX_DEPTH: Final = 32
"""The depth of nested maps, lists, arrays and structs, the outermost included."""
MAX_VALUES: Final = 65_536
"""The limit of values in one segment: few octets may announce a great many values."""
MAX_CHAR: Final = 0x10FFFF

FIXED_WIDTHS: Final[tuple[int, ...]] = (1, 2, 4, 8, 16, 32, 64, 128)
"""By the high half of the type, up to 7. 0xC: 5 octets, 0xD: 9, 0xF: none."""
RESERVED: Final = -1

_LATIN: Final = frozenset({codes.STR8_LATIN, codes.STR16_LATIN})
_UTF_16: Final = frozenset({codes.STR8_UTF16, codes.STR16_UTF16})


class StructReader:
    """Reads the fields of one struct. The base of `struct.Fields`, which avoids an import cycle."""

    def read_sized(self, decoder: "Decoder", depth: i64) -> object:
        """Read the struct as a field, with its size and code."""
        raise NotImplementedError

    def read_fields(self, decoder: "Decoder", depth: i64) -> object:
        """Read flags and fields, up to the reader's end."""
        raise NotImplementedError


STRUCTS: Final[dict[int, StructReader]] = {}
"""The structs that have a code, by class code and code."""


class Decoder:
    """One decoding, and the number of values that it may still create."""

    def __init__(self, data: bytes, offset: i64, end: i64, max_values: i64 = MAX_VALUES) -> None:
        self.reader = Reader(data, offset, end)
        self.values_left: i64 = max_values

    def map(self, depth: i64) -> dict[str, object]:
        """Decode a map. Raises DecodeError, also for two equal keys."""
        reader = self.reader
        outer_end = self._enter(depth)
        found: dict[str, object] = {}
        if reader.offset < reader.end:
            count = self._count()
            for _ in range(count):
                key = reader.text(1)
                if key in found:
                    raise DecodeError(f"a map with two keys {key!r}")
                found[key] = self.value(reader.u8(), depth)
        reader.leave(outer_end)
        return found

    def list(self, depth: i64) -> list[object]:
        """Decode a list. Raises DecodeError."""
        reader = self.reader
        outer_end = self._enter(depth)
        items: list[object] = []
        if reader.offset < reader.end:
            for _ in range(self._count()):
                items.append(self.value(reader.u8(), depth))  # noqa: PERF401 - compiled, a loop is as fast
        reader.leave(outer_end)
        return items

    def array(self, depth: i64) -> Array:
        """Decode an array. Raises DecodeError."""
        reader = self.reader
        outer_end = self._enter(depth)
        code: i64 = codes.VOID
        items: list[object] = []
        if reader.offset < reader.end:
            code = reader.u8()
            # Values without octets still count against the limit of values.
            for _ in range(self._count()):
                items.append(self.value(code, depth))  # noqa: PERF401 - compiled, a loop is as fast
        reader.leave(outer_end)
        return Array(code, tuple(items))

    def struct32(self, depth: i64) -> object:
        """Decode a struct after its size and code; one with an unknown code is Typed. Raises DecodeError."""
        reader = self.reader
        start = reader.offset
        outer_end = self._enter(depth)
        structs = STRUCTS.get(int(reader.u16()))
        if structs is None:
            reader.offset = reader.end
            reader.end = outer_end
            return Typed(codes.STRUCT32, reader.data[start + 4 : reader.offset])
        found = structs.read_fields(self, depth + 1)
        reader.leave(outer_end)
        return found

    def value(self, code: i64, depth: i64) -> object:
        """Decode a value of the type `code`. Raises DecodeError."""
        self.values_left -= 1
        if self.values_left < 0:
            raise DecodeError("too many values")
        reader = self.reader
        if code == codes.STR16 or code == codes.STR8:  # noqa: PLR1714 - native integers
            return reader.text(2 if code == codes.STR16 else 1)
        if code == codes.INT64:
            return int(reader.s64())
        if code == codes.MAP:
            return self.map(depth + 1)
        if code == codes.LIST:
            return self.list(depth + 1)
        if code == codes.ARRAY:
            return self.array(depth + 1)
        if code == codes.STRUCT32:
            return self.struct32(depth + 1)
        if code >> 4 <= codes.UUID >> 4 or code >> 4 >= codes.BIN40 >> 4:
            return self._fixed(code)
        return self._variable(code)

    def _fixed(self, code: i64) -> object:  # noqa: PLR0911 - one branch a type
        reader = self.reader
        if code == codes.BOOLEAN:
            return reader.u8() != 0
        if code == codes.VOID:
            return None
        if code == codes.BIT:
            return True
        if code == codes.UINT8:
            return UByte(reader.u8())
        if code == codes.UINT16:
            return UShort(reader.u16())
        if code == codes.UINT32:
            return UInt(reader.u32())
        if code == codes.UINT64:
            return ULong(reader.u64())
        if code == codes.INT8:
            return Byte(reader.s8())
        if code == codes.INT16:
            return Short(reader.s16())
        if code == codes.INT32:
            return Int(reader.s32())
        if code == codes.FLOAT:
            return Float(reader.f32())
        if code == codes.DOUBLE:
            return reader.f64()
        return self._rare(code)

    def _rare(self, code: i64) -> object:
        reader = self.reader
        if code == codes.DATETIME:
            return Datetime(reader.u64())
        if code == codes.UUID:
            return Uuid(reader.octets(16))
        if code == codes.CHAR_UTF32:
            number = reader.u32()
            if number > MAX_CHAR or 0xD800 <= number < 0xE000:
                raise DecodeError(f"{number:#x} is no character")
            return Char(chr(int(number)))
        width = fixed_width(code)
        if width == RESERVED:
            raise DecodeError(f"unknown type {code:#04x}")
        return Typed(code, reader.octets(width))

    def _variable(self, code: i64) -> object:
        width = variable_width(code)
        if width == RESERVED:
            raise DecodeError(f"unknown type {code:#04x}")
        octets = self.reader.octets(self.reader.size(width))
        if code == codes.VBIN8 or code == codes.VBIN16 or code == codes.VBIN32:  # noqa: PLR1714 - native integers
            return octets
        if int(code) in _LATIN:
            # ISO 8859-15: Python's codec has a character for each octet.
            return octets.decode("iso-8859-15")
        if int(code) in _UTF_16:
            try:
                return octets.decode("utf-16-be")
            except UnicodeDecodeError:
                raise DecodeError("a string is not UTF-16") from None
        return Typed(code, octets)

    def ranges(self) -> object:
        """A sequence-set."""
        return read_ranges(self.reader)

    def _enter(self, depth: i64) -> i64:
        if depth > MAX_DEPTH:
            raise DecodeError(f"values nested deeper than {MAX_DEPTH}")
        return self.reader.enter(self.reader.u32())

    def _count(self) -> i64:
        count = self.reader.u32()
        if count > self.values_left:
            raise DecodeError("too many values")
        return count


def fixed_width(code: i64) -> i64:
    """The width of a value of the type in octets; RESERVED if it has a size before it, or is unknown."""
    category = code >> 4
    if category < 8:
        return FIXED_WIDTHS[int(category)]
    if category == 0xC:
        return 5
    if category == 0xD:
        return 9
    return 0 if category == 0xF else RESERVED


def variable_width(code: i64) -> i64:
    """The width of the size before a value of the type; RESERVED if there is none."""
    category = code >> 4
    if category == 8:
        return 1
    if category == 9:
        return 2
    return 4 if category == 0xA else RESERVED
