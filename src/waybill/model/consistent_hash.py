"""The exchange type `x-consistent-hash`: each message goes to one of the bindings, equal keys always to the same.

Bindings stand on a ring at as many points as their weight, which is their routing key. A message's hash finds the next
point. Adding or removing one binding of n moves about one message in n.
"""

import bisect
import zlib
from typing import Final

from waybill.model.binding import Binding
from waybill.model.errors import InvalidArgument, PreconditionFailed
from waybill.model.exchange import Exchange

POINTS_PER_WEIGHT: Final = 16
MAX_WEIGHT: Final = 1000
WEIGHT_DIGITS: Final = 5
# Of all bindings of an exchange together: a change to them costs as many points as there are on the ring.
MAX_WEIGHTS: Final = 10_000


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
        self._added: list[Binding] = []
        self._has_removed = False
        self._weights = 0

    def add(self, binding: Binding) -> None:
        weight = binding.routing_key
        if not (
            weight.isascii() and weight.isdigit() and len(weight) < WEIGHT_DIGITS and 1 <= int(weight) <= MAX_WEIGHT
        ):
            raise InvalidArgument(f"binding key '{weight}' must be a weight: a number from 1 to {MAX_WEIGHT}")
        if self._weights + int(weight) > MAX_WEIGHTS:
            raise PreconditionFailed(f"the weights of exchange '{self.name}' would come to more than {MAX_WEIGHTS}")
        super().add(binding)
        self._weights += int(weight)
        self._added.append(binding)

    def remove(self, binding: Binding) -> None:
        super().remove(binding)
        self._weights -= int(binding.routing_key)
        self._has_removed = True

    def match(self, routing_key: str, headers: dict[str, object], steps_max: int) -> list[Binding]:
        self.steps = 0
        if self._added or self._has_removed:
            self._arrange()
        if not self._ring:
            return []
        subject = routing_key if self._header is None else str(headers.get(self._header, ""))
        index = bisect.bisect(self._ring, (_hash(subject), ""))
        return [self.bindings[self._ring[index % len(self._ring)][1]]]

    def _arrange(self) -> None:
        """Bring the ring up to date, once for all that was bound and unbound since the last message."""
        if self._has_removed:
            self._has_removed = False
            bindings = self.bindings
            # One that was removed and bound again stands where it stood.
            added = {binding.key for binding in self._added}
            self._ring = [place for place in self._ring if place[1] in bindings and place[1] not in added]
        for binding in self._added:
            if self.bindings.get(binding.key) is binding:
                points = int(binding.routing_key) * POINTS_PER_WEIGHT
                self._ring += [(_hash(f"{binding.destination}\0{point}"), binding.key) for point in range(points)]
                self.steps += points
        self._added = []
        self._ring.sort()
        self.steps += len(self._ring) >> 4


def _hash(text: str) -> int:
    # CRC-32 of similar names differs in few bits; the multiplication spreads them over the ring.
    return zlib.crc32(text.encode("utf-8", "surrogateescape")) * 0x9E3779B1 & 0xFFFFFFFF
