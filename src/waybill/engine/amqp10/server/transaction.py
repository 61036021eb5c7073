"""A transaction (1.0, 4.4): the posted, retired and acquired messages that it holds until it is discharged.

post       the commit publishes the message
retire     the commit applies the outcome; after a rollback the delivery is unsettled again
acquire    a rollback releases the delivery; a commit leaves it unsettled

A transaction in which anything failed must not be committed (4.4.4.1): `fail` records the reason.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.delivery_host import DeliveryHost
from waybill.engine.amqp10.server.outcomes import Outcome
from waybill.engine.amqp10.server.unsettled_map import TAG_SIZE, forget_settling
from waybill.engine.amqp10.termini import LinkEnd, Terminus
from waybill.engine.held_memory import HeldMemory
from waybill.model.entry import Entry
from waybill.model.fan_out import publish_to
from waybill.model.message import Message
from waybill.model.queue import Queue
from waybill.model.runtime import Runtime
from waybill.model.transaction import HELD_MESSAGE_BYTES, OTHER_UNITS, outcome_units, too_large
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.error import RESOURCE_LIMIT_EXCEEDED, TRANSACTION_ROLLBACK, Error
from waybill.wire.amqp10.messaging import DURABLE_UNSETTLED_STATE
from waybill.wire.amqp10.transactions import TransactionalState

OPEN_AT_ONCE: Final = 4
"""All transactions of a connection together may hold this many times the limit of one: they all end with it."""
UNIT_BITS: Final = 7
"""An outcome with annotations counts one more unit for each 128 octets."""
NO_ROOM: Final = Error(TRANSACTION_ROLLBACK, "a queue has no room for the messages of the transaction")
NO_QUEUE: Final = Error(TRANSACTION_ROLLBACK, "the queue of a message of the transaction was deleted")


def retirement_units(entry: Entry, outcome: Outcome) -> i64:
    """The units of one retired delivery."""
    if outcome.is_accepted:
        return outcome_units(entry, is_accepted=True)
    return outcome_units(entry, is_accepted=False) + (len(outcome.encoded) >> UNIT_BITS)


class TransactionBudget:
    """What all transactions of one connection hold, and what they may hold."""

    def __init__(self, runtime: Runtime, held: HeldMemory, units_max: i64) -> None:
        self.runtime = runtime
        self.held = held
        self.units_max: i64 = units_max
        self.units: i64 = 0


class Enlisted:
    """The deliveries of one session that are part of open transactions, by delivery-id.

    `retired` have an outcome that waits for the discharge; `acquired` were sent in a transaction.
    """

    def __init__(self) -> None:
        self.retired: dict[i64, Retired] = {}
        self.acquired: dict[i64, LinkTransaction] = {}


class Retired:
    """A delivery with an outcome that waits for the discharge. `is_settled`: the peer has settled it already."""

    def __init__(
        self,
        link: DeliveryHost,
        number: i64,
        entry: Entry,
        outcome: Outcome,
        transaction: "LinkTransaction",
        enlisted: Enlisted,
        *,
        is_settled: bool,
    ) -> None:
        self.link = link
        self.number: i64 = number
        self.entry = entry
        self.outcome = outcome
        self.transaction = transaction
        self.enlisted = enlisted
        self.is_settled = is_settled

    def is_given_back(self) -> bool:
        """After a rollback: return the delivery to its link, or to the terminus. False if neither can take it."""
        if self.is_settled:
            return False
        link = self.link
        if link.is_attached:
            link.restore(self.number, self.entry)
            return True
        terminus = link.terminus
        if terminus.link is None and terminus.is_listed:
            link.unsettled_count -= 1
            terminus.held[int(self.entry.sequence).to_bytes(TAG_SIZE, "big")] = self.entry
            return True
        return False

    def apply(self) -> None:
        self.outcome.apply(self.link, self.entry)

    def apply_default(self) -> None:
        """After a rollback: a delivery that the peer has settled gets the default outcome (4.4)."""
        self.link.default_outcome.apply(self.link, self.entry)
        self.link.delivery_settled()


class Posted:
    """A delivery whose sender settles second. `outcome`: encoded, empty for `accepted`."""

    def __init__(self, terminus: Terminus, tag: bytes, outcome: bytes) -> None:
        self.terminus = terminus
        self.tag = tag
        self.outcome = outcome

    @property
    def is_known(self) -> bool:
        """Whether the sender has not settled it yet."""
        return self.tag in self.terminus.settling and self.terminus.is_listed


class LinkTransaction:
    """One transaction, from its declaration to its discharge.

    `size`: the octets of its messages. `units`: about the time that its end takes. `control`: the link
    that has declared it; detaching that rolls it back. `partial_count`: its deliveries
    that are not complete. `failure`: why it cannot be committed.
    """

    def __init__(self, identifier: bytes, control: LinkEnd, budget: TransactionBudget) -> None:
        self.identifier = identifier
        self.control = control
        self.size: i64 = 0
        self.units: i64 = 0
        self.partial_count = 0
        self.failure: Error | None = None
        self.is_over = False
        self.retired: list[Retired] = []
        self._budget = budget
        self._held: i64 = 0
        self._publishes: list[tuple[list[Queue], Message]] = []
        self._posted: list[Posted] = []
        self._acquired: list[tuple[DeliveryHost, Enlisted, i64, Entry]] = []
        self._acquirers: dict[DeliveryHost, None] = {}

    def state(self, outcome: Composite | None) -> bytes:
        """The encoded transactional state of one of its deliveries."""
        return TransactionalState(self.identifier, outcome).encode()

    def fail(self, error: Error) -> None:
        """Only allow a rollback. The first error is reported."""
        if self.failure is None:
            self.failure = Error(TRANSACTION_ROLLBACK, error.description, error.info)

    def publish(self, queues: list[Queue], message: Message) -> None:
        self._publishes.append((queues, message))
        self.size += message.size

    def add_units(self, units: i64) -> bool:
        """Count units. False, and nothing is counted, if this transaction or the connection exceeds its limit."""
        if not self.has_room(units):
            return False
        self.units += units
        self._budget.units += units
        return True

    def has_room(self, units: i64) -> bool:
        budget = self._budget
        limit = budget.units_max
        return self.units + units <= limit and budget.units + units <= OPEN_AT_ONCE * limit

    def too_large(self) -> Error:
        return Error(RESOURCE_LIMIT_EXCEEDED, too_large(self._budget.units_max))

    def hold(self, size: i64) -> bool:
        """Count the memory of one message. False if there is no room for it."""
        size += HELD_MESSAGE_BYTES
        if not self._budget.held.add(size):
            return False
        self._held += size
        return True

    def post(self, posted: Posted) -> None:
        self._posted.append(posted)

    def retire(self, retired: Retired) -> None:
        self.retired.append(retired)
        retired.enlisted.retired[retired.number] = retired

    def begin_acquiring(self, link: DeliveryHost) -> None:
        """What the link delivers from now on is part of the transaction."""
        self._acquirers[link] = None

    def stop_acquiring(self, link: DeliveryHost) -> None:
        self._acquirers.pop(link, None)

    def acquire(self, link: DeliveryHost, enlisted: Enlisted, number: i64, entry: Entry) -> None:
        self.units += OTHER_UNITS
        self._budget.units += OTHER_UNITS
        self._acquired.append((link, enlisted, number, entry))
        enlisted.acquired[number] = self

    def commit(self) -> Error | None:
        """Apply everything atomically. If it cannot be applied, nothing is: then the reason is returned."""
        runtime = self._budget.runtime
        runtime.work_left -= self.units >> 1
        failure = self.failure or self._obstacle()
        if failure is not None:
            return failure
        self._end()
        with runtime.messages.atomic():
            for queues, message in self._publishes:
                publish_to([queue for queue in queues if not queue.is_deleted], message)
            for retired in self.retired:
                retired.apply()
            for posted in self._posted:
                self._keep(posted)
        for retired in self.retired:
            retired.link.delivery_settled()
        return None

    def _keep(self, posted: Posted) -> None:
        """Make a provisional outcome final (4.4.4.1)."""
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
        """Why a queue cannot take a message whose acceptance was promised to the sender."""
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
        """Release the acquired deliveries; the retired ones are unsettled again."""
        self._budget.runtime.work_left -= self.units >> 1
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
        for link, _, number, entry in reversed(self._acquired):
            if link.withdraw(number, entry):
                entry.queue.release(entry, failed=False)
                link.delivery_settled()
        self._acquired = []

    def _end(self) -> None:
        """Close the transaction to further work."""
        self.is_over = True
        budget = self._budget
        budget.held.give_back(self._held)
        budget.units -= self.units
        self.units = 0
        self._held = 0
        for retired in self.retired:
            retired.enlisted.retired.pop(retired.number, None)
        for _, enlisted, number, _ in self._acquired:
            enlisted.acquired.pop(number, None)
        for link in self._acquirers:
            link.end_acquiring()
        self._acquirers = {}
