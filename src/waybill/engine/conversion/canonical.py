"""The canonical message: each protocol converts to it and from it, and knows no other protocol.

It uses the type system of AMQP 1.0 (`wire.amqp10.types`), the richest of them. Values that another protocol cannot
represent are kept under `foreign`, in a form that their own protocol restores unchanged.
"""

from typing import Final

from waybill.wire.amqp10.message import MessageId

NO_BODY: Final = 0
DATA: Final = 1
OTHER_SECTIONS: Final = 2

UNSET: Final = -1


class CanonicalMessage:
    """A message without an encoding. Absent is None, or empty.

    `priority` and `ttl_ms` are UNSET if absent; times are milliseconds since 1970. `annotations` has symbols and ulongs
    as keys, `application_properties` strings. The body is `data`, one entry a data section, if `body_kind` is DATA;
    `sections`, encoded as in 1.0, if it is OTHER_SECTIONS; nothing if NO_BODY. `footer` is the encoded section.

    `type` is that of 0-9-1. `headers` are headers of 0-9-1 that cannot be application properties: their values are
    tables or arrays, or their names are not text. `foreign` are properties of 0-9-1, by their names there, with values
    that their counterparts here cannot represent.
    """

    def __init__(self) -> None:
        self.durable = False
        self.priority = UNSET
        self.ttl_ms = UNSET
        self.message_id: MessageId | None = None
        self.user_id: bytes | None = None
        self.to: str | None = None
        self.subject: str | None = None
        self.reply_to: str | None = None
        self.correlation_id: MessageId | None = None
        self.content_type: str | None = None
        self.content_encoding: str | None = None
        self.absolute_expiry_time: int | None = None
        self.creation_time: int | None = None
        self.group_id: str | None = None
        self.group_sequence: int | None = None
        self.reply_to_group_id: str | None = None
        self.annotations: dict[object, object] = {}
        self.application_properties: dict[str, object] = {}
        self.body_kind = NO_BODY
        self.data: list[bytes] = []
        self.sections = b""
        self.footer = b""
        self.type: str | None = None
        self.headers: dict[object, object] = {}
        self.foreign: dict[str, object] = {}
