"""Memory of a connection's unfinished input: bodies, transactions, deliveries in pieces.

Messages in queues are counted by the queues. Memory counted here is not a message of a queue yet, or waits for a slow
reader. It counts towards the memory alarm, but never raises it alone: an alarm stops reading, and unfinished input
could then never be completed. Input beyond a limit is refused instead, and its memory released immediately.

What a connection has attached (channels, consumers, sessions, links) is part of the footprint of the node, like what is
declared (see `waybill.model.footprint`), and so is the connection.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.footprint import CONNECTION_BYTES
from waybill.model.runtime import Runtime

# The buffers of a connection's transport and engine if its peer does not read; less where memory is scarce.
UNREAD_BYTES: Final = 1 << 20
SPARE_OUTPUT_BYTES: Final = 32 << 10


class HeldMemory:
    """Of one connection, in bytes: at most `limit`, and of all connections at most `Runtime.held_limit_bytes`."""

    def __init__(self, runtime: Runtime, limit: i64) -> None:
        self._runtime = runtime
        self._limit: i64 = limit
        self.size: i64 = 0
        self._unread: i64 = 0
        self._attached: i64 = CONNECTION_BYTES
        runtime.add_footprint(CONNECTION_BYTES)

    @property
    def is_full(self) -> bool:
        return self.size > self._limit

    def has_room(self, size: i64) -> bool:
        runtime = self._runtime
        return self.size + size <= self._limit and runtime.held_bytes + size <= runtime.held_limit_bytes

    def add(self, size: i64) -> bool:
        """Count octets. False, and nothing is counted, if a limit would be exceeded."""
        if not self.has_room(size):
            return False
        self.size += size
        self._runtime.held_bytes += size
        return True

    def add_anyway(self, size: i64) -> None:
        """Count octets that cannot be refused."""
        self.size += size
        self._runtime.held_bytes += size

    def give_back(self, size: i64) -> None:
        self.size -= size
        self._runtime.held_bytes -= size

    # --- what is attached ---

    def can_attach(self, size: i64) -> bool:
        return self._runtime.footprint_bytes + size <= self._runtime.footprint_limit_bytes

    def attach(self, size: i64) -> None:
        self._attached += size
        self._runtime.add_footprint(size)

    def detach(self, size: i64) -> None:
        """Release the memory of something attached. After `lost`, this does nothing."""
        size = min(size, self._attached)
        self._attached -= size
        self._runtime.add_footprint(-size)

    def lost(self) -> None:
        """The connection was lost, with everything attached."""
        self.detach(self._attached)
        self.transport_has_room()

    # --- output ---

    def transport_is_full(self) -> None:
        """The peer does not read its output."""
        if self._unread == 0:
            self._unread = UNREAD_BYTES
            self._runtime.unread_bytes += UNREAD_BYTES

    def transport_has_room(self) -> None:
        self._runtime.unread_bytes -= self._unread
        self._unread = 0

    @property
    def is_output_scarce(self) -> bool:
        """Whether other peers read so little of their output that a new consumer gets less."""
        return self._runtime.unread_bytes > self._runtime.unread_limit_bytes

    def no_room(self) -> str:
        """The error text for a peer that attaches more than fits."""
        runtime = self._runtime
        return (
            f"all declared and attached resources take {runtime.footprint_bytes >> 20} MiB, of "
            f"{runtime.footprint_limit_bytes >> 20} that it may take on this node"
        )

    def refusal(self) -> str:
        """The error text for a peer whose body or transaction does not fit."""
        return f"more than {self._limit >> 20} MiB of unfinished messages on this connection, or too many on the node"
