"""Outcomes that are not simply applied to a link's deliveries (1.0, 4.4.2): those of transactions, and late ones.

A delivery stays known by its number while its session is there: what the peer says of it after it detached the link,
and before it attached it again, counts.
"""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.faults import Fault
from waybill.engine.amqp10.server.outcomes import Outcome, outcome_of
from waybill.engine.amqp10.server.resume import TAG_SIZE
from waybill.engine.amqp10.server.task import SessionTask
from waybill.engine.amqp10.server.transaction import LinkTransaction, Retired, outcome_units
from waybill.model.entry import Entry
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.disposition import DispositionFacts
from waybill.wire.amqp10.error import NOT_ALLOWED, TRANSACTION_ROLLBACK, Error
from waybill.wire.amqp10.transactions import TransactionalState
from waybill.wire.amqp10.types import Described

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.outgoing import OutgoingLink
    from waybill.engine.amqp10.server.session import Session

WRAP = 0xFFFFFFFF
TWO_TRANSACTIONS: Final = Error(TRANSACTION_ROLLBACK, "a delivery was associated with two transactions")


class LeftBehind:
    """The deliveries of links that were detached and may be attached again, by number."""

    def __init__(self) -> None:
        self.entries: dict[i64, tuple[OutgoingLink, Entry]] = {}
        self._mark = 1024

    def add(self, link: "OutgoingLink", number: i64, entry: Entry) -> None:
        """To be called once the terminus of the link holds the delivery."""
        self.entries[number] = (link, entry)
        if len(self.entries) > self._mark:
            # Their links were attached again, or are gone for good.
            kept = {number: pair for number, pair in self.entries.items() if pair[0].terminus.is_listed}
            self.entries = kept
            self._mark = 2 * len(kept) + 1024

    def numbers(self, first: i64, count: i64) -> list[i64]:
        """Those of its deliveries that are among `count` from `first` on, in order."""
        entries = self.entries
        if count > len(entries):
            return [number for number in entries if (number - first) & WRAP < count]
        return [number for number in [(first + index) & WRAP for index in range(int(count))] if number in entries]

    def take(self, session: "Session", number: i64) -> "tuple[OutgoingLink, Entry] | None":
        """The delivery, which the terminus holds no more; None if it is not there."""
        pair = self.entries.pop(number, None)
        if pair is None:
            return None
        link, entry = pair
        tag = _tag(entry)
        if _is_held(link, entry):
            del link.terminus.held[tag]
        else:
            awaited = session.awaited(link.terminus, tag)
            if awaited is None or awaited.entry is not entry:
                return None
            # The link is attached again, and has not come to resume it.
            awaited.is_gone = True
        link.unsettled_count += 1
        return pair

    def settle(self, session: "Session", number: i64, outcome: Outcome | None) -> None:
        """Give a delivery its outcome, or the default one of its link."""
        pair = self.take(session, number)
        if pair is not None:
            link = pair[0]
            given = outcome if outcome is not None and outcome.name in link.outcomes else link.default_outcome
            given.apply(link, pair[1])
            link.settled_later()


def _tag(entry: Entry) -> bytes:
    return int(entry.sequence).to_bytes(TAG_SIZE, "big")


def _is_held(link: "OutgoingLink", entry: Entry) -> bool:
    return link.terminus.held.get(_tag(entry)) is entry


def retire(
    session: "Session", identifiers: list[i64], state: Composite | Described | None, facts: DispositionFacts
) -> None:
    """Outcomes that take effect with a transaction (4.4.2). Raises a link fault for what is none."""
    try:
        transaction = session.connection.transaction(state)
    except Fault as fault:
        _detach_all(session, identifiers, fault.error)
        return
    outcome = outcome_of(state.outcome) if isinstance(state, TransactionalState) else None
    if outcome is None:
        return
    session.connection.begin(Retirement(session, identifiers, outcome, transaction, facts))


class Retirement(SessionTask):
    """A disposition in a transaction."""

    def __init__(
        self,
        session: "Session",
        identifiers: list[i64],
        outcome: Outcome,
        transaction: LinkTransaction,
        facts: DispositionFacts,
    ) -> None:
        super().__init__(session)
        first = facts.first
        count = ((facts.last - first) & WRAP) + 1
        others: list[i64]
        if count > len(session.retired):
            others = [number for number in session.retired if (number - first) & WRAP < count]
        else:
            others = [(first + index) & WRAP for index in range(int(count))]
        self._outcome = outcome
        self._transaction = transaction
        self._is_settled = facts.settled
        # What a step retires, no later one may take for retired before.
        self._stages = [others, identifiers, session.left_behind.numbers(first, count)]
        self._stage = 0
        self._next: i64 = 0

    def work(self) -> bool:
        runtime = self.session.connection.host.runtime
        while self._stage < len(self._stages):
            numbers = self._stages[self._stage]
            if self._next >= len(numbers):
                self._stage += 1
                self._next = 0
                continue
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 1
            number = numbers[self._next]
            self._next += 1
            if self._transaction.is_over or not self._take(number):
                return True
        return True

    def _take(self, number: i64) -> bool:
        """False if a transaction was ended by it."""
        session = self.session
        transaction = self._transaction
        if self._stage == 0:
            retired = session.retired.get(number)
            if retired is None:
                return True
            if retired.transaction is not transaction:
                _end_control(retired.transaction, TWO_TRANSACTIONS)
                return False
            if not self._is_counted():
                return False
            # A provisional outcome may change until the discharge.
            retired.outcome = self._outcome
            retired.is_settled = self._is_settled
        elif self._stage == 1:
            entry = session.unsettled.get(number)
            if entry is not None:
                return self._is_counted() and _retire_one(
                    session, transaction, number, entry, self._outcome, settled=self._is_settled
                )
        else:
            if not self._is_counted():
                return False
            pair = session.left_behind.take(session, number)
            if pair is not None:
                transaction.retire(
                    Retired(pair[0], number, pair[1], self._outcome, transaction, is_settled=self._is_settled)
                )
        return True

    def _is_counted(self) -> bool:
        """False if the transaction would hold too much: it ends, with a link that tells why, and is rolled back."""
        transaction = self._transaction
        if transaction.add_units(outcome_units(self._outcome)):
            return True
        _end_control(transaction, transaction.too_large())
        return False


def _detach_all(session: "Session", identifiers: list[i64], error: Error) -> None:
    """The links whose deliveries these are."""
    for number in identifiers:
        entry = session.unsettled.get(number)
        if entry is not None:
            session.detach_outgoing(session.link_of(entry), error)


def _retire_one(
    session: "Session", transaction: LinkTransaction, number: i64, entry: Entry, outcome: Outcome, *, settled: bool
) -> bool:
    """False if the transaction was ended by it."""
    link = session.link_of(entry)
    acquired = session.acquired.get(number)
    if acquired is not None and acquired is not transaction:
        # 4.4.2: it "MUST NOT be associated with a different non discharged transaction than the outcome."
        _end_control(acquired, TWO_TRANSACTIONS)
        return False
    if outcome.name not in link.outcomes:
        session.detach_outgoing(link, Error(NOT_ALLOWED, f"{outcome.name} is not among the outcomes of this link"))
        return True
    del session.unsettled[number]
    transaction.retire(Retired(link, number, entry, outcome, transaction, is_settled=settled))
    return True


def _end_control(transaction: LinkTransaction, error: Error) -> None:
    control = transaction.control
    control.session.detach_incoming(control, error)
