"""Reads fixed-size values and sizes, never beyond a set end."""

from mypy_extensions import i64

from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.octet_reader import OctetReader


class Reader(OctetReader):
    """Reads `data[offset:end]`. Every method raises DecodeError if octets are missing."""

    def malformed(self, text: str) -> DecodeError:
        return DecodeError(text)

    def size(self, *, wide: bool) -> i64:
        """A size or count of 4 octets if `wide`, else of 1."""
        return self.u32() if wide else self.u8()
