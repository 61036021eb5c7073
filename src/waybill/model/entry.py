"""A message in a queue: one queue's own copy of the facts that change, beside the shared, immutable message."""

from mypy_extensions import i64

from waybill.model.message import Message
from waybill.model.runtime import Drainable

NO_LOCATION = 0


class EntryQueue(Drainable):
    """What an entry belongs to: a queue that settles, rejects and takes back what it delivered.

    `is_append_only`: consuming removes nothing, and outcomes only give credit back (a stream). `footprint`: what it
    counts for beside its messages (see `waybill.model.footprint`).
    """

    is_append_only: bool = False

    def __init__(self) -> None:
        super().__init__()
        self.footprint: i64 = 0

    def accept(self, entry: "Entry") -> None:
        """The consumer is done with the message: it is removed for good."""
        raise NotImplementedError

    def accept_all(self, entries: "list[Entry]") -> None:
        """`accept` each of these."""
        raise NotImplementedError

    def reject(self, entry: "Entry") -> None:
        """The consumer will never process it: it is dead-lettered, or dropped where nothing is configured for it."""
        raise NotImplementedError

    def release(self, entry: "Entry", *, failed: bool) -> None:
        """The message goes back to its place and is redelivered; `failed` counts the attempt as a failed delivery."""
        raise NotImplementedError

    def read_again(self) -> None:
        """What could not be read back from the disk may be tried again."""

    def undeliverable(self, entry: "Entry", *, is_settled: bool) -> None:
        """Its consumer's protocol has no form for the message: it dies, so that what stands behind it goes on.

        To be called within `deliver`. `is_settled`: whoever called that removes the entry, as for `no_ack`.
        """
        raise NotImplementedError

    def amend(self, entry: "Entry", changes: bytes, *, failed: bool) -> None:
        """Keep what its consumer has changed in a message, and that a delivery failed, over a restart as well.

        To be called before `release` of an entry that is delivered.
        """
        raise NotImplementedError


class Holder:
    """Who has taken an entry and not settled it yet: a consumer, or whatever polled the queue."""

    def __init__(self) -> None:
        self.unsettled_count: i64 = 0
        self.is_active = False

    def credit_available(self) -> None:
        """Something that this holder had is settled, and it was out of credit before."""
        raise NotImplementedError


class Entry:
    """`location`: where the store keeps it (`NO_LOCATION`: nowhere). `expires_at`: node seconds, 0.0 for never.

    `is_stored`: recovery would bring it back, so settling it must be recorded; a message that was only spilled to free
    memory has a location but is not stored. `delivery_count`: deliveries that failed before. `holder`: set by the
    engine while the message is delivered and not settled. `changes`: what consumers have changed in the message.
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
        self.holder: Holder | None = None
        self.changes = b""
