"""Message ids and correlation ids: text in 0-9-1; a string, uuid, ulong or binary in 1.0. As RabbitMQ 4 has it.

| 1.0 | 0-9-1 property | header beside it |
|---|---|---|
| string | the same | |
| string or binary that is too long | | `x-message-id`: the same |
| uuid | `urn:uuid:...` | |
| ulong | decimal digits | `x-message-id-type`: `ulong` |
| binary | Base64 | `x-message-id-type`: `binary` |
"""

import base64
import binascii
from typing import Final

from waybill.wire.amqp10.message import MessageId
from waybill.wire.amqp10.types import ULong, Uuid

TEXT_OCTETS_MAX: Final = 255
TYPE_SUFFIX: Final = "-type"
ULONG: Final = "ulong"
BINARY: Final = "binary"

_URN: Final = "urn:uuid:"
_UUID_TEXT_SIZE: Final = 36
_ULONG_MAX: Final = 2**64 - 1


def text_of(identifier: MessageId) -> tuple[str | None, str | None]:
    """The 0-9-1 property, None if it does not fit, and the name of its type, None if it is obvious."""
    text: str
    kind: str | None = None
    if isinstance(identifier, Uuid):
        text = _URN + str(identifier)
    elif isinstance(identifier, bytes):
        text, kind = base64.b64encode(identifier).decode(), BINARY
    elif isinstance(identifier, str):
        text = identifier
    else:
        text, kind = str(int(identifier)), ULONG
    if len(text.encode()) > TEXT_OCTETS_MAX:
        return None, None
    return text, kind


def identifier_of(text: str, kind: object) -> MessageId | None:
    """The 1.0 id represented by a text of that type; None if it represents none."""
    if kind == ULONG:
        is_number = text.isascii() and text.isdigit() and len(text) <= 20 and str(int(text)) == text
        return ULong(int(text)) if is_number and int(text) <= _ULONG_MAX else None
    if kind == BINARY:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return None
    return _uuid(text) or text


def _uuid(text: str) -> Uuid | None:
    if not text.startswith(_URN) or len(text) != len(_URN) + _UUID_TEXT_SIZE:
        return None
    try:
        identifier = Uuid(bytes.fromhex(text[len(_URN) :].replace("-", "")))
    except ValueError:
        return None
    return identifier if _URN + str(identifier) == text else None
