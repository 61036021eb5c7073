"""Takes dispositions (1.0, 2.7.6). `take` runs once a message that the peer receives.

Dispositions that accept one delivery are collected as long as nothing else comes, and applied queue by queue.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.detached_deliveries import DetachedDeliveries
from waybill.engine.amqp10.server.faults import session_fault
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.links import Links
from waybill.engine.amqp10.server.outcomes import outcome_of
from waybill.engine.amqp10.server.outgoing import OutgoingLink
from waybill.engine.amqp10.server.retirement import retire
from waybill.engine.amqp10.server.session_host import Accepting
from waybill.engine.amqp10.server.settlement import LateSettlement, SenderSettlement, Settlement, settle
from waybill.engine.amqp10.server.shape import AcceptedShape
from waybill.engine.amqp10.server.task import FEW
from waybill.model.entry import Entry
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.disposition import DispositionFacts, decode_state, scan_disposition
from waybill.wire.amqp10.error import NOT_ALLOWED
from waybill.wire.amqp10.scan import NO_STATE
from waybill.wire.amqp10.types import Described

WRAP: Final = 0xFFFFFFFF


class Dispositions(Accepting):
    """The dispositions of one session."""

    def __init__(self, session: LinkHost, links: Links, detached: DetachedDeliveries) -> None:
        self._session = session
        self._connection = session.connection
        self._links = links
        self._detached = detached
        self._facts = DispositionFacts()
        self._accepted_shape = AcceptedShape()
        self._accepted: list[Entry] = []

    def take(self, data: bytes, start: i64, end: i64) -> None:
        """Raises `DecodeError`, or a fault of the session."""
        number = self._accepted_shape.match(data, start, end)
        if number < 0:
            self._take_other(data, start, end)
            return
        unsettled = self._session.unsettled
        entry = unsettled.get(number)
        if entry is None:
            if self._detached.entries:
                self._take_other(data, start, end)
            return
        link = entry.holder
        if isinstance(link, OutgoingLink) and link.takes_accepted:
            del unsettled[number]
            if not self._accepted:
                self._connection.accepting(self)
            self._accepted.append(entry)
            return
        self._take_other(data, start, end)

    def accept_all(self) -> None:
        entries = self._accepted
        self._accepted = []
        start = 0
        count = len(entries)
        while start < count:
            queue = entries[start].queue
            end = start + 1
            while end < count and entries[end].queue is queue:
                end += 1
            queue.accept_all(entries if end - start == count else entries[start:end])
            start = end
        for entry in entries:
            link = entry.holder
            if link is not None:
                link.unsettled_count -= 1
                if not link.is_active:
                    link.credit_available()

    def _take_other(self, data: bytes, start: i64, end: i64) -> None:
        self._connection.accept_all()
        self._connection.host.runtime.work_left -= 1
        facts = self._facts
        scan_disposition(data, start, end, facts)
        if not facts.receiver:
            if facts.settled:
                termini = [link.terminus for link in self._links.incoming.values()]
                self._connection.begin(SenderSettlement(self._session, termini, facts.first, facts.last))
            return
        if facts.state == descriptors.ACCEPTED and facts.settled and facts.first == facts.last:
            self._accepted_shape.learn(data, start, end, facts)
        self._take_outcomes(data, facts)

    def _take_outcomes(self, data: bytes, facts: DispositionFacts) -> None:
        session = self._session
        count = ((facts.last - facts.first) & WRAP) + 1
        if count > WRAP >> 1:
            raise session_fault(NOT_ALLOWED, f"a disposition of the deliveries {facts.first} to {facts.last}")
        state: Composite | Described | None = None
        if facts.state != NO_STATE:
            state = decode_state(data, facts.state_start, facts.state_end)
        numbers = self._unsettled_among(facts.first, count)
        if facts.state == descriptors.TRANSACTIONAL_STATE:
            retire(session, self._detached, numbers, state, facts)
            return
        outcome = outcome_of(state)
        if outcome is None and not facts.settled:
            return
        late = self._detached.numbers(facts.first, count) if self._detached.entries else []
        if len(numbers) > FEW:
            self._connection.begin(Settlement(session, numbers, outcome, settled=facts.settled))
        elif numbers:
            self._connection.host.runtime.work_left -= len(numbers) >> 4
            for number in numbers if outcome is None or outcome.keeps_order else reversed(numbers):
                entry = session.unsettled.get(number)
                if entry is not None:
                    settle(session, number, entry, outcome, settled=facts.settled)
        if late:
            if len(late) <= FEW and not (outcome is None or outcome.keeps_order):
                late.reverse()
            self._connection.begin(LateSettlement(session, self._detached, late, outcome))

    def _unsettled_among(self, first: i64, count: i64) -> list[i64]:
        """The unsettled deliveries among `count` from `first` on, found in the shorter of the two ways."""
        unsettled = self._session.unsettled
        if count == 1:
            return [first] if first in unsettled else []
        self._connection.host.runtime.work_left -= 2 + (min(count, len(unsettled)) >> 4)
        if count > len(unsettled):
            return [number for number in unsettled if (number - first) & WRAP < count]
        numbers: list[i64] = []
        for index in range(count):
            number = (first + index) & WRAP
            if number in unsettled:
                numbers.append(number)
        return numbers
