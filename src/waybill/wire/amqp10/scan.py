"""Reads and writes single fields in place, without objects, for the hot paths.

A function that reads takes the offset of a value and the end of its list. It returns the value (ABSENT for null) and
the offset after it. A value that is cut off, or of another type, raises DecodeError.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_be, write_i32_be
from mypy_extensions import i32, i64, u8

from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.descriptors import (
    DECLARED,
    MODIFIED,
    NAMES,
    RECEIVED,
    TRANSACTIONAL_STATE,
    UNKNOWN,
    read_descriptor,
)
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.frames import set_u32
from waybill.wire.amqp10.skip import skip_value

ABSENT: Final = -1

NO_STATE: Final = 0
"""No state: the code of no composite type."""


SMALL_ROOM: Final = 200
"""A field of this size leaves room in a list8 for the other fields of a transfer or disposition."""

_LIST_8_HEAD: Final = b"\xc0\x00\x00"
_LIST_32_HEAD: Final = b"\xd0\x00\x00\x00\x00\x00\x00\x00\x00"


def uint_at(data: bytes, o: i64, end: i64) -> tuple[i64, i64]:
    """A uint."""
    left = end - o
    if left > 0:
        form: i64 = data[o]
        if form == codes.SMALL_UINT and left >= 2:
            return data[o + 1], o + 2
        if form == codes.UINT_0:
            return 0, o + 1
        if form == codes.UINT and left >= 5:
            return i64(read_i32_be(data, o + 1)) & 0xFFFFFFFF, o + 5
        if form == codes.NULL:
            return ABSENT, o + 1
    raise _wrong(o)


def boolean_at(data: bytes, o: i64, end: i64) -> tuple[i64, i64]:
    """A boolean: 0 or 1."""
    left = end - o
    if left > 0:
        form: i64 = data[o]
        if form == codes.TRUE:
            return 1, o + 1
        if form == codes.FALSE:
            return 0, o + 1
        if form == codes.NULL:
            return ABSENT, o + 1
        if form == codes.BOOLEAN and left >= 2 and data[o + 1] <= 1:
            return data[o + 1], o + 2
    raise _wrong(o)


def ubyte_at(data: bytes, o: i64, end: i64) -> tuple[i64, i64]:
    """A ubyte."""
    left = end - o
    if left > 0:
        if data[o] == codes.UBYTE and left >= 2:
            return data[o + 1], o + 2
        if data[o] == codes.NULL:
            return ABSENT, o + 1
    raise _wrong(o)


def binary_at(data: bytes, o: i64, end: i64) -> tuple[i64, i64]:
    """A binary: returns the offset of its octets, and the offset after them."""
    left = end - o
    if left > 0:
        form: i64 = data[o]
        start: i64 = 0
        size: i64 = 0
        if form == codes.BINARY_8 and left >= 2:
            start = o + 2
            size = data[o + 1]
        elif form == codes.BINARY_32 and left >= 5:
            start = o + 5
            size = i64(read_i32_be(data, o + 1)) & 0xFFFFFFFF
        elif form == codes.NULL:
            return ABSENT, o + 1
        if start and size <= end - start:
            return start, start + size
    raise _wrong(o)


def state_at(data: bytes, o: i64, end: i64) -> tuple[i64, i64]:
    """A delivery state: the code of its descriptor (UNKNOWN, or NO_STATE for null). Its fields are not checked."""
    if o < end and data[o] == codes.NULL:
        return NO_STATE, o + 1
    code, _ = read_descriptor(data, o, end)
    after = skip_value(data, o, end)
    if RECEIVED <= code <= MODIFIED or DECLARED <= code <= TRANSACTIONAL_STATE:
        return code, after
    if code in NAMES:
        raise DecodeError(f"{code:#x} is not a delivery state")
    return UNKNOWN, after


def _wrong(o: i64) -> DecodeError:
    return DecodeError(f"a field at {o} is cut off or of the wrong type")


def open_list(out: BytesWriter, code: int, room: i64) -> i64:
    """Begin a composite type whose variable fields have `room` octets. Returns the offset for `close_list`.

    `code` is below 256. All other fields together must have less than 55 octets.
    """
    out.append(codes.DESCRIBED)
    out.append(codes.SMALL_ULONG)
    out.append(code)
    if room <= SMALL_ROOM:
        out.write(_LIST_8_HEAD)
    else:
        out.write(_LIST_32_HEAD)
    return len(out)


def close_list(out: BytesWriter, start: i64, count: i64, room: i64) -> None:
    """Set the size and count of a list that was begun with the same `room`."""
    size: i64 = len(out) - start
    if room <= SMALL_ROOM:
        out[start - 2] = u8(size + 1)
        out[start - 1] = u8(count)
    else:
        set_u32(out, start - 8, size + 4)
        set_u32(out, start - 4, count)


def put_uint(out: BytesWriter, value: i64) -> None:
    """Write a uint. The caller ensures that it fits."""
    if value == 0:
        out.append(codes.UINT_0)
    elif value <= 0xFF:
        out.append(codes.SMALL_UINT)
        out.append(value)
    else:
        out.append(codes.UINT)
        write_i32_be(out, i32((value ^ 0x80000000) - 0x80000000))


def put_boolean(out: BytesWriter, value: i64) -> None:
    """Write a boolean, null for ABSENT."""
    if value > 0:
        out.append(codes.TRUE)
    elif value == 0:
        out.append(codes.FALSE)
    else:
        out.append(codes.NULL)


def put_flag(out: BytesWriter, *, value: bool) -> None:
    """Write a boolean whose default is false, which becomes null."""
    out.append(codes.TRUE if value else codes.NULL)
