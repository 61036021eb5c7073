"""The exchange type `x-consistent-hash`: each message goes to one of the bindings, equal keys always to the same.

Bindings stand on a ring at as many points as their weight, which is their routing key. A message's hash finds the next
point. Adding or removing one binding of n moves about one message in n.
"""

import bisect
import zlib
from typing import Final

from waybill.model.binding import Binding
from waybill.model.errors import InvalidArgument
from waybill.model.exchange import Exchange

POINTS_PER_WEIGHT: Final = 16
MAX_WEIGHT: Final = 10_000


class ConsistentHashExchange(Exchange):
    """Hashes the routing key or, with the argument `hash-header`, the header of that name."""

    type = "x-consistent-hash"

    def __init__(
        self,
        name: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(name, durable, auto_delete, internal, arguments)
        header = arguments.get("hash-header")
        if header is not None and not isinstance(header, str):
            raise InvalidArgument("invalid arg 'hash-header': must be a string")
        if "hash-property" in arguments:
            raise InvalidArgument("invalid arg 'hash-property': only the routing key or a 'hash-header' can be hashed")
        self._header: str | None = header
        self.routes_by_headers = header is not None
        self._ring: list[tuple[int, str]] = []

    def add(self, binding: Binding) -> None:
        weight = binding.routing_key
        if not (weight.isascii() and weight.isdigit() and 1 <= int(weight) <= MAX_WEIGHT):
            raise InvalidArgument(f"binding key '{weight}' must be a weight: a number from 1 to {MAX_WEIGHT}")
        super().add(binding)
        for point in range(int(weight) * POINTS_PER_WEIGHT):
            bisect.insort(self._ring, (_hash(f"{binding.destination}\0{point}"), binding.key))

    def remove(self, binding: Binding) -> None:
        super().remove(binding)
        self._ring = [(point, key) for point, key in self._ring if key != binding.key]

    def match(self, routing_key: str, headers: dict[str, object]) -> list[Binding]:
        if not self._ring:
            return []
        subject = routing_key if self._header is None else str(headers.get(self._header, ""))
        index = bisect.bisect(self._ring, (_hash(subject), ""))
        return [self.bindings[self._ring[index % len(self._ring)][1]]]


def _hash(text: str) -> int:
    # CRC-32 of similar names differs in few bits; the multiplication spreads them over the ring.
    return zlib.crc32(text.encode("utf-8", "surrogateescape")) * 0x9E3779B1 & 0xFFFFFFFF
