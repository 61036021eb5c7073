"""What can be declared on a broker: exchanges, queues and bindings, as values."""

from __future__ import annotations

import msgspec


class ExchangeDeclaration(msgspec.Struct, frozen=True):
    """A durable exchange."""

    name: str
    type: str = "direct"
    arguments: dict[str, object] = {}


class QueueDeclaration(msgspec.Struct, frozen=True):
    """A durable queue that is neither exclusive nor deleted when it has no consumer.

    With `is_exact`, one with other properties is never used as it is found.
    """

    name: str
    arguments: dict[str, object] = {}
    is_exact: bool = False


class BindingDeclaration(msgspec.Struct, frozen=True):
    """A binding from an exchange to a queue, or to an exchange if `to_exchange`."""

    destination: str
    exchange: str
    routing_key: str
    to_exchange: bool = False
    arguments: dict[str, object] = {}


Entity = ExchangeDeclaration | QueueDeclaration | BindingDeclaration
