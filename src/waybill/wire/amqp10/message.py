"""The composite sections of a message (1.0, 3.2.1 and 3.2.4). For the others see `sections`."""

from dataclasses import dataclass
from typing import Final

from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import Composite, composite
from waybill.wire.amqp10.types import ULong, Uuid

DEFAULT_PRIORITY: Final = 4

MessageId = ULong | Uuid | bytes | str


@composite(descriptors.HEADER, "durable:boolean priority:ubyte ttl:uint first_acquirer:boolean delivery_count:uint")
@dataclass(frozen=True)
class Header(Composite):
    """Delivery details of a message. `ttl` is in milliseconds."""

    durable: bool = False
    priority: int = DEFAULT_PRIORITY
    ttl: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


@composite(
    descriptors.PROPERTIES,
    "message_id:message_id user_id:binary to:string subject:string reply_to:string correlation_id:message_id "
    "content_type:symbol content_encoding:symbol absolute_expiry_time:timestamp creation_time:timestamp "
    "group_id:string group_sequence:uint reply_to_group_id:string",
)
@dataclass(frozen=True)
class Properties(Composite):
    """Properties that the sender sets. Times are milliseconds since 1970 in UTC."""

    message_id: MessageId | None = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: MessageId | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None
