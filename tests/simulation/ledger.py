"""The reference model: what clients know of every message, and the promises that follow from it.

It knows nothing about how the broker works, and no protocol. Everything in it comes from what clients sent and
received, and from when the broker was crashed. A broken promise raises `Violation` at the moment when a client can see
it.
"""

from dataclasses import dataclass

from tests.simulation.branches import Branches
from tests.simulation.message import (
    COMMITTED,
    COMMITTING,
    NEVER,
    ROLLED_BACK,
    Copy,
    Message,
    Transaction,
)
from tests.simulation.queues import FOREVER, QueueSpec
from tests.simulation.removal import (
    Binding,
    Contents,
    Removals,
    check_age,
    check_delivery_count,
    check_gone,
)
from tests.simulation.stream_history import StreamHistory, StreamReader
from tests.simulation.subscription import Consumers, Subscription
from tests.simulation.violation import Violation


@dataclass
class Arrival:
    """A message that a client received now, sent at some time from `sent_after` on.

    `subscription` is None for one that was asked for. `reader` and `offset` belong to a stream; `death`: the reason of
    its first death, if it is a dead letter.
    """

    queue: QueueSpec
    body: bytes
    now: float
    sent_after: float
    redelivered: bool
    subscription: Subscription | None = None
    reader: StreamReader | None = None
    offset: int = -1
    death: object = None


class Ledger:
    """All messages of one run. `life` counts the lives of the node: it grows with every crash and restart."""

    def __init__(self, queues: list[QueueSpec]) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self.messages: dict[str, Message] = {}
        self.contents = {queue.name: Contents(queue) for queue in queues}
        self.streams = {queue.name: StreamHistory(queue) for queue in queues if queue.is_stream}
        self.transactions: list[Transaction] = []
        self.consumers = Consumers()
        # Queues that go with their last consumer, and may never have had one.
        self.unconsumed: set[str] = set()
        self.branches = Branches(self)
        self.removals = Removals()
        self.binding = Binding()
        self.life = 0
        self.most_unsettled: dict[str, int] = {}
        self.crashes = 0
        self.connections_lost = 0
        # A bit of the disk was flipped: what was lost with its record is reported, and no promise of ours.
        self.is_damaged = False
        # The disk had less room than the broker leaves alone: what is durable may not be declared then.
        self.is_disk_scarce = False
        # What cannot be read for the moment cannot be dropped for being too much either.
        self.reads_fail = False
        # Queues with a consumer that takes without acknowledging: what was on its way to it when a connection broke is
        # gone.
        self.lossy: set[str] = set()
        self.confirmed_count = 0
        self.delivered_count = 0
        self.redelivered_count = 0

    # --- queues that come and go ---

    def add_private(self, queue: QueueSpec) -> None:
        """One channel has made itself a queue."""
        self.queues[queue.name] = queue
        self.contents[queue.name] = Contents(queue)
        if not queue.exclusive:
            self.unconsumed.add(queue.name)

    def subscribed(self, subscription: Subscription, now: float) -> None:
        self.consumers.add(subscription, now)
        self.unconsumed.discard(subscription.queue.name)

    def private_ended(self, queue: QueueSpec) -> None:
        for copy in self.contents[queue.name].copies:
            copy.may_be_gone = True

    def public_queues(self) -> list[QueueSpec]:
        return [queue for queue in self.queues.values() if not queue.is_private]

    def departed(self) -> None:
        """A channel has ended or taken back its deliveries: what was on the way to it, nobody has seen."""
        for contents in self.contents.values():
            contents.departures += 1

    # --- publishing ---

    def publish(self, message: Message, queues: list[str], ttl_s: float, *, is_bound: bool) -> None:
        """A client sends a message that goes to these queues, if they are bound. `ttl_s`: its own time to live."""
        for name in queues:
            queue = self.queues[name]
            copy = self._copy(message, queue, FOREVER if queue.is_stream else min(ttl_s, queue.ttl_s))
            if queue.is_roaming and is_bound:
                copy.route_version = self.binding.version
                copy.is_barred = self.binding.is_bound is False
                copy.may_be_gone = self.binding.is_bound is not True
            if queue.dead_letter_to is not None and queue.dead_letter_to not in message.copies:
                self._copy(message, self.queues[queue.dead_letter_to], FOREVER)
        self.messages[message.key] = message

    def _copy(self, message: Message, queue: QueueSpec, ttl_s: float) -> Copy:
        copy = Copy(message, queue, ttl_s)
        copy.may_be_gone = queue.is_volatile and self.removals.is_under_way(queue, message.sent_at)
        message.copies[queue.name] = copy
        self.contents[queue.name].copies.append(copy)
        return copy

    def publish_again(self, message: Message) -> None:
        """A client sends a message of which the broker has said that it has no record: the former one died with it."""
        if message.published_in != self.life:
            message.published_in = self.life
            for copy in message.copies.values():
                copy.unflagged = 0

    def confirm(self, message: Message, now: float) -> None:
        if message.is_confirmed or message.is_refused:
            raise Violation("one confirm a message", f"{message.key} was confirmed twice")
        message.confirmed_at = now
        self.confirmed_count += 1
        for copy in message.copies.values():
            if copy.route_version and copy.route_version != self.binding.version:
                # The binding came or went meanwhile: nobody can tell where the message went.
                copy.may_be_gone = True
                copy.is_barred = False

    def refuse(self, message: Message) -> None:
        """The broker has said that it did not take a message, as a full queue may do."""
        refusing = [copy for copy in message.copies.values() if copy.queue.refuses]
        if not any(self.contents[copy.queue.name].could_be_full() for copy in refusing):
            raise Violation("only a full queue refuses", message.key)
        message.is_refused = True
        if len(refusing) == 1:
            refusing[0].is_barred = True

    def return_to_publisher(self, message: Message) -> None:
        """The broker has said that no queue took a message: the one that it was sent to must have been away."""
        for copy in message.copies.values():
            was_rebound = copy.route_version and copy.route_version != self.binding.version
            if not copy.may_be_gone and not was_rebound and copy.source is None:
                raise Violation("a routable message is not returned", str(copy))
            copy.is_barred = True
        message.is_refused = True

    def abandon(self, message: Message) -> None:
        """Its sender has not sent all of it, and never will."""
        for copy in message.copies.values():
            copy.is_barred = True

    # --- transactions ---

    def begin(self) -> Transaction:
        transaction = Transaction()
        self.transactions.append(transaction)
        return transaction

    def committing(self, transaction: Transaction, now: float) -> None:
        """A client sends its commit: from now on it may have been carried out."""
        transaction.state = COMMITTING
        transaction.life = self.life
        for message in transaction.messages:
            message.routed_after = now
            message.published_in = self.life
        for copy in transaction.settled:
            copy.settle_sent = True

    def committed(self, transaction: Transaction, now: float) -> None:
        transaction.state = COMMITTED
        for message in transaction.messages:
            self.confirm(message, now)
        for copy in transaction.settled:
            self.settled(copy, now, durably=True)

    def rolled_back(self, transaction: Transaction) -> None:
        transaction.state = ROLLED_BACK

    @staticmethod
    def _check_committed(copy: Copy) -> None:
        transaction = copy.message.transaction
        if transaction is not None and transaction.state not in {COMMITTING, COMMITTED}:
            raise Violation("a transaction takes effect when it is committed", f"{copy}: {transaction.state}")

    def _check_transaction(self, copy: Copy) -> None:
        transaction = copy.message.transaction
        if transaction is None:
            return
        self._check_committed(copy)
        if copy.is_kept and not copy.queue.is_stream:
            transaction.seen_in = self.life
        self._check_whole(transaction, str(copy))

    def _check_undone(self, copy: Copy) -> None:
        """A message came that a transaction may have settled: then that did not happen."""
        for transaction in self.transactions:
            if transaction.state == COMMITTING and transaction.life < self.life and copy in transaction.settled:
                transaction.undone_in = self.life
                self._check_whole(transaction, str(copy))

    def _check_whole(self, transaction: Transaction, what: str) -> None:
        if self.is_damaged or transaction.state != COMMITTING:
            return
        if transaction.seen_in > transaction.life and transaction.undone_in > transaction.life:
            raise Violation("a transaction is recovered as a whole or not at all", what)

    # --- delivering ---

    def deliver(self, arrival: Arrival) -> Copy:
        """A client received a message. The copy that it is."""
        copy = self._find(arrival.queue, arrival.body)
        self.delivered_count += 1
        self._check_transaction(copy)
        subscription = arrival.subscription
        if subscription is not None:
            self.consumers.delivered(subscription, arrival.now, arrival.sent_after)
        if arrival.reader is not None:
            self._read(arrival, copy)
            return copy
        self._check_settled(copy, arrival.sent_after)
        self._check_undone(copy)
        self.branches.check_held(copy, arrival.sent_after)
        check_age(copy, arrival.sent_after)
        check_gone(copy, arrival.sent_after, redelivered=arrival.redelivered)
        # It was on its way when its queue was purged, and may be given back.
        copy.gone_at = NEVER
        self._check_redelivered(copy, redelivered=arrival.redelivered)
        source = copy.source
        if source is not None and not self.is_damaged:
            self.contents[source.queue.name].check_death(source, arrival.death, arrival.now)
        if subscription is not None:
            comes_again = arrival.redelivered or copy.came_back
            subscription.took(copy, arrival.now, arrival.sent_after, redelivered=comes_again)
        copy.deliveries += 1
        check_delivery_count(copy, has_crashed=self.life > 0)
        return copy

    def _find(self, queue: QueueSpec, body: bytes) -> Copy:
        """The copy that a client received."""
        message = self.messages.get(body.partition(b" ")[0].decode("utf-8", "replace"))
        if message is None or message.body != body:
            raise Violation("nothing appears that was never published", f"{body[:60]!r} in {queue.name}")
        copy = message.copies.get(queue.name)
        if copy is None or (copy.is_barred and copy.route_version in {0, self.binding.version}):
            raise Violation(
                "nothing appears that was never published", f"{message.key} in {queue.name}, not sent there"
            )
        return copy

    def look(self, queue: QueueSpec, body: bytes, sent_after: float) -> Copy:
        """A client was shown a message, which stays where it is."""
        copy = self._find(queue, body)
        self._check_committed(copy)
        self._check_settled(copy, sent_after)
        self.branches.check_held(copy, sent_after)
        return copy

    def acquire(self, copy: Copy, asked_after: float) -> bool:
        """What a client was shown is its own now. Whether it was delivered before, of which nobody tells."""
        self._check_settled(copy, asked_after)
        self._check_undone(copy)
        self.branches.check_held(copy, asked_after)
        copy.deliveries += 1
        copy.free_deliveries += 1
        comes_again = copy.unflagged > 0
        copy.unflagged = max(copy.unflagged, 1)
        return comes_again

    def resume(self, copy: Copy, sent_after: float) -> None:
        """A client received once more what it has and has not settled."""
        self._check_settled(copy, sent_after)
        self._check_undone(copy)

    def _read(self, arrival: Arrival, copy: Copy) -> None:
        subscription, reader = arrival.subscription, arrival.reader
        if subscription is None or reader is None:
            raise Violation("a stream is read by consumers", str(copy))
        subscription.outstanding += 1
        if subscription.outstanding > subscription.prefetch:
            raise Violation("credit holds", f"{subscription.name} has {subscription.outstanding}")
        self.streams[copy.queue.name].read(reader, arrival.offset, copy.message)

    def settled(self, copy: Copy, now: float, *, durably: bool) -> None:
        """The settle of a copy is known to be processed, perhaps even known to be on disk."""
        if copy.settled_in != self.life:
            copy.settled_in = self.life
            copy.settled_at = now
        if durably:
            copy.durable_at = min(copy.durable_at, now)

    def _check_settled(self, copy: Copy, sent_after: float) -> None:
        if self.is_damaged or self._may_die_again(copy):
            return
        if copy.durable_at <= sent_after:
            raise Violation("nothing durably settled comes back", str(copy))
        if copy.settled_in == self.life and copy.settled_at <= sent_after:
            raise Violation("nothing settled comes back", str(copy))

    def _may_die_again(self, copy: Copy) -> bool:
        """A crash may undo a dead-lettering together with the settle that caused it; then it happens again."""
        return self.crashes > 0 and copy.source is not None

    def _check_redelivered(self, copy: Copy, *, redelivered: bool) -> None:
        if redelivered:
            self.redelivered_count += 1
            return
        # Two clients may see the first delivery and the second one in the other order, but only one is the first.
        copy.unflagged += 1
        if copy.unflagged > 1 and not self.is_damaged and not self._may_die_again(copy):
            if copy.message.is_once:
                raise Violation(
                    "a message is stored once over a resumed link or session", f"{copy} came {copy.unflagged} times"
                )
            raise Violation("redelivered is honest", f"{copy} came {copy.unflagged} times without the flag")

    def check_count(self, queue: str, count: int) -> None:
        """The broker says that so many messages wait in a queue."""
        if self.reads_fail:
            return
        self.contents[queue].check_count(count, self.most_unsettled.get(queue, 0), has_restarted=self.life > 0)

    # --- faults ---

    def crash(self) -> None:
        """The node died without warning."""
        self.life += 1
        self.crashes += 1
        self.departed()

    # --- the end ---

    def check_drained(self, now: float) -> None:
        """Every queue was consumed until it was empty, with an ack for each message: is anything missing?"""
        if self.is_damaged:
            return
        for message in self.messages.values():
            is_promised = message.is_confirmed or self._was_carried_out(message)
            for copy in message.copies.values():
                if copy.deliveries and not copy.unflagged and not (self.life or self.connections_lost):
                    raise Violation("redelivered is honest", f"{copy} came with flags only")
                if is_promised and not copy.queue.is_stream:
                    self._check_present(copy, now)

    def check_streams(self, counts: dict[str, int], firsts: dict[str, int]) -> None:
        """The same for streams, of which a reader has seen everything from `firsts` on."""
        for name, stream in self.streams.items():
            if not self.is_damaged:
                messages = [copy.message for copy in self.contents[name].copies]
                stream.check(messages, firsts.get(name, 0), counts[name])

    def _was_carried_out(self, message: Message) -> bool:
        """Whether its transaction was, though nobody was told: a later life still showed a part of it."""
        transaction = message.transaction
        if transaction is None or transaction.state != COMMITTING:
            return False
        return transaction.seen_in > transaction.life or transaction.seen_in == transaction.life == self.life

    def _check_present(self, copy: Copy, now: float) -> None:
        if not copy.is_kept and copy.message.published_in != self.life:
            return  # A crash may take it.
        if copy.settle_sent or copy.commits or copy.may_be_gone or copy.is_barred or copy.queue.name in self.lossy:
            return
        if copy.source is not None:
            return  # It is there only as a dead letter, and looked for as such.
        what = f"{copy}, {copy.deliveries} deliveries"
        if not self.contents[copy.queue.name].reasons(copy, now):
            raise Violation("a confirmed message is present until settled or removed by a policy", f"{what}: lost")
        target = copy.queue.dead_letter_to
        if target is None or target in self.lossy:
            return
        dead = copy.message.copies[target]
        if not (dead.settle_sent or dead.commits):
            raise Violation("a dead message goes where its queue says", f"{what}: lost on its way to {target}")
