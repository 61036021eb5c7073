"""A message in one queue: the mutable fields, next to the shared, immutable message."""

from typing import Final

from mypy_extensions import i64

from waybill.model.drainable import Drainable
from waybill.model.message import Message

NO_LOCATION: Final = 0


class EntryQueue(Drainable):
    """The queue of an entry, which settles, rejects and requeues deliveries.

    `is_append_only`: consuming removes nothing, and outcomes only restore credit (a stream). `footprint`: its memory
    besides messages (see `waybill.model.footprint`). `death_units`: how many units of a transaction the death of a
    message takes besides its outcome.
    """

    is_append_only: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.footprint: i64 = 0
        self.death_units: i64 = 0

    def accept(self, entry: "Entry") -> None:
        """Remove the message: the consumer has processed it."""
        raise NotImplementedError

    def accept_all(self, entries: "list[Entry]") -> None:
        """`accept` each entry."""
        raise NotImplementedError

    def reject(self, entry: "Entry") -> None:
        """Dead-letter or drop the message: the consumer will never process it."""
        raise NotImplementedError

    def release(self, entry: "Entry", *, failed: bool) -> None:
        """Put the message back in its place for redelivery. `failed`: count a failed delivery."""
        raise NotImplementedError

    def page_out(self, entries: "list[Entry]", holder: "Holder") -> None:
        """Drop the content of what was delivered to `holder`, as far as it can be read back."""

    def page_in(self, entry: "Entry") -> bool:
        """Read the content of an entry that is paged out. False if it cannot be read, now or ever."""
        return not entry.is_paged_out

    def read_again(self) -> None:
        """Retry a read from the disk that failed."""

    def undeliverable(self, entry: "Entry", *, is_settled: bool) -> None:
        """Dead-letter or drop a message that cannot be converted to its consumer's protocol.

        Call it within `deliver`. `is_settled`: the caller of `deliver` removes the entry, as for `no_ack`.
        """
        raise NotImplementedError

    def amend(self, entry: "Entry", changes: bytes, *, failed: bool) -> None:
        """Store a consumer's changes of a message, and a failed delivery. Call it before `release`."""
        raise NotImplementedError


class Holder:
    """Holds unsettled entries: a consumer, or a channel that polls (0-9-1: basic.get)."""

    def __init__(self) -> None:
        self.unsettled_count: i64 = 0
        self.is_active = False

    def credit_available(self) -> None:
        """The holder was out of credit, and one of its entries is settled."""
        raise NotImplementedError


class Entry:
    """`location`: where the store keeps it (`NO_LOCATION`: nowhere). `expires_at`: node seconds, 0.0 for never.

    `is_stored`: recovery would bring it back, so settling it must be recorded; a message that was only spilled to free
    memory has a location but is not stored. `delivery_count`: deliveries that failed before. `holder`: set by the
    engine while the message is delivered and not settled. `changes`: what consumers have changed in the message.
    `is_paged_out`: the content of `message` is on disk only (see `waybill.model.paging`).
    """

    def __init__(self, queue: EntryQueue, message: Message, sequence: i64) -> None:
        self.queue = queue
        self.message = message
        self.sequence: i64 = sequence
        self.location: i64 = NO_LOCATION
        self.is_stored = False
        self.expires_at: float = 0.0
        self.delivery_count: i64 = 0
        self.redelivered = False
        self.is_paged_out = False
        self.holder: Holder | None = None
        self.changes = b""


def release_unmarked(entry: Entry) -> None:
    """Put a message back in its place as if it had not been delivered (0-10: release without `set-redelivered`)."""
    redelivered = entry.redelivered
    entry.queue.release(entry, failed=False)
    entry.redelivered = redelivered
