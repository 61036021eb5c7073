"""Reads big-endian values of fixed size from octets. The readers of all protocols derive from `OctetReader`.

Reading stops at a set end, so a nested value cannot take octets from what follows it.
"""

from librt.strings import read_f32_be, read_f64_be, read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64


class OctetReader:
    """Reads `data[offset:end]`. Every method raises the error of `missing` if octets are missing."""

    def __init__(self, data: bytes, offset: i64, end: i64) -> None:
        self.data = data
        self.offset: i64 = offset
        self.end: i64 = end
        if offset < 0 or end < offset or end > len(data):
            raise self.malformed(f"octets {offset} to {end} are not within {len(data)}")

    def malformed(self, text: str) -> Exception:
        """The protocol's error for octets that cannot be decoded."""
        raise NotImplementedError

    def missing(self, text: str) -> Exception:
        """The protocol's error for a value that does not fit the octets that are left."""
        return self.malformed(text)

    def take(self, size: i64) -> i64:
        """Skip `size` octets. Returns their offset."""
        start = self.offset
        if size > self.end - start:
            raise self.missing(f"{size} octets wanted at {start}, {self.end - start} left")
        self.offset = start + size
        return start

    def octets(self, size: i64) -> bytes:
        start = self.take(size)
        return self.data[start : start + size]

    def u8(self) -> i64:
        return self.data[self.take(1)]

    def u16(self) -> i64:
        return i64(read_i16_be(self.data, self.take(2))) & 0xFFFF

    def u32(self) -> i64:
        return i64(read_i32_be(self.data, self.take(4))) & 0xFFFFFFFF

    def u64(self) -> int:
        """A Python integer, because it may exceed 63 bits."""
        return int.from_bytes(self.octets(8), "big")

    def s8(self) -> i64:
        value = self.u8()
        return value - 0x100 if value > 0x7F else value

    def s16(self) -> i64:
        return i64(read_i16_be(self.data, self.take(2)))

    def s32(self) -> i64:
        return i64(read_i32_be(self.data, self.take(4)))

    def s64(self) -> i64:
        return read_i64_be(self.data, self.take(8))

    def f32(self) -> float:
        return read_f32_be(self.data, self.take(4))

    def f64(self) -> float:
        return read_f64_be(self.data, self.take(8))
