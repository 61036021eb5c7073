"""A message in the transit queue: the original message with its origin and number.

    headers   x-waybill-transit: run, number, queue, exchange, routing key, time
    body      4 octets: length of the properties | encoded properties | body

The properties are stored as octets, so they arrive unchanged, including those that the broker would interpret:
expiration, priority, user id, CC.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import msgspec

from waybill.client import BasicProperties, Delivery
from waybill.move.errors import MoveFailed
from waybill.ojs.spec.headers import PERSISTENT

STAMP: Final = "x-waybill-transit"
LENGTH_OCTETS: Final = 4


class Stamp(msgspec.Struct, frozen=True):
    """The origin of a message. `claimed_ms` is the Unix time in milliseconds."""

    run: str
    number: int
    queue: str
    exchange: str
    routing_key: str
    claimed_ms: int


@dataclass(frozen=True)
class InTransit:
    """A message in transit. `delivery` settles it in the transit queue."""

    stamp: Stamp
    properties: bytes
    body: bytes
    delivery: Delivery


def stamped(delivery: Delivery, queue: str, run: str, number: int) -> tuple[BasicProperties, bytes]:
    """Return properties and body of a message of `queue` for the transit queue."""
    stamp = Stamp(run, number, queue, delivery.exchange, delivery.routing_key, time.time_ns() // 1_000_000)
    properties = delivery.encoded_properties
    body = b"".join((len(properties).to_bytes(LENGTH_OCTETS), properties, delivery.body))
    return BasicProperties(headers={STAMP: msgspec.to_builtins(stamp)}, delivery_mode=PERSISTENT), body


def read_stamped(delivery: Delivery, transit: str) -> InTransit:
    """Return the content of a message in the transit queue. Raises MoveFailed for a foreign message."""
    try:
        stamp = msgspec.convert((delivery.properties.headers or {})[STAMP], Stamp)
    except (ValueError, KeyError):
        raise MoveFailed(f"{transit} contains a message that is not part of this move: remove it") from None
    length = int.from_bytes(delivery.body[:LENGTH_OCTETS])
    end = LENGTH_OCTETS + length
    return InTransit(stamp, delivery.body[LENGTH_OCTETS:end], delivery.body[end:], delivery)


def arriving(message: InTransit, user: str, *, keeps_user: bool = False) -> BasicProperties | bytes:
    """Return the properties of a message for the target; the time in transit counts for its expiration."""
    waited_ms = max(0, time.time_ns() // 1_000_000 - message.stamp.claimed_ms)
    return for_target(message.properties, user, keeps_user=keeps_user, waited_ms=waited_ms)


def for_target(
    encoded: bytes, user: str, *, keeps_user: bool = False, waited_ms: int | None = None
) -> BasicProperties | bytes:
    """Return properties for the target: the remaining expiration, and nothing that routes or is refused.

    `user` is the login there: another user id would be refused, unless the broker `keeps_user`.
    """
    try:
        properties = BasicProperties.decode(encoded)
    except ValueError:
        # They cannot be decoded, and arrive unchanged.
        return encoded
    changed = False
    headers = properties.headers
    if headers is not None and ("CC" in headers or "BCC" in headers):
        # The broker would route a second copy to those keys.
        properties.headers = {name: value for name, value in headers.items() if name not in {"CC", "BCC"}}
        changed = True
    if properties.user_id not in {None, user} and not keeps_user:
        properties.user_id = None
        changed = True
    expiration = properties.expiration
    if waited_ms is not None and expiration is not None and expiration.isdecimal():
        properties.expiration = str(max(0, int(expiration) - waited_ms))
        changed = True
    return properties if changed else encoded
