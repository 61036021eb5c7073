"""A binding: the rule by which an exchange routes messages to a queue or to another exchange."""

import json
from typing import Final

from mypy_extensions import i64

QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"
"""The kinds of a destination."""


class Binding:
    """From the exchange `source` to the queue or exchange `destination`."""

    def __init__(
        self, source: str, destination: str, destination_kind: str, routing_key: str, arguments: dict[str, object]
    ) -> None:
        self.source = source
        self.destination = destination
        self.destination_kind = destination_kind
        self.routing_key = routing_key
        self.arguments = arguments
        self.key = binding_key(source, destination, destination_kind, routing_key, arguments)
        self.is_persistent = False
        self.footprint: i64 = 0
        # What its arguments cost to compare, in steps of routing.
        self.steps: i64 = 1


def binding_key(
    source: str, destination: str, destination_kind: str, routing_key: str, arguments: dict[str, object]
) -> str:
    """The identity of a binding among those of a virtual host, as one string."""
    extra = json.dumps(arguments, sort_keys=True, default=repr) if arguments else ""
    return f"{source}\0{destination_kind}\0{destination}\0{routing_key}\0{extra}"
