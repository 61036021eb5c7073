"""Encodes values (1.0, 1.6) in their shortest form. A value without an encoding raises EncodeError.

The elements of an Array have the form that it names instead.
"""

import math
from collections.abc import Mapping
from typing import Final

from librt.strings import BytesWriter, write_f32_be, write_f64_be
from mypy_extensions import i64, mypyc_attr

from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.errors import EncodeError
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

MAX_U8: Final = 0xFF

FIRST_SURROGATE: Final = 0xD800
LAST_SURROGATE: Final = 0xDFFF

FIRST_BEYOND_FLOAT: Final = 3.4028235677973366e38
"""The smallest double that would be rounded to infinity."""

BINARY_TYPES: Final = (bytes, bytearray, memoryview)


@mypyc_attr(native_class=False)
class Encodable:
    """A value that encodes itself: a composite type."""

    def write_to(self, out: BytesWriter, depth: i64) -> None:
        """Write the value, constructor included. Raises EncodeError."""
        raise NotImplementedError


# Looked up by type before the value is narrowed to int or float: compiled code would unbox it and lose the type.
NUMBER_CODES: Final[dict[type, int]] = {
    UByte: codes.UBYTE,
    UShort: codes.USHORT,
    UInt: codes.UINT,
    ULong: codes.ULONG,
    Byte: codes.BYTE,
    Short: codes.SHORT,
    Int: codes.INT,
    Timestamp: codes.TIMESTAMP,
    Float: codes.FLOAT,
}

# A tuple, because in mypyc 2.4 isinstance() with the name of a class that is not native ignores its subclasses.
ENCODABLE: Final = (Encodable,)


def encode_value(value: object) -> bytes:
    """Encode one value. Raises EncodeError."""
    out = BytesWriter()
    write_value(out, value, 1)
    return out.getvalue()


def write_value(out: BytesWriter, value: object, depth: i64 = 1) -> None:
    """Write a value with its constructor. Raises EncodeError, also beyond the depth that a decoder accepts."""
    if value is None:
        out.append(codes.NULL)
    elif isinstance(value, bool):
        out.append(codes.TRUE if value else codes.FALSE)
    elif isinstance(value, ENCODABLE):
        value.write_to(out, depth)
    elif isinstance(value, str):
        _write_text(out, value)
    elif type(value) in NUMBER_CODES:
        _write_wrapped(out, NUMBER_CODES[type(value)], value)
    elif isinstance(value, int):
        _write_element(out, codes.SMALL_LONG if -0x80 <= value < 0x80 else codes.LONG, value, 1)
    elif isinstance(value, BINARY_TYPES):
        _write_octets(out, bytes(value) if not isinstance(value, bytes) else value)
    elif isinstance(value, float):
        _write_element(out, codes.DOUBLE, value, 1)
    elif isinstance(value, Described):
        _enter(depth)
        out.append(codes.DESCRIBED)
        write_value(out, value.descriptor, depth + 1)
        write_value(out, value.value, depth + 1)
    elif isinstance(value, Array):
        body = _array_body(value, depth)
        write_sized(out, codes.ARRAY_8, len(value.items), body)
    elif isinstance(value, (Mapping, OddMap)):
        body = _map_body(value, depth)
        write_sized(out, codes.MAP_8, _pair_count(value) * 2, body)
    elif isinstance(value, (list, tuple)):
        write_list(out, len(value), _list_body(value, depth))
    else:
        raise EncodeError(f"no AMQP type for {type(value).__name__}")


def write_unsigned(out: BytesWriter, value: int, size: int) -> None:
    """Write an unsigned integer of `size` octets. Raises EncodeError unless it fits."""
    if value < 0 or value >> (8 * size):
        raise EncodeError(f"{value} does not fit {size} unsigned octets")
    out.write(value.to_bytes(size, "big"))


def write_signed(out: BytesWriter, value: int, size: int) -> None:
    """Write an integer of `size` octets. Raises EncodeError unless it fits."""
    limit = 1 << (8 * size - 1)
    if not -limit <= value < limit:
        raise EncodeError(f"{value} does not fit {size} octets")
    out.write(value.to_bytes(size, "big", signed=True))


def write_uint(out: BytesWriter, value: int) -> None:
    """Write a uint. Raises EncodeError unless it fits."""
    if value == 0:
        out.append(codes.UINT_0)
    elif 0 < value <= MAX_U8:
        out.append(codes.SMALL_UINT)
        out.append(value)
    else:
        out.append(codes.UINT)
        write_unsigned(out, value, 4)


def write_ulong(out: BytesWriter, value: int) -> None:
    """Write a ulong. Raises EncodeError unless it fits."""
    if value == 0:
        out.append(codes.ULONG_0)
    elif 0 < value <= MAX_U8:
        out.append(codes.SMALL_ULONG)
        out.append(value)
    else:
        out.append(codes.ULONG)
        write_unsigned(out, value, 8)


def write_symbol(out: BytesWriter, value: str) -> None:
    """Write a symbol. Raises EncodeError unless it is ASCII."""
    write_variable(out, codes.SYMBOL_8, symbol_octets(value))


def write_string(out: BytesWriter, value: str) -> None:
    """Write a string. Raises EncodeError for surrogates, which UTF-8 does not have."""
    write_variable(out, codes.STRING_8, string_octets(value))


def write_binary(out: BytesWriter, value: bytes) -> None:
    """Write octets."""
    write_variable(out, codes.BINARY_8, value)


def write_variable(out: BytesWriter, small_code: int, octets: bytes) -> None:
    """Write octets with a size of 1 octet, or of 4 octets with the code that is 0x10 higher."""
    if len(octets) <= MAX_U8:
        out.append(small_code)
        out.append(len(octets))
    else:
        out.append(small_code + 0x10)
        write_unsigned(out, len(octets), 4)
    out.write(octets)


def write_list(out: BytesWriter, count: int, body: bytes) -> None:
    """Write a list of `count` values; `body` is their encoding."""
    if count:
        write_sized(out, codes.LIST_8, count, body)
    else:
        out.append(codes.LIST_0)


def write_sized(out: BytesWriter, small_code: int, count: int, body: bytes) -> None:
    """Write a compound or array with size and count of 1 octet each, or of 4 with the code that is 0x10 higher."""
    if len(body) < MAX_U8 and count <= MAX_U8:
        out.append(small_code)
        out.append(len(body) + 1)
        out.append(count)
    else:
        out.append(small_code + 0x10)
        write_unsigned(out, len(body) + 4, 4)
        write_unsigned(out, count, 4)
    out.write(body)


def symbol_octets(value: str) -> bytes:
    """The octets of a symbol. Raises EncodeError unless it is ASCII."""
    try:
        return value.encode("ascii")
    except UnicodeEncodeError:
        raise EncodeError(f"a symbol is ASCII, {value!r} is not") from None


def string_octets(value: str) -> bytes:
    """The octets of a string. Raises EncodeError for surrogates."""
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise EncodeError(f"not encodable as UTF-8: {error.reason}") from None


def _enter(depth: i64) -> None:
    if depth > codes.MAX_DEPTH:
        raise EncodeError(f"values nested deeper than {codes.MAX_DEPTH}")


def _write_text(out: BytesWriter, value: str) -> None:
    if isinstance(value, Symbol):
        write_symbol(out, value)
    elif isinstance(value, Char):
        out.append(codes.CHAR)
        _write_char(out, value)
    else:
        write_string(out, value)


def _write_char(out: BytesWriter, value: str) -> None:
    if len(value) != 1 or FIRST_SURROGATE <= ord(value) <= LAST_SURROGATE:
        raise EncodeError(f"{value!r} is not one character")
    write_unsigned(out, ord(value), 4)


def _write_wrapped(out: BytesWriter, code: int, value: object) -> None:
    """Write a number in a wrapper; `code` is its widest form."""
    if code == codes.UINT and isinstance(value, int):
        write_uint(out, value)
    elif code == codes.ULONG and isinstance(value, int):
        write_ulong(out, value)
    elif code == codes.INT and isinstance(value, int) and -0x80 <= value < 0x80:
        _write_element(out, codes.SMALL_INT, value, 1)
    else:
        _write_element(out, code, value, 1)


def _write_element(out: BytesWriter, code: int, value: object, depth: i64) -> None:
    out.append(code)
    write_data(out, code, value, depth)


def _write_octets(out: BytesWriter, value: bytes) -> None:
    code = 0
    if isinstance(value, Uuid):
        code = codes.UUID
    elif isinstance(value, Decimal32):
        code = codes.DECIMAL_32
    elif isinstance(value, Decimal64):
        code = codes.DECIMAL_64
    elif isinstance(value, Decimal128):
        code = codes.DECIMAL_128
    if code:
        out.append(code)
        _write_fixed_octets(out, code, value)
    else:
        write_binary(out, value)


def _write_fixed_octets(out: BytesWriter, code: int, value: bytes) -> None:
    size = codes.FIXED_SIZES[(code >> 4) - codes.CATEGORY_FIXED_0]
    if len(value) != size:
        raise EncodeError(f"{size} octets are needed, not {len(value)}")
    out.write(bytes(value))


def _write_real(out: BytesWriter, code: int, value: float) -> None:
    if code == codes.DOUBLE:
        write_f64_be(out, value)
        return
    if FIRST_BEYOND_FLOAT <= abs(value) < math.inf:
        raise EncodeError(f"{value} does not fit a float of 32 bits")
    write_f32_be(out, value)


def _list_body(values: list[object] | tuple[object, ...], depth: i64) -> bytes:
    _enter(depth)
    body = BytesWriter()
    for value in values:
        write_value(body, value, depth + 1)
    return body.getvalue()


def _pair_count(mapping: object) -> int:
    if isinstance(mapping, OddMap):
        return len(mapping.pairs)
    assert isinstance(mapping, Mapping)  # noqa: S101 - our own caller has looked
    return len(mapping)


def _map_body(mapping: object, depth: i64) -> bytes:
    _enter(depth)
    body = BytesWriter()
    if isinstance(mapping, OddMap):
        for key, value in mapping.pairs:
            write_value(body, key, depth + 1)
            write_value(body, value, depth + 1)
    elif isinstance(mapping, Mapping):
        for key, value in mapping.items():
            write_value(body, key, depth + 1)
            write_value(body, value, depth + 1)
    return body.getvalue()


def _array_body(array: Array, depth: i64) -> bytes:
    """What follows the count: descriptors, the format code of the elements, and their data."""
    _enter(depth)
    body = BytesWriter()
    inner = depth
    for descriptor in array.descriptors:
        _enter(inner)
        inner += 1
        body.append(codes.DESCRIBED)
        write_value(body, descriptor, depth + 1)
    if array.code not in codes.ALL:
        raise EncodeError(f"unknown format code {array.code}")
    body.append(array.code)
    for item in array.items:
        write_data(body, array.code, item, depth + 1)
    return body.getvalue()


INTEGER_FORMS: Final[dict[int, tuple[int, bool]]] = {
    codes.UBYTE: (1, False),
    codes.SMALL_UINT: (1, False),
    codes.SMALL_ULONG: (1, False),
    codes.USHORT: (2, False),
    codes.UINT: (4, False),
    codes.ULONG: (8, False),
    codes.BYTE: (1, True),
    codes.SMALL_INT: (1, True),
    codes.SMALL_LONG: (1, True),
    codes.SHORT: (2, True),
    codes.INT: (4, True),
    codes.LONG: (8, True),
    codes.TIMESTAMP: (8, True),
}
"""The size in octets, and whether the type is signed."""

EMPTY_VALUES: Final[dict[int, object]] = {
    codes.NULL: None,
    codes.TRUE: True,
    codes.FALSE: False,
    codes.UINT_0: 0,
    codes.ULONG_0: 0,
    codes.LIST_0: [],
}
"""The only value of a form without octets."""

STRING_CODES: Final = frozenset({codes.STRING_8, codes.STRING_32})
SYMBOL_CODES: Final = frozenset({codes.SYMBOL_8, codes.SYMBOL_32})
BINARY_CODES: Final = frozenset({codes.BINARY_8, codes.BINARY_32})
LIST_CODES: Final = frozenset({codes.LIST_8, codes.LIST_32})
MAP_CODES: Final = frozenset({codes.MAP_8, codes.MAP_32})
ARRAY_CODES: Final = frozenset({codes.ARRAY_8, codes.ARRAY_32})
REAL_CODES: Final = frozenset({codes.FLOAT, codes.DOUBLE})
OCTET_CODES: Final = frozenset({codes.UUID, codes.DECIMAL_32, codes.DECIMAL_64, codes.DECIMAL_128})


def write_data(out: BytesWriter, code: int, value: object, depth: i64) -> None:  # noqa: PLR0912 - one branch a type
    """Write the data of `value` in the form `code`, without the code. Raises EncodeError if it has no such form."""
    wide = code & 0x10 != 0
    form = INTEGER_FORMS.get(code)
    if form is not None and isinstance(value, int) and not isinstance(value, bool):
        size, signed = form
        if signed:
            write_signed(out, value, size)
        else:
            write_unsigned(out, value, size)
    elif code in EMPTY_VALUES:
        if value != EMPTY_VALUES[code]:
            raise EncodeError(f"{value!r} is not the value of format code {code:#04x}")
    elif code == codes.BOOLEAN and isinstance(value, bool):
        out.append(1 if value else 0)
    elif code in STRING_CODES and isinstance(value, str):
        _write_with_size(out, string_octets(value), wide=wide)
    elif code in SYMBOL_CODES and isinstance(value, str):
        _write_with_size(out, symbol_octets(value), wide=wide)
    elif code in BINARY_CODES and isinstance(value, bytes):
        _write_with_size(out, value, wide=wide)
    elif code in LIST_CODES and isinstance(value, (list, tuple)):
        _write_with_count(out, len(value), _list_body(value, depth), wide=wide)
    elif code in MAP_CODES and isinstance(value, (Mapping, OddMap)):
        _write_with_count(out, _pair_count(value) * 2, _map_body(value, depth), wide=wide)
    elif code in ARRAY_CODES and isinstance(value, Array):
        _write_with_count(out, len(value.items), _array_body(value, depth), wide=wide)
    elif code in REAL_CODES and isinstance(value, float):
        _write_real(out, code, value)
    elif code == codes.CHAR and isinstance(value, str):
        _write_char(out, value)
    elif code in OCTET_CODES and isinstance(value, bytes):
        _write_fixed_octets(out, code, value)
    else:
        raise EncodeError(f"{type(value).__name__} has no form {code:#04x}")


def _write_with_size(out: BytesWriter, octets: bytes, *, wide: bool) -> None:
    write_unsigned(out, len(octets), 4 if wide else 1)
    out.write(octets)


def _write_with_count(out: BytesWriter, count: int, body: bytes, *, wide: bool) -> None:
    width = 4 if wide else 1
    write_unsigned(out, len(body) + width, width)
    write_unsigned(out, count, width)
    out.write(body)
