"""Sequence numbers of 32 bits, which wrap: serial number arithmetic as in RFC 1982; and sets of them."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.wire.amqp010.errors import DecodeError, EncodeError
from waybill.wire.amqp010.octets import Reader, write_unsigned
from waybill.wire.amqp010.types import Ranges

MASK: Final = 0xFFFFFFFF
HALF: Final = 0x80000000
_RANGE_SIZE: Final = 8
MAX_RANGES: Final = 0xFFFF // _RANGE_SIZE
"""The maximum that a size of 2 octets allows."""


def serial_distance(first: i64, last: i64) -> i64:
    """The distance from `first` to `last`: negative if `last` comes before `first`."""
    distance = (last - first) & MASK
    return distance - (MASK + 1) if distance >= HALF else distance


def serial_less(one: i64, other: i64) -> bool:
    """Whether `one` comes before `other`."""
    distance = (other - one) & MASK
    return 0 < distance < HALF


def read_ranges(reader: Reader) -> Ranges:
    """A sequence-set: its size, then first and last number of each range. Raises DecodeError."""
    size = reader.u16()
    if size % _RANGE_SIZE:
        raise DecodeError(f"a sequence-set of {size} octets")
    ranges: list[tuple[int, int]] = []
    for _ in range(size // _RANGE_SIZE):
        first = reader.u32()
        last = reader.u32()
        if serial_less(last, first):
            raise DecodeError(f"a range from {first} to {last}")
        ranges.append((first, last))
    return tuple(ranges)


def write_ranges(out: BytesWriter, ranges: object) -> None:
    """Write a sequence-set. Raises EncodeError for more than `MAX_RANGES`."""
    if not isinstance(ranges, (tuple, list)) or len(ranges) > MAX_RANGES:
        raise EncodeError(f"at most {MAX_RANGES} ranges are needed")
    write_unsigned(out, _RANGE_SIZE * len(ranges), 2)
    for one in ranges:
        first, last = one
        write_unsigned(out, first, 4)
        write_unsigned(out, last, 4)
