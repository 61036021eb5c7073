"""Estimates of the memory that entities and connections take.

The sum reduces the memory for messages and for incomplete input. To keep some for them, the node refuses declarations
that would exceed `Runtime.declarable_bytes`, and connections that would exceed `Runtime.footprint_limit_bytes`. The
latter is more, so that endless declarations lock nobody out.

The figures are upper estimates for plain Python; compiled objects take about half.
`tests/security/test_footprint.py` compares them with what is allocated.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.declaration_limits import size_of
from waybill.model.errors import ResourceRefused
from waybill.model.runtime import Runtime

DELAYED: Final = "x-delayed-message"
QUEUE_BYTES: Final = 2300  # and its priority levels
DURABLE_BYTES: Final = 500
EXCHANGE_BYTES: Final = 900
DELAY_BYTES: Final = 3500
BINDING_BYTES: Final = 700
WORD_BYTES: Final = 360
CONNECTION_BYTES: Final = 9000
CHANNEL_BYTES: Final = 2600
CONSUMER_BYTES: Final = 600
SESSION_BYTES: Final = 4000
LINK_BYTES: Final = 6000
TERMINUS_BYTES: Final = 2000
TEXTS: Final = 2
"""The number of copies of a name or argument in memory: in an entity, a key and a definition."""


def check_footprint(runtime: Runtime, what: str, size: i64) -> None:
    """Raises ResourceRefused if `size` more bytes of declarations do not fit."""
    limit = runtime.declarable_bytes()
    if runtime.footprint_bytes + size > limit:
        raise ResourceRefused(
            f"cannot keep {what}: all declared and attached resources use {runtime.footprint_bytes >> 20} MiB, of "
            f"{limit >> 20} allowed on this node; delete something first, or give the node more memory"
        )


def consumer_size(tag: str) -> int:
    return CONSUMER_BYTES + len(tag) * TEXTS


def queue_size(name: str, arguments: dict[str, object], *, is_persistent: bool) -> int:
    size = QUEUE_BYTES + (len(name) + size_of(arguments)) * TEXTS
    return size + DURABLE_BYTES if is_persistent else size


def exchange_size(name: str, exchange_type: str, arguments: dict[str, object], *, is_durable: bool) -> int:
    size = EXCHANGE_BYTES + (len(name) + size_of(arguments)) * TEXTS
    if exchange_type == DELAYED:
        size += DELAY_BYTES
    return size + DURABLE_BYTES if is_durable else size


def binding_size(
    exchange_type: str, key: str, routing_key: str, arguments: dict[str, object], *, is_durable: bool
) -> int:
    """`key`: the binding's identity, with all of its names."""
    size = BINDING_BYTES + len(key) * TEXTS + size_of(arguments) * TEXTS
    if exchange_type in {"topic", DELAYED}:
        size += WORD_BYTES * (routing_key.count(".") + 1)
    return size + DURABLE_BYTES if is_durable else size
