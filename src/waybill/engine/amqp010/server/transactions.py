"""The commands of class tx: transfers and acceptances that take effect at the commit."""

from waybill.engine.amqp010.server.faults import session_fault
from waybill.engine.amqp010.server.session_view import SessionView
from waybill.engine.amqp010.server.tasks import free
from waybill.model.entry import Entry
from waybill.model.errors import IllegalState
from waybill.model.transaction import Transaction
from waybill.wire.amqp010.class_tx import TxCommit, TxRollback, TxSelect
from waybill.wire.amqp010.constants import ERROR_RESOURCE_LIMIT_EXCEEDED


def select(session: SessionView, _command: TxSelect) -> None:
    if session.transaction is not None:
        raise IllegalState("the session is transactional already")
    if session.is_dtx:
        raise IllegalState("the session takes part in distributed transactions")
    session.transaction = Transaction(session.host.limits.transaction_units_max)


def commit(session: SessionView, _command: TxCommit) -> None:
    transaction = _selected(session)
    session.transaction = Transaction(session.host.limits.transaction_units_max)
    accepted = transaction.commit(session.runtime)
    session.give_back_memory(transaction.held)
    for entry, _, _ in transaction.outcomes:
        free(entry)
    session.needs_commit()
    session.wake_consumers()
    if not accepted:
        raise session_fault(
            ERROR_RESOURCE_LIMIT_EXCEEDED, "a full queue refused a message of the transaction; the rest is committed"
        )


def rollback(session: SessionView, _command: TxRollback) -> None:
    """Drop the messages. Accepted deliveries become unsettled again, and stay with the peer."""
    transaction = _selected(session)
    session.transaction = Transaction(session.host.limits.transaction_units_max)
    undo(session, transaction)


def undo(session: SessionView, transaction: Transaction) -> None:
    session.give_back_memory(transaction.held)
    if not transaction.outcomes:
        return
    session.runtime.work_left -= len(session.unsettled) >> 5
    entries: dict[int, Entry] = {number: entry for entry, _, number in transaction.outcomes}
    for number, entry in session.unsettled.items():
        entries[int(number)] = entry
    session.unsettled = {number: entries[number] for number in sorted(entries)}


def _selected(session: SessionView) -> Transaction:
    transaction = session.transaction
    if transaction is None:
        raise IllegalState("the session is not transactional")
    return transaction
