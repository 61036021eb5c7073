"""The exchange type `x-consistent-hash`: each message goes to one binding, and equal keys always to the same one.

Each binding has points on a ring, as many as its weight says, which is its routing key. A message goes to the point
that follows its hash. Adding or removing one binding of n moves about one message in n.

The cost of a change grows with the points on the ring. So each unit of weight has 16 points up to a total weight of
1,024, half as many up to 2,048, and so on.
"""

import bisect
import zlib
from typing import Final

from waybill.model.binding import Binding
from waybill.model.errors import InvalidArgument, PreconditionFailed
from waybill.model.exchange import Exchange

POINTS_PER_WEIGHT: Final = 16
MAX_WEIGHT: Final = 10_000
WEIGHT_DIGITS: Final = 5
RING_POINTS: Final = 16_384
# Of all bindings together: with one point for each unit of weight the ring is full.
MAX_WEIGHTS: Final = RING_POINTS
POINTS_PER_STEP_BITS: Final = 1
FEW_BITS: Final = 5
HASHED_PROPERTIES: Final = ("message_id", "correlation_id", "timestamp")


class ConsistentHashExchange(Exchange):
    """Hashes the routing key or, with `hash-header` or `hash-property`, the header or the property of that name."""

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
        hashed = arguments.get("hash-property", "")
        if not isinstance(hashed, str) or ("hash-property" in arguments and hashed not in HASHED_PROPERTIES):
            raise InvalidArgument(f"invalid arg 'hash-property': must be one of {', '.join(HASHED_PROPERTIES)}")
        if hashed and header is not None:
            raise InvalidArgument("invalid arg 'hash-property': there is a 'hash-header' as well")
        self._header: str | None = header
        self.hashed_property = hashed
        self.routes_by_headers = header is not None or hashed != ""
        self._ring: list[tuple[int, str]] = []
        self._halvings = 0
        self._added: list[Binding] = []
        self._removed: list[Binding] = []
        self._weights = 0

    def check(self, binding: Binding) -> None:
        weight = _weight(binding)
        if weight == 0:
            raise InvalidArgument(
                f"binding key '{binding.routing_key}' must be a weight: a number from 1 to {MAX_WEIGHT}"
            )
        if self._weights + weight > MAX_WEIGHTS:
            raise PreconditionFailed(f"the weights of exchange '{self.name}' would come to more than {MAX_WEIGHTS}")

    def add(self, binding: Binding) -> None:
        super().add(binding)
        self._weights += _weight(binding)
        self._added.append(binding)
        self._limit_changes()

    def remove(self, binding: Binding) -> None:
        super().remove(binding)
        self._weights -= _weight(binding)
        self._removed.append(binding)
        self._limit_changes()

    def _limit_changes(self) -> None:
        """Record a change. After too many, the next message rebuilds the ring from scratch."""
        if len(self._added) + len(self._removed) > 2 * RING_POINTS:
            self._added = []
            self._removed = []
            self._halvings = -1

    def match(self, routing_key: str, headers: dict[str, object], steps_max: int) -> list[Binding]:
        self.steps = 0
        if self._added or self._removed or self._halvings < 0:
            self._arrange()
        if not self._ring:
            return []
        subject = routing_key if self._header is None else str(headers.get(self._header, ""))
        index = bisect.bisect(self._ring, (_hash(subject), ""))
        return [self.bindings[self._ring[index % len(self._ring)][1]]]

    def _arrange(self) -> None:
        """Apply all changes since the last message to the ring."""
        halvings = 0
        while self._weights * POINTS_PER_WEIGHT >> halvings > RING_POINTS:
            halvings += 1
        removed = self._removed
        added = [binding for binding in self._added if self.bindings.get(binding.key) is binding]
        if halvings != self._halvings:
            self._halvings = halvings
            self._ring = []
            removed = []
            added = list(self.bindings.values())
        self._removed = []
        self._added = []
        gone = [place for binding in removed for place in self._places(binding)]
        come = [place for binding in added for place in self._places(binding)]
        moved = len(gone) + len(come)
        ring = self._ring
        if moved > len(ring) >> FEW_BITS:
            left = set(gone)
            self._ring = sorted([place for place in ring if place not in left] + come)
            moved += len(ring) >> 4
        else:
            # A binding that was removed and bound again keeps its points.
            for place in gone:
                index = bisect.bisect_left(ring, place)
                if index < len(ring) and ring[index] == place:
                    del ring[index]
            for place in come:
                bisect.insort(ring, place)
        # Never refuse the message for this: the first publisher after a restart did not create these bindings.
        self.steps += min(moved, RING_POINTS) >> POINTS_PER_STEP_BITS

    def _places(self, binding: Binding) -> list[tuple[int, str]]:
        """The points of a binding on the ring, each with its key."""
        points = max(_weight(binding) * POINTS_PER_WEIGHT >> self._halvings, 1)
        key = binding.key
        start = zlib.crc32(f"{binding.destination}\0".encode("utf-8", "surrogateescape"))
        return [(_spread(zlib.crc32(b"%d" % point, start)), key) for point in range(points)]


def _weight(binding: Binding) -> int:
    """The weight of a binding; 0 if its key is not a number in range."""
    digits = binding.routing_key.lstrip("0")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= WEIGHT_DIGITS):
        return 0
    weight = int(digits)
    return weight if weight <= MAX_WEIGHT else 0


def _hash(text: str) -> int:
    return _spread(zlib.crc32(text.encode("utf-8", "surrogateescape")))


def _spread(checksum: int) -> int:
    # CRC-32 of similar names differs in few bits; the multiplication spreads them over the ring.
    return checksum * 0x9E3779B1 & 0xFFFFFFFF
