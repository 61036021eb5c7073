"""The format of messages that came over AMQP 0-10: their headers are the application-headers of message-properties.

The content is never changed by the broker, but for dead letters:

    | size u32 | header segment | body |

The values of delivery-properties are fields of the message, and the struct is written again for each consumer. So the
header segment contains it only if it has other values: a time, or an identity to resume by. Then it comes first.
"""

from datetime import datetime
from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from waybill.model.message import MessageFormat
from waybill.wire.amqp010.class_message import DeliveryProperties, MessageProperties
from waybill.wire.amqp010.errors import DecodeError
from waybill.wire.amqp010.message_header import MessageHeader, decode_header, encode_header
from waybill.wire.amqp010.types import Datetime

FORMAT_CODE: Final = 3
PRIORITIES: Final = 10
DEFAULT_PRIORITY: Final = 4
SIZE_OCTETS: Final = 4


class Amqp010Format(MessageFormat):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__(FORMAT_CODE, "AMQP 0-10")

    def headers(self, content: bytes) -> dict[str, object]:
        properties = _header_of(content).properties
        found = properties.application_headers if properties is not None else None
        return dict(found) if found else {}

    def property_text(self, content: bytes, name: str) -> str:
        header = _header_of(content)
        if name == "timestamp":
            moment = None if header.delivery is None else header.delivery.timestamp
            return "" if moment is None else str(int(moment))
        properties = header.properties
        if properties is None:
            return ""
        if name == "message_id":
            return "" if properties.message_id is None else str(properties.message_id)
        return (properties.correlation_id or b"").decode("utf-8", "replace")

    def body_size(self, content: bytes) -> i64:
        return len(content) - SIZE_OCTETS - i64(read_i32_be(content, 0))

    def with_headers(
        self, content: bytes, changes: dict[str, object], removed: list[str], *, keep_expiration: bool
    ) -> bytes:
        header = _header_of(content)
        known = header.properties
        properties = MessageProperties() if known is None else known
        headers = {name: value for name, value in (properties.application_headers or {}).items() if name not in removed}
        for name, value in changes.items():
            headers[name] = _encodable(value)
        changed = MessageProperties(
            content_length=properties.content_length,
            message_id=properties.message_id,
            correlation_id=properties.correlation_id,
            reply_to=properties.reply_to,
            content_type=properties.content_type,
            content_encoding=properties.content_encoding,
            user_id=properties.user_id,
            app_id=properties.app_id,
            application_headers=headers,
        )
        delivery = _kept_delivery(header.delivery, keep_expiration=keep_expiration)
        octets = encode_header(changed) if delivery is None else encode_header(delivery, changed)
        return packed(octets, content[SIZE_OCTETS + int(read_i32_be(content, 0)) :])

    def level(self, priority: i64, levels: i64) -> i64:
        """The level of a message in a queue with `levels` levels, as Qpid and AMQP 1.0 divide the ten priorities."""
        level = priority
        if levels < PRIORITIES:
            level -= 5 - (levels + 1) // 2
        return max(min(level, levels - 1), 0)


AMQP010: Final = Amqp010Format()


def packed(header: bytes, body: bytes) -> bytes:
    """The content of a message."""
    return len(header).to_bytes(SIZE_OCTETS, "big") + header + body


def header_of(content: bytes) -> bytes:
    """The header segment of a content."""
    return content[SIZE_OCTETS : SIZE_OCTETS + int(read_i32_be(content, 0))]


def _header_of(content: bytes) -> MessageHeader:
    """The decoded header segment; an empty one if it cannot be decoded, so that the message is not lost."""
    try:
        return decode_header(header_of(content))
    except DecodeError:
        return MessageHeader()


def _kept_delivery(delivery: DeliveryProperties | None, *, keep_expiration: bool) -> DeliveryProperties | None:
    if delivery is None:
        return None
    return DeliveryProperties(
        timestamp=delivery.timestamp,
        expiration=delivery.expiration if keep_expiration else None,
        resume_id=delivery.resume_id,
        resume_ttl=delivery.resume_ttl,
    )


def _encodable(value: object) -> object:
    """Return a value of the model in types that the protocol has."""
    if isinstance(value, datetime):
        return Datetime(int(value.timestamp()))
    if isinstance(value, dict):
        return {str(name): _encodable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    return value
