"""The elementary types of 0-9-1 (4.2.5): big-endian integers, short and long strings.

A `Reader` never looks beyond its `end`, so a nested table cannot take octets from what follows it. Strings are octets
on the wire (errata 16): they are decoded as UTF-8 with surrogate escapes, so that any octets survive a round trip.
"""

from typing import Final

from librt.strings import BytesWriter

from waybill.wire.amqp091.errors import DecodeError, EncodeError, FrameError
from waybill.wire.octet_reader import OctetReader

MAX_SHORT_STRING: Final = 255
MAX_U8: Final = 0xFF
MAX_U64: Final = 0xFFFFFFFFFFFFFFFF


class Reader(OctetReader):
    """Reads `data[offset:end]`. Every method raises FrameError if octets are missing."""

    def malformed(self, text: str) -> DecodeError:
        return DecodeError(text)

    def missing(self, text: str) -> FrameError:
        return FrameError(text)

    def short_string(self) -> str:
        """A shortstr: length octet, text."""
        return self.octets(self.u8()).decode("utf-8", "surrogateescape")

    def long_octets(self) -> bytes:
        """A longstr as octets: long-uint length, octets."""
        return self.octets(self.u32())

    def long_string(self) -> str:
        """A longstr as text."""
        return self.octets(self.u32()).decode("utf-8", "surrogateescape")

    def finish(self) -> None:
        """Raise FrameError if octets are left."""
        if self.offset != self.end:
            raise FrameError(f"{self.end - self.offset} octets too many")


def write_unsigned(out: BytesWriter, value: object, size: int) -> None:
    """Write an unsigned integer of `size` octets. Raises EncodeError if it is of another type or does not fit."""
    if not isinstance(value, int):
        raise EncodeError(f"an integer is needed, not {type(value).__name__}")
    if value < 0 or value >> (8 * size):
        raise EncodeError(f"{value} does not fit {size} unsigned octets")
    out.write(value.to_bytes(size, "big"))


def text_octets(value: object) -> bytes:
    """The octets of a string (str as UTF-8, or bytes-like as they are). Raises EncodeError for any other type."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise EncodeError(f"not encodable as UTF-8: {error.reason}") from None
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise EncodeError(f"a string is needed, not {type(value).__name__}")


def write_short_string(out: BytesWriter, value: object) -> None:
    """Write a shortstr. Raises EncodeError beyond 255 octets."""
    octets = text_octets(value)
    if len(octets) > MAX_SHORT_STRING:
        raise EncodeError(f"a short string holds {MAX_SHORT_STRING} octets, not {len(octets)}")
    out.append(len(octets))
    out.write(octets)


def write_long_octets(out: BytesWriter, octets: bytes) -> None:
    """Write a longstr."""
    write_unsigned(out, len(octets), 4)
    out.write(octets)
