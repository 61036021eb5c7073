"""The open transactions of a connection, by txn-id (1.0, 4.2)."""

from mypy_extensions import i64

from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.transaction import LinkTransaction, TransactionBudget
from waybill.engine.amqp10.termini import LinkEnd
from waybill.engine.held_memory import HeldMemory
from waybill.model.runtime import Runtime
from waybill.wire.amqp10.composite import COMPOSITE, Composite
from waybill.wire.amqp10.error import ILLEGAL_STATE, TRANSACTION_UNKNOWN_ID
from waybill.wire.amqp10.transactions import TransactionalState
from waybill.wire.amqp10.types import Described


class Transactions:
    """A transaction may span sessions and links of its connection, but never connections."""

    def __init__(self, runtime: Runtime, held: HeldMemory, units_max: int) -> None:
        self._budget = TransactionBudget(runtime, held, units_max)
        self._open: dict[bytes, LinkTransaction] = {}
        self._count = 0

    def units(self) -> i64:
        """The units of all together."""
        return self._budget.units

    def declare(self, control: LinkEnd) -> LinkTransaction:
        self._count += 1
        transaction = LinkTransaction(b"%d" % self._count, control, self._budget)
        self._open[transaction.identifier] = transaction
        return transaction

    def remove(self, transaction: LinkTransaction) -> None:
        """Call this before the transaction is committed or rolled back."""
        del self._open[transaction.identifier]

    def find(self, identifier: bytes) -> LinkTransaction:
        """Raises a link fault if no open transaction has this txn-id."""
        transaction = self._open.get(identifier)
        if transaction is None:
            raise link_fault(TRANSACTION_UNKNOWN_ID, f"no transaction {identifier!r} is declared")
        return transaction

    def of_state(self, state: Composite | Described | None) -> LinkTransaction:
        """The transaction of a delivery state. Raises a link fault if there is none."""
        if isinstance(state, COMPOSITE) and isinstance(state, TransactionalState):
            return self.find(state.txn_id)
        raise link_fault(ILLEGAL_STATE, "a transactional state is needed")
