"""The coordinator: a link whose messages declare and discharge transactions (1.0, 4.3)."""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.faults import LINK, Fault, link_fault
from waybill.engine.amqp10.server.incoming import CREDIT, IncomingLink
from waybill.engine.amqp10.server.target import TargetNode
from waybill.engine.amqp10.server.transaction import LinkTransaction, Retired
from waybill.engine.amqp10.termini import Terminus
from waybill.model.store import CommitWaiter
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import COMPOSITE, from_described
from waybill.wire.amqp10.disposition import ACCEPTED_STATE
from waybill.wire.amqp10.error import (
    ILLEGAL_STATE,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT_EXCEEDED,
    TRANSACTION_ROLLBACK,
    TRANSACTION_UNKNOWN_ID,
    Error,
)
from waybill.wire.amqp10.messaging import Rejected, Source
from waybill.wire.amqp10.performatives import Attach
from waybill.wire.amqp10.sections import decode_body, scan_message
from waybill.wire.amqp10.transactions import (
    LOCAL_TRANSACTIONS,
    MULTIPLE_SESSIONS_A_TRANSACTION,
    MULTIPLE_TRANSACTIONS_A_SESSION,
    Declare,
    Declared,
    Discharge,
)

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.session import Session

CAPABILITIES: Final = (LOCAL_TRANSACTIONS, MULTIPLE_TRANSACTIONS_A_SESSION, MULTIPLE_SESSIONS_A_TRANSACTION)
TRANSACTIONS_MAX: Final = 1024
"""Open at once by one link."""


class CoordinatorLink(IncomingLink):
    """What it declared and did not discharge is rolled back when it goes."""

    def __init__(self, session: "Session", attach: Attach, handle: i64, terminus: Terminus) -> None:
        super().__init__(session, attach, handle, TargetNode(session.connection, None), terminus)
        source = attach.source
        lists_none = isinstance(source, COMPOSITE) and isinstance(source, Source) and not source.outcomes
        self._takes_rejected = lists_none or self.lists_rejected
        self._declared: dict[bytes, LinkTransaction] = {}

    def grant(self) -> None:
        """Whatever else must wait, transactions may end."""
        if self.is_attached:
            self.credit = CREDIT
            self.send_flow()

    def alarm_changed(self) -> None:
        """Publishers wait, not this link."""

    def publish(self, data: bytes, start: i64, end: i64) -> None:
        """Take one request. Raises `DecodeError`, or a link fault."""
        if self._is_settled:
            raise link_fault(ILLEGAL_STATE, "nobody would hear what becomes of a request that is settled")
        facts = self.connection.message_facts
        scan_message(data, start, end, facts)
        request = None
        if facts.body_kind == descriptors.AMQP_VALUE:
            request = from_described(decode_body(data, facts.body, facts.body_end)[0])
        try:
            if isinstance(request, Declare):
                self._declare(request)
            elif isinstance(request, Discharge):
                self._discharge(request)
            else:
                raise link_fault(NOT_IMPLEMENTED, "a coordinator takes declare and discharge")
        except Fault as fault:
            if not self._takes_rejected:
                raise
            self.session.send_outcome(self._delivery_id, Rejected(fault.error).encode())

    def _declare(self, request: Declare) -> None:
        if request.global_id is not None:
            raise link_fault(NOT_IMPLEMENTED, "distributed transactions")
        if len(self._declared) >= TRANSACTIONS_MAX:
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, f"more than {TRANSACTIONS_MAX} transactions at once")
        connection = self.connection
        connection.transaction_count += 1
        identifier = b"%d" % connection.transaction_count
        transaction = LinkTransaction(identifier, self)
        self._declared[identifier] = transaction
        connection.transactions[identifier] = transaction
        self.session.send_outcome(self._delivery_id, Declared(identifier).encode())

    def _discharge(self, request: Discharge) -> None:
        connection = self.connection
        transaction = self._declared.pop(request.txn_id, None)
        if transaction is None:
            raise link_fault(TRANSACTION_UNKNOWN_ID, f"no transaction {request.txn_id!r} is declared here")
        del connection.transactions[transaction.identifier]
        if request.fail:
            transaction.rollback()
            self.session.send_outcome(self._delivery_id, ACCEPTED_STATE)
            return
        runtime = connection.host.runtime
        retired = transaction.retired
        if transaction.partial_count:
            transaction.rollback()
            self.session.detach_incoming(
                self, Error(TRANSACTION_ROLLBACK, "a transaction is discharged while more of a message is awaited")
            )
            return
        failure = transaction.commit(runtime)
        if failure is not None:
            transaction.rollback()
            raise Fault(LINK, failure.condition, failure.description or "", failure.info)
        runtime.store.wait(_Discharged(self, self._delivery_id, retired), 0)

    def detached(self, event: int, *, closed: bool) -> None:
        declared = self._declared
        self._declared = {}
        for identifier, transaction in declared.items():
            del self.connection.transactions[identifier]
            transaction.rollback()
        super().detached(event, closed=True)


class _Discharged(CommitWaiter):
    """Tells that a transaction is committed once it is durable, and then settles what was retired in it."""

    def __init__(self, link: CoordinatorLink, number: i64, retired: list[Retired]) -> None:
        self._link = link
        self._number: i64 = number
        self._retired = retired

    def committed(self, mark: i64) -> None:
        session = self._link.session
        if not session.is_open:
            return
        session.send_outcome(self._number, ACCEPTED_STATE)
        for retired in self._retired:
            if not retired.is_settled and retired.link.is_attached:
                retired.link.session.settled_by_us(retired.number, retired.outcome.state.encode())
