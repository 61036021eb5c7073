"""The coordinator: a link whose messages declare and discharge transactions (1.0, 4.3)."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.faults import LINK, Fault, link_error, link_fault
from waybill.engine.amqp10.server.incoming import IncomingLink
from waybill.engine.amqp10.server.link_host import LinkHost
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

CAPABILITIES: Final = (LOCAL_TRANSACTIONS, MULTIPLE_TRANSACTIONS_A_SESSION, MULTIPLE_SESSIONS_A_TRANSACTION)
TRANSACTIONS_MAX: Final = 1024
"""Open at once by one link."""


class CoordinatorLink(IncomingLink):
    """Transactions that it has declared and not discharged are rolled back when it is detached."""

    def __init__(self, session: LinkHost, attach: Attach, handle: i64, terminus: Terminus) -> None:
        super().__init__(session, attach, handle, TargetNode(session.connection, None), terminus, publishes=False)
        source = attach.source
        has_source = isinstance(source, COMPOSITE) and isinstance(source, Source)
        self._takes_rejected = has_source and self.refusals.may_reject
        self._declared: dict[bytes, LinkTransaction] = {}

    def publish(self, data: bytes, start: i64, end: i64) -> None:
        """Take one request. Raises `DecodeError`, or a link fault."""
        if self.delivery.is_settled:
            raise link_fault(ILLEGAL_STATE, "a request to the coordinator must not be settled")
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
            self.session.send_outcome(self.delivery.number, Rejected(link_error(fault)).encode())

    def _declare(self, request: Declare) -> None:
        if request.global_id is not None:
            raise link_fault(NOT_IMPLEMENTED, "distributed transactions")
        if len(self._declared) >= TRANSACTIONS_MAX:
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, f"more than {TRANSACTIONS_MAX} transactions at once")
        transaction = self.connection.transactions.declare(self)
        self._declared[transaction.identifier] = transaction
        self.session.send_outcome(self.delivery.number, Declared(transaction.identifier).encode())

    def _discharge(self, request: Discharge) -> None:
        transaction = self._declared.pop(request.txn_id, None)
        if transaction is None:
            raise link_fault(TRANSACTION_UNKNOWN_ID, f"no transaction {request.txn_id!r} is declared here")
        self.connection.transactions.remove(transaction)
        if request.fail:
            transaction.rollback()
            self.session.send_outcome(self.delivery.number, ACCEPTED_STATE)
            return
        retired = transaction.retired
        if transaction.partial_count:
            transaction.rollback()
            self.detach(Error(TRANSACTION_ROLLBACK, "a transaction is discharged before its messages are complete"))
            return
        failure = transaction.commit()
        if failure is not None:
            transaction.rollback()
            raise Fault(LINK, failure.condition, failure.description or "", failure.info)
        self.connection.host.runtime.store.wait(_Discharged(self, self.delivery.number, retired), 0)

    def detached(self, event: int, *, closed: bool) -> None:
        declared = self._declared
        self._declared = {}
        for transaction in declared.values():
            self.connection.transactions.remove(transaction)
            transaction.rollback()
        super().detached(event, closed=True)


class _Discharged(CommitWaiter):
    """Accepts a discharge once the commit is durable, and then settles the retired deliveries."""

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
                retired.link.settle(retired.number, retired.outcome.encoded)
