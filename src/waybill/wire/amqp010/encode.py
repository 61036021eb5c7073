"""Encodes values with their type before them: those of maps, lists and arrays. See `values` for the layouts."""

import math
from collections.abc import Mapping
from typing import Final

from librt.strings import BytesWriter, write_f32_be, write_f64_be
from mypy_extensions import i64, mypyc_attr

from waybill.wire.amqp010 import codes
from waybill.wire.amqp010.errors import EncodeError
from waybill.wire.amqp010.octets import write_octets, write_signed, write_text, write_unsigned
from waybill.wire.amqp010.types import Array, Datetime, Typed
from waybill.wire.amqp010.values import MAX_DEPTH, RESERVED, fixed_width, variable_width
from waybill.wire.amqp10.types import Byte, Char, Float, Int, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort, Uuid

FIRST_BEYOND_FLOAT: Final = 3.4028235677973366e38
"""The smallest double that would be rounded to infinity."""

UNSIGNED_WIDTHS: Final[dict[int, int]] = {
    codes.UINT8: 1,
    codes.UINT16: 2,
    codes.UINT32: 4,
    codes.UINT64: 8,
    codes.DATETIME: 8,
}
SIGNED_WIDTHS: Final[dict[int, int]] = {codes.INT8: 1, codes.INT16: 2, codes.INT32: 4, codes.INT64: 8}

# Looked up by type before the value is narrowed to int or float: compiled code would unbox it and lose the type.
_WRAPPER_CODES: Final[dict[type, int]] = {
    UByte: codes.UINT8,
    UShort: codes.UINT16,
    UInt: codes.UINT32,
    ULong: codes.UINT64,
    Byte: codes.INT8,
    Short: codes.INT16,
    Int: codes.INT32,
    Float: codes.FLOAT,
    Datetime: codes.DATETIME,
    Uuid: codes.UUID,
    Char: codes.CHAR_UTF32,
    Symbol: codes.STR16,
    bool: codes.BOOLEAN,
    float: codes.DOUBLE,
    str: codes.STR16,
    bytes: codes.VBIN32,
    dict: codes.MAP,
    list: codes.LIST,
}
_TEXT_CODECS: Final[dict[int, str]] = {
    codes.STR8_LATIN: "iso-8859-15",
    codes.STR16_LATIN: "iso-8859-15",
    codes.STR8_UTF16: "utf-16-be",
    codes.STR16_UTF16: "utf-16-be",
}
_MAX_I64: Final = 2**63 - 1


@mypyc_attr(native_class=False)
class Encodable:
    """A value that encodes itself: a struct with a code."""

    def write_struct32(self, out: BytesWriter, depth: i64) -> None:
        """Write size, code and fields. Raises EncodeError."""
        raise NotImplementedError


# A tuple, because in mypyc 2.4 isinstance() with the name of a class that is not native ignores its subclasses.
ENCODABLE: Final = (Encodable,)


def encode_map(mapping: Mapping[str, object]) -> bytes:
    """A map with its size. Raises EncodeError."""
    out = BytesWriter()
    write_map(out, mapping, 1)
    return out.getvalue()


def write_map(out: BytesWriter, mapping: object, depth: i64) -> None:
    """Write a map with its size. Raises EncodeError."""
    if not isinstance(mapping, Mapping):
        raise EncodeError(f"a map is needed, not {type(mapping).__name__}")
    _check_depth(depth)
    body = BytesWriter()
    write_unsigned(body, len(mapping), 4)
    for key, value in mapping.items():
        write_text(body, key, 1)
        _write_typed(body, value, depth)
    write_octets(out, body.getvalue(), 4)


def write_list(out: BytesWriter, items: list[object] | tuple[object, ...], depth: i64) -> None:
    """Write a list with its size. Raises EncodeError."""
    _check_depth(depth)
    body = BytesWriter()
    write_unsigned(body, len(items), 4)
    for item in items:
        _write_typed(body, item, depth)
    write_octets(out, body.getvalue(), 4)


def write_array(out: BytesWriter, code: int, items: tuple[object, ...] | list[object], depth: i64) -> None:
    """Write an array of the type `code` with its size. Raises EncodeError."""
    _check_depth(depth)
    body = BytesWriter()
    if items:
        write_unsigned(body, code, 1)
        write_unsigned(body, len(items), 4)
        for item in items:
            write_value(body, code, item, depth)
    write_octets(out, body.getvalue(), 4)


def code_of(value: object) -> int:
    """The type that a value is encoded as. Raises EncodeError if there is none."""
    code = _WRAPPER_CODES.get(type(value))
    if code is not None:
        return code
    if value is None:
        return codes.VOID
    if isinstance(value, Typed):
        return value.code
    if isinstance(value, Array):
        return codes.ARRAY
    if isinstance(value, ENCODABLE):
        return codes.STRUCT32
    if isinstance(value, Timestamp):
        raise EncodeError("a datetime has seconds, not milliseconds")
    if isinstance(value, int):
        return codes.INT64 if value <= _MAX_I64 else codes.UINT64
    if isinstance(value, Mapping):
        return codes.MAP
    if isinstance(value, tuple):
        return codes.LIST
    raise EncodeError(f"no AMQP type for {type(value).__name__}")


def _write_typed(out: BytesWriter, value: object, depth: i64) -> None:
    code = code_of(value)
    out.append(code)
    write_value(out, code, value, depth)


def write_value(out: BytesWriter, code: int, value: object, depth: i64) -> None:
    """Write a value of the type `code`, without the type. Raises EncodeError."""
    if code == codes.STR16 or code == codes.STR8:  # noqa: PLR1714 - native integers
        write_text(out, value, 2 if code == codes.STR16 else 1)
    elif code in UNSIGNED_WIDTHS:
        write_unsigned(out, value, UNSIGNED_WIDTHS[code])
    elif code in SIGNED_WIDTHS and isinstance(value, int):
        write_signed(out, value, SIGNED_WIDTHS[code])
    elif code == codes.MAP:
        write_map(out, value, depth + 1)
    elif code == codes.LIST and isinstance(value, (list, tuple)):
        write_list(out, value, depth + 1)
    elif code == codes.ARRAY and isinstance(value, Array):
        write_array(out, value.code, value.items, depth + 1)
    elif isinstance(value, Typed):
        _write_raw(out, code, value)
    elif isinstance(value, ENCODABLE):
        value.write_struct32(out, depth + 1)
    else:
        _write_simple(out, code, value)


def _write_simple(out: BytesWriter, code: int, value: object) -> None:
    if code == codes.BOOLEAN and isinstance(value, bool):
        out.append(1 if value else 0)
    elif code == codes.VOID or (code == codes.BIT and value is True):
        pass
    elif code == codes.DOUBLE and isinstance(value, float):
        write_f64_be(out, value)
    elif code == codes.FLOAT and isinstance(value, float):
        if math.isfinite(value) and abs(value) >= FIRST_BEYOND_FLOAT:
            raise EncodeError(f"{value} does not fit 32 bits")
        write_f32_be(out, value)
    elif code == codes.UUID and isinstance(value, bytes) and len(value) == 16:
        out.write(bytes(value))
    elif code == codes.CHAR_UTF32 and isinstance(value, str) and len(value) == 1:
        write_unsigned(out, ord(value), 4)
    elif code == codes.VBIN32 or code == codes.VBIN16 or code == codes.VBIN8:  # noqa: PLR1714 - native integers
        write_octets(out, value, int(variable_width(code)))
    elif code in _TEXT_CODECS and isinstance(value, str):
        write_octets(out, _encoded(value, _TEXT_CODECS[code]), int(variable_width(code)))
    else:
        raise EncodeError(f"{type(value).__name__} is no value of the type {code:#04x}")


def _encoded(text: str, codec: str) -> bytes:
    try:
        return text.encode(codec)
    except UnicodeEncodeError as error:
        raise EncodeError(f"not encodable: {error.reason}") from None


def _write_raw(out: BytesWriter, code: int, value: Typed) -> None:
    width = variable_width(code)
    if value.code != code or (width == RESERVED and fixed_width(code) != len(value.octets)):
        raise EncodeError(f"{len(value.octets)} octets of the type {value.code:#04x} as {code:#04x}")
    if width == RESERVED:
        out.write(value.octets)
    else:
        write_octets(out, value.octets, int(width))


def _check_depth(depth: i64) -> None:
    if depth > MAX_DEPTH:
        raise EncodeError(f"values nested deeper than {MAX_DEPTH}")
