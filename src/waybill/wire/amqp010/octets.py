"""Reads and writes fixed-size values, sizes and strings."""

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.wire.amqp010.errors import DecodeError, EncodeError
from waybill.wire.octet_reader import OctetReader


class Reader(OctetReader):
    """Reads `data[offset:end]`. Every method raises DecodeError if octets are missing."""

    def malformed(self, text: str) -> DecodeError:
        return DecodeError(text)

    def size(self, width: i64) -> i64:
        """A size of 1, 2 or 4 octets."""
        if width == 1:
            return self.u8()
        return self.u16() if width == 2 else self.u32()

    def text(self, width: i64) -> str:
        """A string of UTF-8 after its size."""
        try:
            return self.octets(self.size(width)).decode("utf-8")
        except UnicodeDecodeError:
            raise DecodeError("a string is not UTF-8") from None

    def enter(self, size: i64) -> i64:
        """Limit reading to the next `size` octets. Returns the previous end, for `leave`."""
        outer_end = self.end
        if size > outer_end - self.offset:
            raise DecodeError(f"{size} octets wanted at {self.offset}, {outer_end - self.offset} left")
        self.end = self.offset + size
        return outer_end

    def leave(self, outer_end: i64) -> None:
        """End the limit of `enter`. Raises DecodeError if octets are left."""
        self.finish()
        self.end = outer_end

    def finish(self) -> None:
        """Raise DecodeError if octets are left."""
        if self.offset != self.end:
            raise DecodeError(f"{self.end - self.offset} octets too many at {self.offset}")


def write_unsigned(out: BytesWriter, value: object, size: int) -> None:
    """Write an unsigned integer of `size` octets. Raises EncodeError if it is of another type or does not fit."""
    if not isinstance(value, int):
        raise EncodeError(f"an integer is needed, not {type(value).__name__}")
    if value < 0 or value >> (8 * size):
        raise EncodeError(f"{value} does not fit {size} unsigned octets")
    out.write(value.to_bytes(size, "big"))


def write_signed(out: BytesWriter, value: int, size: int) -> None:
    """Write an integer of `size` octets. Raises EncodeError if it does not fit."""
    limit = 1 << (8 * size - 1)
    if not -limit <= value < limit:
        raise EncodeError(f"{value} does not fit {size} octets")
    out.write(value.to_bytes(size, "big", signed=True))


def write_octets(out: BytesWriter, value: object, width: int) -> None:
    """Write octets after a size of `width` octets. Raises EncodeError if they are of another type or do not fit."""
    if not isinstance(value, bytes):
        raise EncodeError(f"octets are needed, not {type(value).__name__}")
    if len(value) >> (8 * width):
        raise EncodeError(f"{len(value)} octets do not fit a size of {width}")
    write_unsigned(out, len(value), width)
    out.write(value)


def write_text(out: BytesWriter, value: object, width: int) -> None:
    """Write a string as UTF-8 after its size. Raises EncodeError if it is of another type or does not fit."""
    if not isinstance(value, str):
        raise EncodeError(f"a string is needed, not {type(value).__name__}")
    try:
        write_octets(out, value.encode("utf-8"), width)
    except UnicodeEncodeError as error:
        raise EncodeError(f"not encodable as UTF-8: {error.reason}") from None
