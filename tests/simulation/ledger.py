"""The reference model: what clients know of every message, and the promises that follow from it.

It knows nothing about how the broker works. Everything in it comes from what clients sent and received, and from when
the broker was crashed. A broken promise raises `Violation` at the moment when a client can see it.
"""

from dataclasses import dataclass, field
from typing import Final

NEVER: Final = float("inf")


class Violation(AssertionError):
    """The broker broke a promise."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise


@dataclass(frozen=True)
class QueueSpec:
    """A queue of the workload. `dead_letter_to`: where rejected messages go; `is_ordered`: FIFO by publisher holds."""

    name: str
    durable: bool = True
    arguments: tuple[tuple[str, object], ...] = ()
    dead_letter_to: str | None = None
    is_ordered: bool = True


@dataclass
class Copy:
    """One message in one queue, as clients know it.

    `deliveries`: how often a client received it, `unflagged` of them without the flag redelivered. `settle_sent`: a
    client sent an ack for it (or a reject that drops it). `settled_in` and `settled_at`: the life of the node in which
    that settle was processed, and when that became known. `durable_at`: when it became known to be on disk.
    """

    message: "Message"
    queue: QueueSpec
    deliveries: int = 0
    unflagged: int = 0
    settle_sent: bool = False
    reject_sent: bool = False
    settled_in: int = -1
    settled_at: float = NEVER
    durable_at: float = NEVER


@dataclass
class Message:
    """One publish. `stream` is the channel that published it, `number` its place there."""

    key: str
    stream: str
    number: int
    body: bytes
    persistent: bool
    published_in: int
    copies: dict[str, Copy] = field(default_factory=dict)
    confirmed: bool = False


@dataclass
class Subscription:
    """One consumer, from consume to its end. `last` holds the newest number first delivered, by publishing channel."""

    queue: QueueSpec
    prefetch: int
    no_ack: bool
    name: str
    last: dict[str, int] = field(default_factory=dict)
    outstanding: int = 0


class Ledger:
    """All messages of one run. `life` counts the lives of the node: it grows with every crash and restart."""

    def __init__(self, queues: list[QueueSpec]) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self.messages: dict[str, Message] = {}
        self.life = 0
        self.crashes = 0
        self.connections_lost = 0
        # A bit of the disk was flipped: what was lost with its record is reported, and no promise of ours.
        self.is_damaged = False
        # Queues with a consumer that takes without acknowledging: what was on its way to it when a connection broke is
        # gone.
        self.lossy: set[str] = set()
        self.confirmed_count = 0
        self.delivered_count = 0
        self.redelivered_count = 0

    # --- what clients do and see ---

    def publish(self, stream: str, number: int, body: bytes, queues: list[str], *, persistent: bool) -> Message:
        key = body.partition(b" ")[0].decode()
        message = Message(key, stream, number, body, persistent, self.life)
        for name in queues:
            message.copies[name] = Copy(message, self.queues[name])
            target = self.queues[name].dead_letter_to
            if target is not None:
                message.copies.setdefault(target, Copy(message, self.queues[target]))
        self.messages[key] = message
        return message

    def confirm(self, message: Message) -> None:
        if message.confirmed:
            raise Violation("one confirm a message", f"{message.key} was confirmed twice")
        message.confirmed = True
        self.confirmed_count += 1

    def deliver(
        self, queue: QueueSpec, body: bytes, *, redelivered: bool, subscription: Subscription | None, sent_after: float
    ) -> Copy:
        """A client received a message, which the broker sent after a certain time. The copy that it is."""
        message = self.messages.get(body.partition(b" ")[0].decode("utf-8", "replace"))
        if message is None or message.body != body:
            raise Violation("nothing appears that was never published", f"{body[:60]!r} in {queue.name}")
        copy = message.copies.get(queue.name)
        if copy is None:
            raise Violation(
                "nothing appears that was never published", f"{message.key} in {queue.name}, not sent there"
            )
        self.delivered_count += 1
        self._check_settled(copy, sent_after)
        self._check_redelivered(copy, redelivered)
        if subscription is not None:
            self._check_subscription(subscription, copy, redelivered)
        copy.deliveries += 1
        return copy

    def settled(self, copy: Copy, now: float, *, durably: bool) -> None:
        """The settle of a copy is known to be processed, perhaps even known to be on disk."""
        if copy.settled_in != self.life:
            copy.settled_in = self.life
            copy.settled_at = now
        if durably:
            copy.durable_at = min(copy.durable_at, now)

    def _check_settled(self, copy: Copy, sent_after: float) -> None:
        what = f"{copy.message.key} in {copy.queue.name}"
        if self.is_damaged or self._may_die_again(copy):
            return
        if copy.durable_at <= sent_after:
            raise Violation("nothing durably settled comes back", what)
        if copy.settled_in == self.life and copy.settled_at <= sent_after:
            raise Violation("nothing settled comes back", what)

    def _may_die_again(self, copy: Copy) -> bool:
        """A crash may undo a dead-lettering together with the rejection that caused it; then it happens again."""
        return self.crashes > 0 and any(
            other.queue.dead_letter_to == copy.queue.name for other in copy.message.copies.values()
        )

    def _check_redelivered(self, copy: Copy, redelivered: bool) -> None:
        what = f"{copy.message.key} in {copy.queue.name}"
        if not redelivered:
            # Two clients may see the first delivery and the second one in the other order, but only one is the first.
            copy.unflagged += 1
            if copy.unflagged > 1 and not self.is_damaged and not self._may_die_again(copy):
                raise Violation("redelivered is honest", f"{what} came {copy.unflagged} times without the flag")
        else:
            self.redelivered_count += 1

    def _check_subscription(self, subscription: Subscription, copy: Copy, redelivered: bool) -> None:
        if not subscription.no_ack:
            subscription.outstanding += 1
            if subscription.prefetch and subscription.outstanding > subscription.prefetch:
                raise Violation(
                    "prefetch holds", f"{subscription.name} has {subscription.outstanding} of {subscription.prefetch}"
                )
        message = copy.message
        if not redelivered and copy.queue.is_ordered:
            newest = subscription.last.get(message.stream, -1)
            if message.number <= newest:
                raise Violation(
                    "a queue is first in, first out",
                    f"{subscription.name} got {message.stream} number {message.number} after {newest}",
                )
            subscription.last[message.stream] = message.number

    # --- faults ---

    def crash(self) -> None:
        """The node died without warning."""
        self.life += 1
        self.crashes += 1

    # --- the end ---

    def check_drained(self) -> None:
        """Every queue was consumed until it was empty, with an ack for each message: is anything missing?"""
        if self.is_damaged:
            return
        for message in self.messages.values():
            for copy in message.copies.values():
                if copy.deliveries and not copy.unflagged and not (self.life or self.connections_lost):
                    raise Violation("redelivered is honest", f"{message.key} in {copy.queue.name} came with flags only")
            if message.confirmed:
                for copy in message.copies.values():
                    self._check_present(copy)

    def _check_present(self, copy: Copy) -> None:
        message = copy.message
        is_kept = message.persistent and copy.queue.durable
        if not is_kept and message.published_in != self.life:
            return  # A crash may take it.
        if copy.settle_sent or copy.queue.name in self.lossy:
            return
        what = f"{message.key} in {copy.queue.name}, {copy.deliveries} deliveries"
        target = copy.queue.dead_letter_to
        if copy.reject_sent and target is not None:
            if message.copies[target].settle_sent:
                return
            raise Violation("a rejected message is dead-lettered", f"{what}: lost on its way to {target}")
        if self._is_target_only(copy):
            return
        raise Violation("a confirmed message is present until settled", f"{what}: lost")

    def _is_target_only(self, copy: Copy) -> bool:
        """Whether a message can be in this queue only as a dead letter."""
        return any(other.queue.dead_letter_to == copy.queue.name for other in copy.message.copies.values())
