"""One message of a stream, as the pipeline sees it, and its row."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

# RabbitMQ and our broker say a message's place in its stream with this header.
OFFSET_HEADER: Final = "x-stream-offset"


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of a basic content header, in the order of `schemas.PROPERTIES`; None for what was not sent."""

    content_type: str | None = None
    content_encoding: str | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None


_PROPERTY_NAMES: Final = tuple(Properties.__dataclass_fields__)
_NO_PROPERTIES: Final = Properties()


# Not frozen: one is made for every message, and setting the fields of a frozen one takes three times as long.
@dataclass(slots=True)
class StreamMessage:
    """A message at an offset of a stream. `timestamp` is the publisher's, with a resolution of a second."""

    stream: str
    offset: int
    body: bytes
    timestamp: datetime | None = None
    properties: Properties = _NO_PROPERTIES
    headers: Mapping[str, object] = field(default_factory=dict)


def message_row(message: StreamMessage) -> tuple[object, ...]:
    """The message in the columns of `schemas.MESSAGE`."""
    properties = message.properties
    return (
        message.body,
        message.stream,
        message.offset,
        message.timestamp,
        {name: getattr(properties, name) for name in _PROPERTY_NAMES},
        header_entries(message),
    )


def header_entries(message: StreamMessage) -> list[tuple[str, str | None]]:
    """The publisher's headers as the entries of a map; what is no text is given as JSON."""
    return [(name, _text(value)) for name, value in message.headers.items() if name != OFFSET_HEADER]


@lru_cache(maxsize=1024)
def utc_seconds(sent: int | datetime | None) -> datetime | None:
    """The moment that a message's timestamp property names, or None for one outside of the calendar."""
    if sent is None or isinstance(sent, datetime):
        return sent
    try:
        return datetime.fromtimestamp(sent, UTC)
    except (OverflowError, OSError, ValueError):
        return None


def _text(value: object) -> str | None:
    """A header's value as text: strings as they are, everything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: object) -> object:
    """What JSON has no form for: moments as RFC 3339, bytes as text, decimals and the rest by their own text."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return str(value)
