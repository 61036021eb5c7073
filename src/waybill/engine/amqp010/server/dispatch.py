"""Dispatches the commands of an open session to their handlers, by code."""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server import distributed, queries, settlement, subscribing, topology, transactions
from waybill.engine.amqp010.server.envelope import read_envelope
from waybill.engine.amqp010.server.faults import session_fault
from waybill.engine.amqp010.server.session import Session
from waybill.engine.delivery.drain import drain
from waybill.wire.amqp010.class_dtx import (
    DtxCommit,
    DtxEnd,
    DtxForget,
    DtxGetTimeout,
    DtxPrepare,
    DtxRecover,
    DtxRollback,
    DtxSelect,
    DtxSetTimeout,
    DtxStart,
)
from waybill.wire.amqp010.class_exchange import (
    ExchangeBind,
    ExchangeBound,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeQuery,
    ExchangeUnbind,
)
from waybill.wire.amqp010.class_execution import ExecutionException, ExecutionResult, ExecutionSync
from waybill.wire.amqp010.class_message import (
    MessageAccept,
    MessageAcquire,
    MessageCancel,
    MessageFlow,
    MessageFlush,
    MessageReject,
    MessageRelease,
    MessageResume,
    MessageSetFlowMode,
    MessageStop,
    MessageSubscribe,
)
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueDelete, QueuePurge, QueueQuery
from waybill.wire.amqp010.class_tx import TxCommit, TxRollback, TxSelect
from waybill.wire.amqp010.codec import decode_command, operation_code, wants_sync
from waybill.wire.amqp010.constants import ACCEPT_EXPLICIT, ERROR_COMMAND_INVALID, ERROR_NOT_IMPLEMENTED
from waybill.wire.amqp010.struct import Command, Struct
from waybill.wire.amqp010.transfer import ACCEPT_CODE, TRANSFER_CODE, scan_transfer

FILE_CLASS: Final = 0x09
STREAM_CLASS: Final = 0x0A

# A command's handler returns its result, or None. Those of the second table may take several turns.
HANDLERS: Final[dict[int, Callable[..., Struct | None]]] = {
    MessageCancel.CODE: subscribing.cancel,
    MessageFlow.CODE: subscribing.flow,
    MessageResume.CODE: subscribing.resume,
    MessageSetFlowMode.CODE: subscribing.set_flow_mode,
    MessageStop.CODE: subscribing.stop,
    MessageSubscribe.CODE: subscribing.subscribe,
    TxCommit.CODE: transactions.commit,
    TxRollback.CODE: transactions.rollback,
    TxSelect.CODE: transactions.select,
    DtxCommit.CODE: distributed.commit,
    DtxEnd.CODE: distributed.end,
    DtxForget.CODE: distributed.forget,
    DtxGetTimeout.CODE: distributed.get_timeout,
    DtxPrepare.CODE: distributed.prepare,
    DtxRecover.CODE: distributed.recover,
    DtxRollback.CODE: distributed.rollback,
    DtxSelect.CODE: distributed.select,
    DtxSetTimeout.CODE: distributed.set_timeout,
    DtxStart.CODE: distributed.start,
    ExchangeBind.CODE: topology.exchange_bind,
    ExchangeBound.CODE: queries.exchange_bound,
    ExchangeDeclare.CODE: topology.exchange_declare,
    ExchangeQuery.CODE: queries.exchange_query,
    ExchangeUnbind.CODE: topology.exchange_unbind,
    QueueDeclare.CODE: topology.queue_declare,
    QueueQuery.CODE: queries.queue_query,
}
LONG_HANDLERS: Final[dict[int, Callable[..., None]]] = {
    ExchangeDelete.CODE: topology.exchange_delete,
    MessageAcquire.CODE: settlement.acquire,
    MessageFlush.CODE: subscribing.flush,
    MessageReject.CODE: settlement.reject,
    MessageRelease.CODE: settlement.release,
    QueueDelete.CODE: topology.queue_delete,
    QueuePurge.CODE: topology.queue_purge,
}
SETTLING: Final = frozenset({ACCEPT_CODE, MessageReject.CODE, MessageRelease.CODE})
COMMAND_UNITS: Final = 4
SIZE_UNIT_BITS: Final = 5


def take_command(session: Session, payload: bytes, header: bytes | None, body: bytes | None) -> None:
    """Execute one command, the next of its session. Raises what ends the session, or more."""
    if session.is_repeated:
        session.skip_repeated()
        return
    number = session.received()
    code = operation_code(payload)
    if code in SETTLING:
        session.has_settled = True
    if session.has_settled and wants_sync(payload):
        # Outcomes are completed immediately, unless the peer requests a completion: then once they are durable.
        session.has_settled = False
        session.needs_commit()
    if code == TRANSFER_CODE:
        _take_transfer(session, payload, header, body, number)
        return
    runtime = session.runtime
    if (header is not None or body is not None) and code >> 8 not in {FILE_CLASS, STREAM_CLASS}:
        raise session_fault(ERROR_COMMAND_INVALID, "a command that has no content comes with some")
    if code == ACCEPT_CODE and settlement.accept_range(session, payload):
        return
    runtime.work_left -= COMMAND_UNITS + (len(payload) >> SIZE_UNIT_BITS)
    command, _ = decode_command(payload)
    if runtime.dirty and code not in SETTLING and code != MessageFlow.CODE:
        # Earlier publishes must be routed before a count, a new subscription or an acquisition.
        drain(runtime)
    _execute(session, command, int(code), number)


def _execute(session: Session, command: Command, code: int, number: i64) -> None:
    if isinstance(command, MessageAccept):
        settlement.accept(session, number, command.transfers)
        return
    handler = HANDLERS.get(code)
    if handler is not None:
        result = handler(session, command)
        if result is not None:
            session.send_result(number, result)
        return
    long_handler = LONG_HANDLERS.get(code)
    if long_handler is not None:
        long_handler(session, number, command)
        return
    if code in {ExecutionSync.CODE, ExecutionResult.CODE, ExecutionException.CODE}:
        # Everything before is executed. We send no command that has a result or may fail.
        return
    if code >> 8 in {FILE_CLASS, STREAM_CLASS}:
        raise session_fault(ERROR_NOT_IMPLEMENTED, f"{command.NAME}: the classes file and stream are not implemented")
    raise session_fault(ERROR_COMMAND_INVALID, f"{command.NAME} is not for a server")


def _take_transfer(session: Session, payload: bytes, header: bytes | None, body: bytes | None, number: i64) -> None:
    connection = session.attached
    facts = connection.transfer_facts
    scan_transfer(payload, facts)
    session.runtime.work_left -= COMMAND_UNITS + ((0 if header is None else len(header)) >> SIZE_UNIT_BITS)
    # Clients that do not support an answer leave the accept-mode out.
    is_explicit = facts.has_accept_mode and facts.accept_mode == ACCEPT_EXPLICIT
    envelope = read_envelope(connection, facts.destination, header or b"")
    connection.has_published = True
    session.publish(envelope, body or b"", number, is_explicit=is_explicit)
