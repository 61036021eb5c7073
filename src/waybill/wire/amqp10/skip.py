"""Finds the end of a value without decoding it (1.0, 1.6).

Only constructors and sizes are read. The contents of lists, maps and arrays are not checked.
"""

from librt.strings import read_i32_be
from mypy_extensions import i64

from waybill.wire.amqp10.codes import (
    CATEGORY_FIXED_0,
    CATEGORY_FIXED_16,
    CATEGORY_VARIABLE_8,
    DESCRIBED,
    MAX_DEPTH,
)
from waybill.wire.amqp10.errors import DecodeError


def skip_value(data: bytes, offset: i64, end: i64, depth: i64 = 1) -> i64:
    """The offset after the value at `offset`, which must end by `end`. Raises DecodeError."""
    o = offset
    while o < end and data[o] == DESCRIBED:
        if depth > MAX_DEPTH:
            raise DecodeError(f"values nested deeper than {MAX_DEPTH}")
        depth += 1
        o = skip_value(data, o + 1, end, depth)
    if o >= end:
        raise DecodeError(f"a value is cut off at {o}")
    return skip_data(data, o + 1, end, data[o])


def skip_data(data: bytes, offset: i64, end: i64, code: i64) -> i64:
    """The offset after the data at `offset` of a value with this primitive format code. Raises DecodeError."""
    o = offset
    category = code >> 4
    if category < CATEGORY_FIXED_0:
        raise DecodeError(f"unknown format code {code:#04x}")
    if category <= CATEGORY_FIXED_16:
        if category > CATEGORY_FIXED_0:
            o += i64(16) >> (CATEGORY_FIXED_16 - category)
    elif category & 1:
        if end - o < 4:
            raise DecodeError(f"a size is cut off at {o}")
        size = i64(read_i32_be(data, o)) & 0xFFFFFFFF
        if category > CATEGORY_VARIABLE_8 + 1 and size < 4:
            raise DecodeError(f"a size of {size} has no room for a count")
        o += 4 + size
    else:
        if o >= end:
            raise DecodeError(f"a size is cut off at {o}")
        small: i64 = data[o]
        if category > CATEGORY_VARIABLE_8 and small == 0:
            raise DecodeError("a size of 0 has no room for a count")
        o += 1 + small
    if o > end:
        raise DecodeError(f"a value ends at {o}, beyond {end}")
    return o
