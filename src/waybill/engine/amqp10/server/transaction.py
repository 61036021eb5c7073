"""What a transaction of AMQP 1.0 holds until it is discharged (1.0, 4.4): posted, retired and acquired messages.

post       kept back, and published by the commit
retire     the outcome waits; after a rollback the delivery is what it was, still acquired by its link
acquire    deliveries that a rollback makes available again; a commit gives them no outcome
"""

from typing import TYPE_CHECKING

from mypy_extensions import i64

from waybill.engine.amqp10.server.outcomes import Outcome
from waybill.model.entry import Entry
from waybill.model.message import Message
from waybill.model.queue import Queue
from waybill.model.runtime import Runtime
from waybill.model.virtual_host import publish_to
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.transactions import TransactionalState

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.outgoing import OutgoingLink


class Retired:
    """A delivery with an outcome that waits. `is_settled`: the peer has forgotten it already."""

    def __init__(self, link: "OutgoingLink", number: i64, entry: Entry, outcome: Outcome, *, is_settled: bool) -> None:
        self.link = link
        self.number: i64 = number
        self.entry = entry
        self.outcome = outcome
        self.is_settled = is_settled

    @property
    def is_forgotten(self) -> bool:
        """The peer can no longer say what becomes of it."""
        return self.is_settled or not self.link.is_attached

    def apply_default(self) -> None:
        """After a rollback, the default outcome is that of what the peer has forgotten (4.4)."""
        self.link.default_outcome.apply(self.link, self.entry)
        self.link.settled_later()


class LinkTransaction:
    """One transaction, from its declaration to its discharge. `size`: octets of the messages kept back."""

    def __init__(self, identifier: bytes) -> None:
        self.identifier = identifier
        self.size: i64 = 0
        self.retired: list[Retired] = []
        self._publishes: list[tuple[list[Queue], Message]] = []
        self._acquired: list[tuple[OutgoingLink, i64, Entry]] = []
        self._acquirers: list[OutgoingLink] = []

    def state(self, outcome: Composite | None) -> bytes:
        """The encoded state of a delivery that takes part."""
        return TransactionalState(self.identifier, outcome).encode()

    def publish(self, queues: list[Queue], message: Message) -> None:
        self._publishes.append((queues, message))
        self.size += message.size

    def retire(self, retired: Retired) -> None:
        self.retired.append(retired)

    def begin_acquiring(self, link: "OutgoingLink") -> None:
        """From now on what the link delivers takes part."""
        link.acquiring = self
        self._acquirers.append(link)

    def acquire(self, link: "OutgoingLink", number: i64, entry: Entry) -> None:
        self._acquired.append((link, number, entry))

    def commit(self, runtime: Runtime) -> bool:
        """Do it all; recovered as a whole or not at all. False, with nothing done, if a queue has no room for it."""
        if not self._has_room():
            return False
        with runtime.store.atomic():
            for queues, message in self._publishes:
                publish_to([queue for queue in queues if not queue.is_deleted], message)
            for retired in self.retired:
                retired.outcome.apply(retired.link, retired.entry)
        for retired in self.retired:
            retired.link.settled_later()
        self._end_acquiring()
        return True

    def _has_room(self) -> bool:
        counts: dict[Queue, int] = {}
        sizes: dict[Queue, int] = {}
        for queues, message in self._publishes:
            for queue in queues:
                counts[queue] = counts.get(queue, 0) + 1
                sizes[queue] = sizes.get(queue, 0) + int(message.size)
        return all(queue.has_room(count, sizes[queue]) for queue, count in counts.items())

    def rollback(self) -> None:
        """Undo it: what was acquired is available again, what was retired is what it was."""
        self._publishes = []
        for retired in self.retired:
            if retired.is_forgotten and retired.link.default_outcome.keeps_order:
                retired.apply_default()
        for retired in reversed(self.retired):
            session = retired.link.session
            if retired.is_forgotten:
                if not retired.link.default_outcome.keeps_order:
                    retired.apply_default()
            else:
                retired.entry.holder = retired.link
                session.unsettled[retired.number] = retired.entry
        self.retired = []
        for link, number, entry in reversed(self._acquired):
            if link.session.unsettled.get(number) is entry:
                del link.session.unsettled[number]
                entry.queue.release(entry, failed=False)
                link.settled_later()
        self._end_acquiring()

    def _end_acquiring(self) -> None:
        for link in self._acquirers:
            if link.acquiring is self:
                link.acquiring = None
        self._acquirers = []
        self._acquired = []
