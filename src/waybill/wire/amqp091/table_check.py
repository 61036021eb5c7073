"""Checks the field table of a published message without creating values, so that the broker can decode it later.

Layouts and limits are those of `field_table`: a table that passes can be read by `decode_table`.
"""

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from waybill.wire.amqp091.errors import DecodeError
from waybill.wire.amqp091.field_table import MAX_DEPTH, MAX_VALUES, TYPE_ARRAY, TYPE_TABLE

SIZE_OCTETS: Final = 4
SIZED: Final = 0xFE
UNKNOWN: Final = 0xFF

FIXED_WIDTHS: Final[dict[str, int]] = {
    "V": 0,
    "t": 1,
    "b": 1,
    "B": 1,
    "s": 2,
    "u": 2,
    "I": 4,
    "i": 4,
    "f": 4,
    "D": 5,
    "l": 8,
    "d": 8,
    "T": 8,
}

WIDTHS: Final = bytes(FIXED_WIDTHS.get(chr(kind), SIZED if chr(kind) in "SxAF" else UNKNOWN) for kind in range(256))
"""By type octet: how many octets follow, SIZED if a long-uint says so, or UNKNOWN."""


def check_table(data: bytes, offset: i64, end: i64) -> i64:
    """Check the table at `offset`, which must end by `end`. Returns the offset after it. Raises DecodeError."""
    if offset < 0 or end > len(data):
        raise DecodeError(f"octets {offset} to {end} are not within {len(data)}")
    after = _sized_end(data, offset, end)
    _check_values(data, offset + SIZE_OCTETS, after, 1, MAX_VALUES, True)  # noqa: FBT003 - see below
    return after


def _check_values(data: bytes, o: i64, end: i64, depth: i64, values_left: i64, named: bool) -> i64:  # noqa: FBT001 - positional, since it runs once a message and level
    """Check the values of a table (`named`) or array. Returns how many more values the whole table may have."""
    if depth > MAX_DEPTH:
        raise DecodeError(f"tables nested deeper than {MAX_DEPTH}")
    while o < end:
        if named:
            o += 1 + data[o]
            if o >= end:
                raise DecodeError(f"a field is cut off at {end}")
        values_left -= 1
        if values_left < 0:
            raise DecodeError(f"a table with more than {MAX_VALUES} values")
        kind: i64 = data[o]
        width: i64 = WIDTHS[kind]
        o += 1
        if width < SIZED:
            o += width
        elif width == SIZED:
            start = o + SIZE_OCTETS
            o = _sized_end(data, o, end)
            if kind in (TYPE_TABLE, TYPE_ARRAY):
                values_left = _check_values(data, start, o, depth + 1, values_left, kind == TYPE_TABLE)
        else:
            raise DecodeError(f"unknown field type {kind}")
    if o != end:
        raise DecodeError(f"a field is cut off at {end}")
    return values_left


def _sized_end(data: bytes, o: i64, end: i64) -> i64:
    if o + SIZE_OCTETS <= end:
        o += SIZE_OCTETS + (i64(read_i32_be(data, o)) & 0xFFFFFFFF)
        if o <= end:
            return o
    raise DecodeError(f"a table or string is cut off at {end}")
