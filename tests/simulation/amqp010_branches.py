"""What a 0-10 client says of branches of distributed transactions: it begins, prepares and decides them.

It is its own coordinator. It decides on what is prepared when it likes, so that a crash finds branches in doubt; then
the next session asks for those first, and decides.
"""

from tests.simulation.amqp010_session import Conversation, Session
from tests.simulation.branches import Branch
from tests.simulation.violation import Violation
from waybill.wire.amqp010.class_dtx import (
    DtxCommit,
    DtxEnd,
    DtxPrepare,
    DtxRecover,
    DtxRollback,
    DtxSetTimeout,
    DtxStart,
    RecoverResult,
    XaResult,
    Xid,
)
from waybill.wire.amqp010.constants import XA_OK, XA_RBROLLBACK, XA_RBTIMEOUT

FORMAT = 7


def xid_of(branch: Branch) -> Xid:
    return Xid(FORMAT, branch.xid, b"sim")


def _status(session: Session, branch: Branch, result: object, *expected: int) -> int:
    if not isinstance(result, XaResult) or result.status not in expected:
        raise Violation("a branch ends as was asked", f"{session.name}: {branch.xid!r} is {branch.state}: {result}")
    return result.status


def start_branch(session: Session) -> Conversation:
    branch = session.ledger.branches.begin(session.actor.name)
    session.may_publish = session.may_settle = False
    result = yield session.ask(DtxStart(xid_of(branch)))
    _status(session, branch, result, XA_OK)
    if session.random.random() < 0.1:
        branch.may_expire = True
        yield session.ask(DtxSetTimeout(xid_of(branch), 1))
    session.transaction = branch
    session.may_publish = session.may_settle = True


def end_branch(session: Session) -> Conversation:
    """End the work in the branch; then it is committed in one phase, prepared, or rolled back."""
    branch, random = session.branch, session.random
    if branch is None:
        return
    session.may_publish = session.may_settle = False
    branch.is_ended = True
    status = XA_OK
    if random.random() < 0.2:
        result = yield session.ask(DtxEnd(xid_of(branch), suspend=True))
        status = _status(session, branch, result, XA_OK, *_expired(branch))
        if status == XA_OK:
            result = yield session.ask(DtxStart(xid_of(branch), resume=True))
            status = _status(session, branch, result, XA_OK, *_expired(branch))
    fails = not session.actor.is_calm and random.random() < 0.1
    if status == XA_OK:
        result = yield session.ask(DtxEnd(xid_of(branch), fail=fails))
        status = _status(session, branch, result, XA_RBROLLBACK if fails else XA_OK, *_expired(branch))
    session.transaction = None
    way = random.random()
    if status != XA_OK or (way < 0.1 and not session.actor.is_calm):
        yield from _roll_back(session, branch)
    elif way < 0.3:
        yield from _commit(session, branch, one_phase=True)
    else:
        yield from _prepare(session, branch)
    session.may_publish = session.may_settle = True


def _expired(branch: Branch) -> tuple[int, ...]:
    """What a branch may say that had little time."""
    return (XA_RBTIMEOUT, XA_RBROLLBACK) if branch.may_expire else ()


def _prepare(session: Session, branch: Branch) -> Conversation:
    branches = session.ledger.branches
    branches.preparing(branch)
    result = yield session.ask(DtxPrepare(xid_of(branch)))
    if _status(session, branch, result, XA_OK, *_expired(branch)) != XA_OK:
        yield from _roll_back(session, branch)
        return
    branches.prepared(branch, session.now)
    session.prepared.append(branch)


def _commit(session: Session, branch: Branch, *, one_phase: bool = False) -> Conversation:
    branches = session.ledger.branches
    branches.committing(branch, session.now, one_phase=one_phase)
    result = yield session.ask(DtxCommit(xid_of(branch), one_phase=one_phase))
    if _status(session, branch, result, XA_OK, *(_expired(branch) if one_phase else ())) != XA_OK:
        branches.rolled_back(branch)
    else:
        session.ledger.committed(branch, session.now)


def _roll_back(session: Session, branch: Branch) -> Conversation:
    branches = session.ledger.branches
    branches.rolling_back(branch)
    result = yield session.ask(DtxRollback(xid_of(branch)))
    _status(session, branch, result, XA_OK, *_expired(branch))
    branches.rolled_back(branch)


def decide(session: Session, branch: Branch) -> Conversation:
    """Commit or roll back what is prepared."""
    session.prepared.remove(branch)
    if session.random.random() < 0.7:
        yield from _commit(session, branch)
    else:
        yield from _roll_back(session, branch)


def take_up_branches(session: Session) -> Conversation:
    """Ask what is in doubt. Some of that is decided at once, the rest later."""
    if not session.actor.habits.distributes:
        return
    result = yield session.ask(DtxRecover())
    if not isinstance(result, RecoverResult):
        raise Violation("a branch ends as was asked", f"{session.name}: {result}")
    found = [xid.global_id for xid in result.in_doubt if isinstance(xid, Xid)]
    session.prepared = session.ledger.branches.recovered(session.actor.name, found, session.now)
    for branch in list(session.prepared):
        if session.random.random() < 0.5:
            yield from decide(session, branch)


def leave_branches(session: Session) -> Conversation:
    """Decide on everything."""
    branch = session.branch
    if branch is not None:
        yield session.ask(DtxEnd(xid_of(branch)))
        session.transaction = None
        yield from _roll_back(session, branch)
    while session.prepared:
        yield from decide(session, session.prepared[0])
