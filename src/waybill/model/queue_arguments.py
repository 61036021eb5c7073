"""The arguments of a queue (`x-...`), checked once at its declaration: limits, times to live, dead letters."""

from typing import Final

from waybill.model.errors import InvalidArgument

NO_LIMIT: Final = -1
MAX_TTL_MS: Final = 2**63 - 1
CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"
_STREAM_ONLY: Final = frozenset({"x-max-age", "x-stream-max-segment-size-bytes"})
FOREIGN_ARGUMENTS: Final[dict[str, frozenset[str]]] = {
    CLASSIC: _STREAM_ONLY | {"x-delivery-limit"},
    QUORUM: _STREAM_ONLY | {"x-max-priority"},
    STREAM: frozenset(
        {
            "x-alternate-exchange",
            "x-dead-letter-exchange",
            "x-dead-letter-routing-key",
            "x-delivery-limit",
            "x-expires",
            "x-max-length",
            "x-max-priority",
            "x-message-ttl",
            "x-overflow",
            "x-single-active-consumer",
        }
    ),
}
"""Arguments that belong to other types of queue, by type: as with RabbitMQ, they are refused and not ignored."""

KNOWN_ARGUMENTS: Final = FOREIGN_ARGUMENTS[STREAM] | {
    "x-max-age",
    "x-max-length-bytes",
    "x-message-deduplication",
    "x-queue-type",
    "x-stream-max-segment-size-bytes",
}
"""Arguments that a redeclaration must repeat. Other arguments are stored without effect, as in RabbitMQ."""

OVERFLOWS: Final = frozenset({"drop-head", "reject-publish", "reject-publish-dlx"})


class QueuePolicy:
    """The effective settings of a queue: its own arguments. Times are in milliseconds, sizes in bytes of content.

    Source of names and rules: RabbitMQ's queue arguments; `docs/reference/queues.md` lists them for users.
    """

    def __init__(self, arguments: dict[str, object]) -> None:
        self.type = _choice(arguments, "x-queue-type", frozenset({CLASSIC, QUORUM, STREAM}), CLASSIC)
        self.message_ttl_ms = _integer(arguments, "x-message-ttl", 0)
        self.expires_ms = _integer(arguments, "x-expires", 1)
        self.max_length = _integer(arguments, "x-max-length", 0)
        self.max_length_bytes = _integer(arguments, "x-max-length-bytes", 0)
        self.overflow = _choice(arguments, "x-overflow", OVERFLOWS, "drop-head")
        self.dead_letter_exchange = _text(arguments, "x-dead-letter-exchange")
        self.dead_letter_routing_key = _text(arguments, "x-dead-letter-routing-key")
        self.alternate_exchange = _text(arguments, "x-alternate-exchange")
        self.max_priority = _integer(arguments, "x-max-priority", 0)
        self.delivery_limit = _integer(arguments, "x-delivery-limit", 0)
        self.deduplicates = _boolean(arguments, "x-message-deduplication")
        self.single_active_consumer = _boolean(arguments, "x-single-active-consumer")
        self.max_age_ms = _age(arguments, "x-max-age")
        self.max_segment_bytes = _integer(arguments, "x-stream-max-segment-size-bytes", 1)
        if self.max_priority > 255:
            raise InvalidArgument("invalid arg 'x-max-priority': must be between 0 and 255")
        if self.dead_letter_routing_key is not None and self.dead_letter_exchange is None:
            raise InvalidArgument("invalid arg 'x-dead-letter-routing-key': requires 'x-dead-letter-exchange'")
        foreign = sorted(FOREIGN_ARGUMENTS[self.type].intersection(arguments))
        if foreign:
            raise InvalidArgument(f"invalid arg '{foreign[0]}': a {self.type} queue does not have it")


def _integer(arguments: dict[str, object], name: str, least: int) -> int:
    value = arguments.get(name)
    if value is None:
        return NO_LIMIT
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"invalid arg '{name}': must be an integer, not {type(value).__name__}")
    if not least <= value <= MAX_TTL_MS:
        raise InvalidArgument(f"invalid arg '{name}': {value} is not between {least} and {MAX_TTL_MS}")
    return value


def _text(arguments: dict[str, object], name: str) -> str | None:
    value = arguments.get(name)
    if value is None or isinstance(value, str):
        return value
    raise InvalidArgument(f"invalid arg '{name}': must be a string, not {type(value).__name__}")


def _boolean(arguments: dict[str, object], name: str) -> bool:
    value = arguments.get(name, False)
    if isinstance(value, bool):
        return value
    raise InvalidArgument(f"invalid arg '{name}': must be a boolean, not {type(value).__name__}")


def _choice(arguments: dict[str, object], name: str, choices: frozenset[str], default: str) -> str:
    value = arguments.get(name, default)
    if isinstance(value, str) and value in choices:
        return value
    raise InvalidArgument(f"invalid arg '{name}': {value!r} is not one of {', '.join(sorted(choices))}")


_AGE_UNITS_MS: Final = {
    "Y": 365 * 86_400_000, "M": 30 * 86_400_000, "D": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000,
}  # fmt: skip


AGE_MAX_MS: Final = 1 << 50
"""35,000 years: more makes no difference."""
AGE_DIGITS_MAX: Final = 16


def parse_age_ms(text: str) -> int | None:
    """The interval of a stream, a number and one of Y M D h m s ("7D"), in milliseconds; None if it is invalid.

    At most `AGE_MAX_MS`.
    """
    unit = _AGE_UNITS_MS.get(text[-1:])
    number = text[:-1]
    if unit is None or not (number.isascii() and number.isdigit()):
        return None
    number = number.lstrip("0")
    if len(number) > AGE_DIGITS_MAX:
        return AGE_MAX_MS
    return min(int(number or "0") * unit, AGE_MAX_MS)


def _age(arguments: dict[str, object], name: str) -> int:
    text = _text(arguments, name)
    if text is None:
        return NO_LIMIT
    age_ms = parse_age_ms(text)
    if age_ms is None:
        raise InvalidArgument(f"invalid arg '{name}': {text!r} is not a number and one of Y M D h m s, like 7D")
    return age_ms
