"""The commands of class dtx: work in branches of distributed transactions, and their one- or two-phase end.

The results are those of XA. Commands that depend on the disk (prepare, commit, rollback) are answered once they are
durable.
"""

from typing import Final

from waybill.engine.amqp010.server.faults import session_fault
from waybill.engine.amqp010.server.session_view import SessionView
from waybill.model.branch import SUSPENDED, WORKING, Branch
from waybill.model.errors import IllegalState, NotFound
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
    GetTimeoutResult,
    RecoverResult,
    XaResult,
    Xid,
)
from waybill.wire.amqp010.constants import (
    ERROR_COMMAND_INVALID,
    ERROR_INVALID_ARGUMENT,
    ERROR_NOT_ALLOWED,
    XA_OK,
    XA_RBTIMEOUT,
)
from waybill.wire.amqp010.struct import Struct

TIMEOUT_MAX_S: Final = 3600
ID_OCTETS_MAX: Final = 64
"""XA: of a global transaction and of a branch qualifier."""


def octets_of(xid: Xid) -> bytes:
    """The identity of a branch. Raises a session fault for an xid that violates XA."""
    for part in (xid.global_id, xid.branch_id):
        if len(part) > ID_OCTETS_MAX:
            raise session_fault(ERROR_INVALID_ARGUMENT, f"the parts of an xid have at most {ID_OCTETS_MAX} octets")
    return xid.format.to_bytes(4, "big") + bytes([len(xid.global_id)]) + xid.global_id + xid.branch_id


def xid_of(octets: bytes) -> Xid:
    end = 5 + octets[4]
    return Xid(int.from_bytes(octets[:4], "big"), octets[5:end], octets[end:])


def _find(session: SessionView, xid: Xid) -> Branch:
    return session.host.branches.find(session.virtual_host.name, session.user.name, octets_of(xid))


def _check_selected(session: SessionView) -> None:
    if not session.is_dtx:
        raise session_fault(ERROR_COMMAND_INVALID, "the session is not selected for distributed transactions")


def select(session: SessionView, _command: DtxSelect) -> None:
    if session.transaction is not None:
        raise IllegalState("the session is transactional (tx)")
    session.is_dtx = True


def start(session: SessionView, command: DtxStart) -> Struct:
    _check_selected(session)
    if command.join and command.resume:
        raise session_fault(ERROR_COMMAND_INVALID, "join and resume exclude each other")
    if session.branch is not None:
        raise IllegalState("the session works in another branch")
    xid = octets_of(command.xid)
    if command.resume:
        branch = session.suspended.pop(xid, None)
        if branch is None:
            raise session_fault(ERROR_NOT_ALLOWED, "the session has not suspended this xid")
        if branch.is_expired:
            return XaResult(XA_RBTIMEOUT)
        branch.members[session] = WORKING
    elif command.join:
        try:
            branch = session.host.branches.join(session.virtual_host.name, session.user.name, xid, session)
        except NotFound as error:
            raise session_fault(ERROR_NOT_ALLOWED, str(error)) from None
    else:
        branch = session.host.branches.start(session.virtual_host.name, session.user.name, xid, session)
    session.branch = branch
    return XaResult(XA_OK)


def end(session: SessionView, command: DtxEnd) -> Struct:
    _check_selected(session)
    if command.suspend and command.fail:
        raise session_fault(ERROR_COMMAND_INVALID, "suspend and fail exclude each other")
    xid = octets_of(command.xid)
    branch = session.branch
    if branch is not None and branch.xid == xid:
        session.branch = None
    elif xid in session.suspended:
        branch = session.suspended.pop(xid)
    elif branch is not None:
        raise session_fault(ERROR_COMMAND_INVALID, "the session works in another branch")
    else:
        raise IllegalState("the xid is not associated with this session")
    if command.suspend and not branch.is_expired:
        branch.members[session] = SUSPENDED
        session.suspended[xid] = branch
        return XaResult(XA_OK)
    return XaResult(branch.end(session, is_failed=command.fail))


def prepare(session: SessionView, command: DtxPrepare) -> Struct:
    """The session need not be selected (dtx.select): only one that works in branches must be."""
    status = _find(session, command.xid).prepare()
    session.attached.hold()
    return XaResult(status)


def commit(session: SessionView, command: DtxCommit) -> Struct:
    status = _find(session, command.xid).commit(one_phase=command.one_phase)
    session.attached.hold()
    return XaResult(status)


def rollback(session: SessionView, command: DtxRollback) -> Struct:
    status = _find(session, command.xid).rollback()
    session.attached.hold()
    return XaResult(status)


def forget(session: SessionView, command: DtxForget) -> None:
    """Refuse dtx.forget: no branch is completed heuristically."""
    _find(session, command.xid)
    raise IllegalState("the branch was not completed heuristically")


def recover(session: SessionView, _command: DtxRecover) -> Struct:
    prepared = session.host.branches.prepared(session.virtual_host.name, session.user.name)
    # A coordinator decides by this list, so a crash must not change it.
    session.attached.hold()
    return RecoverResult(tuple([xid_of(octets) for octets in prepared]))


def get_timeout(session: SessionView, command: DtxGetTimeout) -> Struct:
    return GetTimeoutResult(int(_find(session, command.xid).timeout_s))


def set_timeout(session: SessionView, command: DtxSetTimeout) -> None:
    if command.timeout > TIMEOUT_MAX_S:
        raise session_fault(ERROR_INVALID_ARGUMENT, f"a timeout is at most {TIMEOUT_MAX_S} s")
    _find(session, command.xid).set_timeout(command.timeout)


def leave(session: SessionView) -> None:
    """The session ends: branches that it has not ended can only be rolled back."""
    branches = list(session.suspended.values())
    if session.branch is not None:
        branches.append(session.branch)
    session.branch = None
    session.suspended = {}
    for branch in branches:
        if session in branch.members:
            branch.end(session, is_failed=True)
