"""What a transaction of AMQP 1.0 holds until it is discharged (1.0, 4.4): posted, retired and acquired messages.

post       kept back, and published by the commit
retire     the outcome waits; after a rollback the delivery is what it was, still acquired by its link
acquire    deliveries that a rollback makes available again; a commit gives them no outcome

What could not be done as it was told, or at all, must not be committed (4.4.4.1): `fail` says why.
"""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.outcomes import ACCEPTED, Outcome
from waybill.engine.amqp10.server.resume import TAG_SIZE, forget_settling
from waybill.engine.amqp10.termini import Terminus
from waybill.model.entry import Entry
from waybill.model.fan_out import publish_to
from waybill.model.message import Message
from waybill.model.queue import Queue
from waybill.model.runtime import Runtime
from waybill.model.transaction import ACCEPT_UNITS, HELD_MESSAGE_BYTES, OTHER_UNITS, too_large
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.error import RESOURCE_LIMIT_EXCEEDED, TRANSACTION_ROLLBACK, Error
from waybill.wire.amqp10.messaging import DURABLE_UNSETTLED_STATE
from waybill.wire.amqp10.transactions import TransactionalState

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.coordinator import CoordinatorLink
    from waybill.engine.amqp10.server.outgoing import OutgoingLink

OPEN_AT_ONCE: Final = 4
"""So much more may all transactions of a connection hold together: they end with it."""
UNIT_BITS: Final = 7
"""Annotations that an outcome adds count by their size."""
NO_ROOM: Final = Error(TRANSACTION_ROLLBACK, "a queue has no room for the messages of the transaction")
NO_QUEUE: Final = Error(TRANSACTION_ROLLBACK, "the queue of a message of the transaction was deleted")


def outcome_units(outcome: Outcome) -> i64:
    """What one delivery with this outcome counts."""
    if outcome.name == ACCEPTED:
        return ACCEPT_UNITS
    return OTHER_UNITS + (len(outcome.encoded) >> UNIT_BITS)


class Retired:
    """A delivery with an outcome that waits. `is_settled`: the peer has forgotten it already."""

    def __init__(
        self,
        link: "OutgoingLink",
        number: i64,
        entry: Entry,
        outcome: Outcome,
        transaction: "LinkTransaction",
        *,
        is_settled: bool,
    ) -> None:
        self.link = link
        self.number: i64 = number
        self.entry = entry
        self.outcome = outcome
        self.transaction = transaction
        self.is_settled = is_settled

    def is_given_back(self) -> bool:
        """After a rollback: whether the delivery is again what it was, to the link or to its terminus."""
        if self.is_settled:
            return False
        link = self.link
        if link.is_attached:
            self.entry.holder = link
            link.session.unsettled[self.number] = self.entry
            return True
        terminus = link.terminus
        if terminus.link is None and terminus.is_listed:
            link.unsettled_count -= 1
            terminus.held[int(self.entry.sequence).to_bytes(TAG_SIZE, "big")] = self.entry
            return True
        return False

    def apply_default(self) -> None:
        """After a rollback, the default outcome is that of what the peer has forgotten (4.4)."""
        self.link.default_outcome.apply(self.link, self.entry)
        self.link.settled_later()


class Posted:
    """A delivery that its sender will settle second. `outcome`: encoded, empty for `accepted`."""

    def __init__(self, terminus: Terminus, tag: bytes, outcome: bytes) -> None:
        self.terminus = terminus
        self.tag = tag
        self.outcome = outcome

    @property
    def is_known(self) -> bool:
        """Whether the sender has not settled it yet."""
        return self.tag in self.terminus.settling and self.terminus.is_listed


class LinkTransaction:
    """One transaction, from its declaration to its discharge. `size`: octets of the messages kept back.

    `units`: about the time that its end takes.
    `partial_count`: deliveries of it of which more is awaited. `failure`: why it cannot be committed.
    """

    def __init__(self, identifier: bytes, control: "CoordinatorLink") -> None:
        self.identifier = identifier
        self.control = control
        self.size: i64 = 0
        self.units: i64 = 0
        self.partial_count = 0
        self.failure: Error | None = None
        self.is_over = False
        self.retired: list[Retired] = []
        self._held: i64 = 0
        self._publishes: list[tuple[list[Queue], Message]] = []
        self._posted: list[Posted] = []
        self._acquired: list[tuple[OutgoingLink, i64, Entry]] = []
        self._acquirers: list[OutgoingLink] = []

    def state(self, outcome: Composite | None) -> bytes:
        """The encoded state of a delivery that takes part."""
        return TransactionalState(self.identifier, outcome).encode()

    def fail(self, error: Error) -> None:
        """Let it end with a rollback only; the first error is told."""
        if self.failure is None:
            self.failure = Error(TRANSACTION_ROLLBACK, error.description, error.info)

    def publish(self, queues: list[Queue], message: Message) -> None:
        self._publishes.append((queues, message))
        self.size += message.size

    def add_units(self, units: i64) -> bool:
        """False, and nothing is counted, if it would hold too much, or all of the connection together."""
        if not self.has_room(units):
            return False
        connection = self.control.connection
        self.units += units
        connection.transaction_units += units
        return True

    def has_room(self, units: i64) -> bool:
        connection = self.control.connection
        limit = connection.host.limits.transaction_units_max
        return self.units + units <= limit and connection.transaction_units + units <= OPEN_AT_ONCE * limit

    def too_large(self) -> Error:
        return Error(RESOURCE_LIMIT_EXCEEDED, too_large(self.control.connection.host.limits.transaction_units_max))

    def hold(self, size: i64) -> bool:
        """Count one more message that is kept back. False if that is too much."""
        size += HELD_MESSAGE_BYTES
        if not self.control.connection.held.add(size):
            return False
        self._held += size
        return True

    def post(self, posted: Posted) -> None:
        self._posted.append(posted)

    def retire(self, retired: Retired) -> None:
        self.retired.append(retired)
        retired.link.session.retired[retired.number] = retired

    def begin_acquiring(self, link: "OutgoingLink") -> None:
        """From now on what the link delivers takes part."""
        link.acquiring = self
        self._acquirers.append(link)

    def acquire(self, link: "OutgoingLink", number: i64, entry: Entry) -> None:
        self.units += OTHER_UNITS
        self.control.connection.transaction_units += OTHER_UNITS
        self._acquired.append((link, number, entry))
        link.session.acquired[number] = self

    def commit(self, runtime: Runtime) -> Error | None:
        """Do it all; recovered as a whole or not at all. Why not, with nothing done, if it cannot be."""
        runtime.work_left -= self.units >> 1
        failure = self.failure or self._obstacle()
        if failure is not None:
            return failure
        self._end()
        with runtime.messages.atomic():
            for queues, message in self._publishes:
                publish_to([queue for queue in queues if not queue.is_deleted], message)
            for retired in self.retired:
                retired.outcome.apply(retired.link, retired.entry)
            for posted in self._posted:
                self._keep(posted)
        for retired in self.retired:
            retired.link.settled_later()
        return None

    def _keep(self, posted: Posted) -> None:
        """The outcome that was provisional is in force (4.4.4.1)."""
        terminus = posted.terminus
        if not posted.is_known:
            return
        if posted.outcome:
            terminus.outcomes[posted.tag] = posted.outcome
            return
        terminus.outcomes.pop(posted.tag, None)
        if terminus.durable == DURABLE_UNSETTLED_STATE:
            terminus.termini.keep_delivery(terminus, posted.tag, is_accepted=True)

    def _obstacle(self) -> Error | None:
        """What keeps it from doing what its senders were told that it would do."""
        counts: dict[Queue, int] = {}
        sizes: dict[Queue, int] = {}
        for queues, message in self._publishes:
            if all(queue.is_deleted for queue in queues):
                return NO_QUEUE
            for queue in queues:
                counts[queue] = counts.get(queue, 0) + 1
                sizes[queue] = sizes.get(queue, 0) + int(message.size)
        for queue, count in counts.items():
            if not queue.has_room(count, sizes[queue]):
                return NO_ROOM
        return None

    def rollback(self) -> None:
        """Undo it: what was acquired is available again, what was retired is what it was."""
        self.control.connection.host.runtime.work_left -= self.units >> 1
        self._end()
        self._publishes = []
        for posted in self._posted:
            if posted.is_known:
                # 4.4.4.1: "no outcome should be associated with the unsettled deliveries."
                forget_settling(posted.terminus, posted.tag)
        left: list[Retired] = [retired for retired in self.retired if not retired.is_given_back()]
        for retired in left:
            if retired.link.default_outcome.keeps_order:
                retired.apply_default()
        for retired in reversed(left):
            if not retired.link.default_outcome.keeps_order:
                retired.apply_default()
        self.retired = []
        for link, number, entry in reversed(self._acquired):
            if link.session.unsettled.get(number) is entry:
                del link.session.unsettled[number]
                entry.queue.release(entry, failed=False)
                link.settled_later()
        self._acquired = []

    def _end(self) -> None:
        """Nothing takes part in it any more."""
        self.is_over = True
        self.control.connection.held.give_back(self._held)
        self.control.connection.transaction_units -= self.units
        self.units = 0
        self._held = 0
        for retired in self.retired:
            retired.link.session.retired.pop(retired.number, None)
        for link, number, _ in self._acquired:
            link.session.acquired.pop(number, None)
        for link in self._acquirers:
            if link.acquiring is self:
                link.acquiring = None
        self._acquirers = []
