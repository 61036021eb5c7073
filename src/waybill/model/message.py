"""A message as the model sees it: opaque content, and the few fields that the model acts on.

A message keeps the bytes that it was published with, in the encoding of its protocol. Consumers of that protocol get
them unchanged; for others, `MessageFormat` converts them. The model itself only asks a
format for headers (to route by them) and for a copy of the content with headers changed (dead lettering).
"""

from typing import Final

from mypy_extensions import i64

NO_TTL: Final = -1
# The memory of a message besides its content: the entry, and its places in the queue and among the unsettled. For a
# small message, it is most of the memory.
HOLDING_BYTES: Final = 200
# Headers of a message this small cost nothing extra, those of others a unit per 32 octets.
SMALL_MESSAGE_BYTES: Final = 1024
HEADER_UNIT_BITS: Final = 5


class MessageFormat:
    """How one protocol encodes a message's content. The engine of each protocol has one instance.

    `code` is stored with every durable message, so its meaning never changes: 1 is AMQP 0-9-1, 2 AMQP 1.0, 3 AMQP 0-10.
    """

    code: int
    name: str

    def __init__(self, code: int, name: str) -> None:
        self.code = code
        self.name = name

    def headers(self, content: bytes) -> dict[str, object]:
        """The application headers in `content`, by name."""
        raise NotImplementedError

    def some_headers(self, content: bytes, names: list[str]) -> dict[str, object]:
        """Those of the application headers in `content` that have these names."""
        headers = self.headers(content)
        return {name: headers[name] for name in names if name in headers}

    def property_text(self, content: bytes, name: str) -> str:
        """The `message_id`, `correlation_id` or `timestamp` in `content` as text, empty if it has none."""
        raise NotImplementedError

    def body_size(self, content: bytes) -> i64:
        """How many bytes of `content` are the message's body."""
        raise NotImplementedError

    def with_headers(
        self, content: bytes, changes: dict[str, object], removed: list[str], *, keep_expiration: bool
    ) -> bytes:
        """A copy of `content` with headers set and removed; unless kept, without its own time to live."""
        raise NotImplementedError

    def amended(self, content: bytes, changes: bytes) -> bytes:
        """A copy of `content` with a consumer's changes; `content` itself in protocols that have none."""
        del changes
        return content

    def level(self, priority: i64, levels: i64) -> i64:
        """The level of a message with this priority in a queue with `levels` levels; 0 is the lowest."""
        return min(priority, levels - 1)


class Address:
    """Where a message was published to: shared by all messages of one route, so that engines can cache by identity."""

    def __init__(self, exchange: str, routing_key: str) -> None:
        self.exchange = exchange
        self.routing_key = routing_key


class Message:
    """One published message. Immutable; several queues may hold the same one.

    `size` is what a queue needs to hold it, in bytes: the content, and `HOLDING_BYTES`; `ttl_ms` is the message's own
    time to live (`NO_TTL`: none); `published_at` is in seconds of the node's clock.
    """

    def __init__(
        self,
        format: MessageFormat,  # noqa: A002 - the noun of the field
        content: bytes,
        address: Address,
        durable: bool,
        priority: i64,
        ttl_ms: i64,
        published_at: float,
    ) -> None:
        self.format = format
        self.content = content
        self.address = address
        self.durable = durable
        self.priority: i64 = priority
        self.ttl_ms: i64 = ttl_ms
        self.published_at: float = published_at
        self.size: i64 = HOLDING_BYTES + len(content)

    def header_units(self) -> i64:
        """The cost of decoding the headers, in units of work: they may be most of a message of any size."""
        size: i64 = len(self.content)
        if size <= SMALL_MESSAGE_BYTES:
            return 0
        return (size - self.format.body_size(self.content)) >> HEADER_UNIT_BITS

    def amended(self, changes: bytes) -> "Message":
        """The message with what a consumer has changed."""
        content = self.format.amended(self.content, changes)
        return Message(self.format, content, self.address, self.durable, self.priority, self.ttl_ms, self.published_at)
