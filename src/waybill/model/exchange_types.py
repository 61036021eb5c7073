"""The exchange types by their names."""

from typing import Final

from waybill.model.consistent_hash import ConsistentHashExchange
from waybill.model.delay import DelayedExchange
from waybill.model.errors import UnknownExchangeType
from waybill.model.exchange import PLAIN_TYPES, Exchange
from waybill.model.local_random import LocalRandomExchange

EXCHANGE_TYPES: Final[dict[str, type[Exchange]]] = {
    **PLAIN_TYPES,
    "x-consistent-hash": ConsistentHashExchange,
    "x-delayed-message": DelayedExchange,
    "x-local-random": LocalRandomExchange,
}

PREDECLARED: Final = (
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
)
"""The predeclared exchanges of every virtual host except the default one: name, type, and whether it is internal."""


def make_exchange(
    name: str,
    type_name: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: dict[str, object],
) -> Exchange:
    """A new exchange. Raises `UnknownExchangeType` or `InvalidArgument`."""
    kind = EXCHANGE_TYPES.get(type_name)
    if kind is None:
        raise UnknownExchangeType(f"unknown exchange type '{type_name}'")
    return kind(name, durable, auto_delete, internal, arguments)
