"""A consumer, as its queue sees it. The engine of each protocol derives its own from `Consumer`."""

from mypy_extensions import i64

from waybill.model.entry import Entry, Holder


class Consumer(Holder):
    """A subscription to one queue.

    Engines count credit, each protocol in its own way (prefetch windows of a consumer and of a channel; link credit and
    session windows). Queues never call them. `waybill.engine.delivery` asks `has_credit` before each message, and
    calls `deliver`.

    `no_ack`: a message is settled as it is delivered. `priority`: higher ones are served first while they have credit.
    `is_active`: the queue considers this consumer; the engine calls `queue.activate` when it has credit again.
    `selects`, `copies`: see `waybill.model.selection`. `counts_size`: its credit is also in bytes, so the queue asks
    for each message (`has_credit_for`).
    """

    def __init__(self, tag: str, no_ack: bool, exclusive: bool, priority: i64) -> None:
        super().__init__()
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority: i64 = priority
        self.selects = False
        self.copies = False
        self.counts_size = False

    def has_credit(self) -> bool:
        """True if `deliver` may be called once."""
        raise NotImplementedError

    def has_credit_for(self, entry: Entry) -> bool:
        """Whether the credit covers the size of this message, for one that `counts_size`."""
        return True

    def deliver(self, entry: Entry) -> None:
        """Send one message. The engine keeps `entry` until its peer settles it, unless `no_ack`."""
        raise NotImplementedError

    def allowance(self) -> i64:
        """How many messages `deliver_all` may get; 1 if `has_credit` must be asked before each."""
        return 1

    def deliver_all(self, entries: list[Entry]) -> i64:
        """`deliver` these, at least the first. Returns how many: fewer if one used up the credit."""
        for entry in entries:
            self.deliver(entry)
        return len(entries)

    def chooses(self, entry: Entry) -> bool:
        """Whether a selecting consumer takes this message."""
        return True

    def cancelled(self) -> None:
        """The queue was deleted: notify the peer. No message follows."""
        raise NotImplementedError
