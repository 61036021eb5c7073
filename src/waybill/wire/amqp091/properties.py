"""The properties of class basic (0-9-1, 1.8 and 4.2.6.1): 16 flags, then the values that they announce.

    bit 15             ...                    bit 2   bit 1   bit 0
    content-type | content-encoding | ... | reserved | unused | another 16 flags follow

Class basic has no 15th property, so bits 1 and 0 are always clear. The reserved one (once the cluster id) is read over.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.wire.amqp091.errors import DecodeError
from waybill.wire.amqp091.field_table import encode_table, read_table, unix_seconds
from waybill.wire.amqp091.octets import Reader, write_short_string, write_unsigned

FLAG_CONTENT_TYPE: Final = 1 << 15
FLAG_CONTENT_ENCODING: Final = 1 << 14
FLAG_HEADERS: Final = 1 << 13
FLAG_DELIVERY_MODE: Final = 1 << 12
FLAG_PRIORITY: Final = 1 << 11
FLAG_CORRELATION_ID: Final = 1 << 10
FLAG_REPLY_TO: Final = 1 << 9
FLAG_EXPIRATION: Final = 1 << 8
FLAG_MESSAGE_ID: Final = 1 << 7
FLAG_TIMESTAMP: Final = 1 << 6
FLAG_TYPE: Final = 1 << 5
FLAG_USER_ID: Final = 1 << 4
FLAG_APP_ID: Final = 1 << 3
FLAG_RESERVED: Final = 1 << 2
UNKNOWN_FLAGS: Final = 0b11

TRANSIENT: Final = 1
PERSISTENT: Final = 2


@dataclass
class BasicProperties:
    """The properties of a message; None: absent.

    `delivery_mode` 2 is persistent. `expiration` is a time to live in milliseconds, as decimal digits. `timestamp` is
    Unix time in seconds: given as an int or a datetime, always an int after decoding.
    """

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, object] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | datetime | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None

    def encode(self) -> bytes:
        """Flags and values, as they end a content header frame. Raises EncodeError."""
        values = BytesWriter()
        flags = _write_text(values, self.content_type, FLAG_CONTENT_TYPE)
        flags |= _write_text(values, self.content_encoding, FLAG_CONTENT_ENCODING)
        if self.headers is not None:
            values.write(encode_table(self.headers))
            flags |= FLAG_HEADERS
        if self.delivery_mode is not None:
            write_unsigned(values, self.delivery_mode, 1)
            flags |= FLAG_DELIVERY_MODE
        if self.priority is not None:
            write_unsigned(values, self.priority, 1)
            flags |= FLAG_PRIORITY
        flags |= _write_text(values, self.correlation_id, FLAG_CORRELATION_ID)
        flags |= _write_text(values, self.reply_to, FLAG_REPLY_TO)
        flags |= _write_text(values, self.expiration, FLAG_EXPIRATION)
        flags |= _write_text(values, self.message_id, FLAG_MESSAGE_ID)
        if self.timestamp is not None:
            write_unsigned(values, unix_seconds(self.timestamp), 8)
            flags |= FLAG_TIMESTAMP
        flags |= _write_text(values, self.type, FLAG_TYPE)
        flags |= _write_text(values, self.user_id, FLAG_USER_ID)
        flags |= _write_text(values, self.app_id, FLAG_APP_ID)
        return flags.to_bytes(2, "big") + values.getvalue()

    @staticmethod
    def decode(data: bytes, offset: i64 = 0, end: i64 = -1) -> "BasicProperties":
        """Decode the flags and values in `data[offset:end]` (-1: to the end), all of it. Raises DecodeError."""
        reader = Reader(data, offset, len(data) if end == -1 else end)
        flags = reader.u16()
        if flags & UNKNOWN_FLAGS:
            raise DecodeError(f"property flags {flags:#06x} announce properties that class basic does not have")
        properties = BasicProperties(
            content_type=reader.short_string() if flags & FLAG_CONTENT_TYPE else None,
            content_encoding=reader.short_string() if flags & FLAG_CONTENT_ENCODING else None,
            headers=read_table(reader) if flags & FLAG_HEADERS else None,
            delivery_mode=reader.u8() if flags & FLAG_DELIVERY_MODE else None,
            priority=reader.u8() if flags & FLAG_PRIORITY else None,
            correlation_id=reader.short_string() if flags & FLAG_CORRELATION_ID else None,
            reply_to=reader.short_string() if flags & FLAG_REPLY_TO else None,
            expiration=reader.short_string() if flags & FLAG_EXPIRATION else None,
            message_id=reader.short_string() if flags & FLAG_MESSAGE_ID else None,
            timestamp=reader.u64() if flags & FLAG_TIMESTAMP else None,
            type=reader.short_string() if flags & FLAG_TYPE else None,
            user_id=reader.short_string() if flags & FLAG_USER_ID else None,
            app_id=reader.short_string() if flags & FLAG_APP_ID else None,
        )
        if flags & FLAG_RESERVED:
            reader.short_string()
        reader.finish()
        return properties


def _write_text(out: BytesWriter, value: str | None, flag: int) -> int:
    """Write a text property if there is one. Returns its flag, or 0."""
    if value is None:
        return 0
    write_short_string(out, value)
    return flag
