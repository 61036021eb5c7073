"""Messages of a stream."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

# The header with a message's offset, from RabbitMQ and Waybill.
OFFSET_HEADER: Final = "x-stream-offset"


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of a basic content header, in the order of `schemas.PROPERTIES`; None for missing ones."""

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


_NO_PROPERTIES: Final = Properties()


@dataclass(frozen=True, slots=True, eq=False)
class Metadata:
    """The properties that a publisher has set. Messages with equal properties share an object."""

    timestamp: datetime | None
    properties: Properties
    headers: dict[str, object]
    """Without the offset."""


NO_METADATA: Final = Metadata(None, _NO_PROPERTIES, {})


@dataclass(slots=True)
class StreamMessage:
    """A message at an offset of a stream. `timestamp` is the publisher's, with a resolution of a second."""

    stream: str
    offset: int
    body: bytes
    timestamp: datetime | None = None
    properties: Properties = _NO_PROPERTIES
    headers: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class MessageBlock:
    """A block of messages of one stream, in order. Each list has an entry per message."""

    stream: str
    offsets: Sequence[int]
    bodies: list[bytes]
    metadata: list[Metadata]

    def messages(self) -> Iterator[StreamMessage]:
        for offset, body, one in zip(self.offsets, self.bodies, self.metadata, strict=True):
            yield StreamMessage(self.stream, offset, body, one.timestamp, one.properties, one.headers)

    def chosen(self, indices: Sequence[int]) -> "MessageBlock":
        """Only the messages at `indices` of the lists."""
        return MessageBlock(
            self.stream,
            [self.offsets[index] for index in indices],
            [self.bodies[index] for index in indices],
            [self.metadata[index] for index in indices],
        )


@lru_cache(maxsize=1024)
def utc_seconds(sent: int | datetime | None) -> datetime | None:
    """The time of a message's timestamp property, None if it is out of range."""
    if sent is None or isinstance(sent, datetime):
        return sent
    try:
        return datetime.fromtimestamp(sent, UTC)
    except (OverflowError, OSError, ValueError):
        return None
