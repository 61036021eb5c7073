"""Retirement (1.0, 4.4.2): outcomes that take effect when their transaction is committed."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.delivery_host import DeliveryHost
from waybill.engine.amqp10.server.detached_deliveries import DetachedDeliveries
from waybill.engine.amqp10.server.faults import Fault, link_error
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.outcomes import Outcome, outcome_of
from waybill.engine.amqp10.server.settlement import link_of
from waybill.engine.amqp10.server.task import SessionTask
from waybill.engine.amqp10.server.transaction import LinkTransaction, Retired, retirement_units
from waybill.model.entry import Entry
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.disposition import DispositionFacts
from waybill.wire.amqp10.error import NOT_ALLOWED, TRANSACTION_ROLLBACK, Error
from waybill.wire.amqp10.transactions import TransactionalState
from waybill.wire.amqp10.types import Described

WRAP: Final = 0xFFFFFFFF
TWO_TRANSACTIONS: Final = Error(TRANSACTION_ROLLBACK, "a delivery was associated with two transactions")


def retire(
    session: LinkHost,
    detached: DetachedDeliveries,
    numbers: list[i64],
    state: Composite | Described | None,
    facts: DispositionFacts,
) -> None:
    """Apply a disposition with a transactional state to these unsettled deliveries, and to those left behind.

    Raises a link fault for an unknown outcome.
    """
    try:
        transaction = session.connection.transactions.of_state(state)
    except Fault as fault:
        _detach_all(session, numbers, link_error(fault))
        return
    outcome = outcome_of(state.outcome) if isinstance(state, TransactionalState) else None
    if outcome is None:
        return
    session.connection.begin(Retirement(session, detached, numbers, outcome, transaction, facts))


class Retirement(SessionTask):
    """A disposition in a transaction, in three stages.

    It changes the outcomes of deliveries that are retired already, then retires unsettled deliveries, and then those of
    detached links.
    """

    def __init__(
        self,
        session: LinkHost,
        detached: DetachedDeliveries,
        numbers: list[i64],
        outcome: Outcome,
        transaction: LinkTransaction,
        facts: DispositionFacts,
    ) -> None:
        super().__init__(session)
        first = facts.first
        count = ((facts.last - first) & WRAP) + 1
        others: list[i64]
        if count > len(session.enlisted.retired):
            others = [number for number in session.enlisted.retired if (number - first) & WRAP < count]
        else:
            others = [(first + index) & WRAP for index in range(int(count))]
        self._outcome = outcome
        self._transaction = transaction
        self._is_settled = facts.settled
        self._detached = detached
        # In this order: what one stage retires, the first must not take for retired before.
        self._stages = [others, numbers, detached.numbers(first, count)]
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
        """False if this has ended a transaction."""
        session = self.session
        transaction = self._transaction
        if self._stage == 0:
            retired = session.enlisted.retired.get(number)
            if retired is None:
                return True
            if retired.transaction is not transaction:
                retired.transaction.control.detach(TWO_TRANSACTIONS)
                return False
            if not self._is_counted(retired.entry):
                return False
            # A provisional outcome may change until the discharge.
            retired.outcome = self._outcome
            retired.is_settled = self._is_settled
        elif self._stage == 1:
            entry = session.unsettled.get(number)
            if entry is not None:
                return self._is_counted(entry) and self._retire_unsettled(number, entry)
        else:
            held = self._detached.entries.get(number)
            if held is not None and not self._is_counted(held[1]):
                return False
            pair = self._detached.take(number)
            if pair is not None:
                self._retire(pair[0], number, pair[1])
        return True

    def _retire_unsettled(self, number: i64, entry: Entry) -> bool:
        """False if this has ended a transaction."""
        session = self.session
        link = link_of(entry)
        acquired = session.enlisted.acquired.get(number)
        if acquired is not None and acquired is not self._transaction:
            # 4.4.2: it "MUST NOT be associated with a different non discharged transaction than the outcome."
            acquired.control.detach(TWO_TRANSACTIONS)
            return False
        name = self._outcome.name
        if name not in link.outcomes:
            link.detach(Error(NOT_ALLOWED, f"{name} is not among the outcomes of this link"))
            return True
        del session.unsettled[number]
        self._retire(link, number, entry)
        return True

    def _retire(self, link: DeliveryHost, number: i64, entry: Entry) -> None:
        transaction = self._transaction
        enlisted = self.session.enlisted
        transaction.retire(
            Retired(link, number, entry, self._outcome, transaction, enlisted, is_settled=self._is_settled)
        )

    def _is_counted(self, entry: Entry) -> bool:
        """False if the transaction would exceed its limit: then it is rolled back."""
        transaction = self._transaction
        if transaction.add_units(retirement_units(entry, self._outcome)):
            return True
        transaction.control.detach(transaction.too_large())
        return False


def _detach_all(session: LinkHost, numbers: list[i64], error: Error) -> None:
    """Detach the links of these deliveries."""
    for number in numbers:
        entry = session.unsettled.get(number)
        if entry is not None:
            link_of(entry).detach(error)
