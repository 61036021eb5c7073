"""Memory that a connection makes the node hold for what is not finished: bodies, transactions, deliveries in pieces.

Messages in queues are counted by the queues. What is counted here has not become a message of a queue yet, or waits for
a slow reader. It counts towards the memory alarm, but never raises it alone: an alarm stops reading, and what is half
there could then never be finished. What goes beyond a limit is refused instead, and given back at once.
"""

from mypy_extensions import i64

from waybill.model.runtime import Runtime


class HeldMemory:
    """Of one connection, in bytes: at most `limit`, and of all connections at most `Runtime.held_limit_bytes`."""

    def __init__(self, runtime: Runtime, limit: i64) -> None:
        self._runtime = runtime
        self._limit: i64 = limit
        self.size: i64 = 0

    @property
    def is_full(self) -> bool:
        return self.size > self._limit

    def has_room(self, size: i64) -> bool:
        runtime = self._runtime
        return self.size + size <= self._limit and runtime.held_bytes + size <= runtime.held_limit_bytes

    def add(self, size: i64) -> bool:
        """False, and nothing is counted, if that is too much."""
        if not self.has_room(size):
            return False
        self.size += size
        self._runtime.held_bytes += size
        return True

    def add_anyway(self, size: i64) -> None:
        """Count what cannot be refused."""
        self.size += size
        self._runtime.held_bytes += size

    def give_back(self, size: i64) -> None:
        self.size -= size
        self._runtime.held_bytes -= size

    def refusal(self) -> str:
        """What a peer is told whose body or transaction does not fit."""
        return f"more than {self._limit >> 20} MiB of unfinished messages on this connection, or too many on the node"
