"""Classes tx and dtx: local and distributed transactions, and what becomes of branches when everything stops."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp010.peer import Peer, RemoteError, Session
from tests.engine.amqp091.peer import Cut, NodeBench
from tests.engine.disk_bench import DiskBench
from waybill.testing.simulated_disk import Crash
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
from waybill.wire.amqp010.class_exchange import ExchangeBind
from waybill.wire.amqp010.class_message import MessageRelease
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueDelete, QueueQuery, QueueQueryResult
from waybill.wire.amqp010.class_tx import TxCommit, TxRollback, TxSelect
from waybill.wire.amqp010.constants import (
    ERROR_COMMAND_INVALID,
    ERROR_ILLEGAL_STATE,
    ERROR_INVALID_ARGUMENT,
    ERROR_NOT_ALLOWED,
    ERROR_NOT_FOUND,
    XA_OK,
    XA_RBROLLBACK,
    XA_RBTIMEOUT,
)
from waybill.wire.amqp010.struct import Command

X = Xid(0, b"global", b"branch")


def status(session: Session, command: Command) -> int:
    result = session.call(command)
    assert isinstance(result, XaResult)
    return result.status


def refused(session: Session, command: Command) -> int:
    with pytest.raises(RemoteError) as refusal:
        session.call(command)
    return refusal.value.exception.error_code


def depth(session: Session, queue: str) -> int:
    result = session.call(QueueQuery(queue))
    assert isinstance(result, QueueQueryResult)
    return result.message_count


def depths(session: Session) -> tuple[int, int]:
    return depth(session, "a"), depth(session, "b")


@pytest.fixture
def worker(session: Session, peer: Peer) -> Session:
    """A session beside `session`, with a message in the queue `a` and none in `b`."""
    session.call(QueueDeclare("a", durable=True))
    session.call(QueueDeclare("b", durable=True))
    session.publish(b"message", key="a", delivery_mode=2)
    session.sync()
    return peer.session(b"worker", 2)


def swap(worker: Session) -> None:
    """Take a message from `a`, and put one into `b`."""
    worker.subscribe("a", messages=1)
    one = worker.take()
    worker.accept(one)
    worker.publish(one.body, key="b", delivery_mode=2)
    worker.sync()


# --- tx ---


@requirement("X010-042", "M010-041", "M010-042")
def test_a_commit_makes_everything_count(session: Session, worker: Session) -> None:
    worker.call(TxSelect())
    swap(worker)
    assert depths(session) == (0, 0)
    worker.call(TxCommit())
    assert depths(session) == (0, 1)
    worker.detach()
    assert depths(session) == (0, 1)


@requirement("X010-042", "M010-041")
def test_after_a_rollback_what_was_accepted_is_still_the_peers(session: Session, worker: Session) -> None:
    worker.call(TxSelect())
    swap(worker)
    worker.call(TxRollback())
    assert depths(session) == (0, 0)
    worker.call(MessageRelease(((0, 100),)))
    assert depths(session) == (1, 0)


def test_a_session_that_ends_rolls_back(session: Session, worker: Session) -> None:
    worker.call(TxSelect())
    swap(worker)
    worker.detach()
    assert depths(session) == (1, 0)


@pytest.mark.parametrize("command", [TxCommit(), TxRollback()], ids=str)
def test_select_comes_first(session: Session, command: Command) -> None:
    assert refused(session, command) == ERROR_ILLEGAL_STATE


def test_select_comes_once(session: Session) -> None:
    session.call(TxSelect())
    assert refused(session, TxSelect()) == ERROR_ILLEGAL_STATE


# --- dtx ---


@requirement("X010-043", "M010-107")
@pytest.mark.parametrize("phases", [1, 2])
def test_a_branch_is_committed(session: Session, worker: Session, phases: int) -> None:
    worker.call(DtxSelect())
    assert status(worker, DtxStart(X)) == XA_OK
    swap(worker)
    assert status(worker, DtxEnd(X)) == XA_OK
    assert depths(session) == (0, 0)
    if phases == 2:
        assert status(worker, DtxPrepare(X)) == XA_OK
        assert worker.call(DtxRecover()) == RecoverResult((X,))
    assert status(worker, DtxCommit(X, one_phase=phases == 1)) == XA_OK
    assert depths(session) == (0, 1)
    assert worker.call(DtxRecover()) == RecoverResult(())


@requirement("X010-043", "M010-108")
@pytest.mark.parametrize("phases", [1, 2])
def test_a_branch_is_rolled_back_by_another_session(session: Session, worker: Session, phases: int) -> None:
    worker.call(DtxSelect())
    worker.call(DtxStart(X))
    swap(worker)
    worker.call(DtxEnd(X))
    session.call(DtxSelect())
    if phases == 2:
        assert status(session, DtxPrepare(X)) == XA_OK
    assert status(session, DtxRollback(X)) == XA_OK
    assert depths(session) == (1, 0)


@requirement("X010-041")
@pytest.mark.parametrize(("end", "left"), [(DtxCommit(X), 0), (DtxRollback(X), 1)], ids=["commit", "rollback"])
def test_what_a_branch_has_accepted_stays_with_it(session: Session, worker: Session, end: Command, left: int) -> None:
    """Its queue is deleted while it is prepared: the message is consumed, or goes to the alternate exchange."""
    session.call(QueueDeclare("orphans"))
    session.call(ExchangeBind("orphans", "amq.fanout", ""))
    session.call(QueueDeclare("c", durable=True, alternate_exchange="amq.fanout"))
    session.publish(b"message", key="c", delivery_mode=2)
    session.sync()
    worker.call(DtxSelect())
    assert status(worker, DtxStart(X)) == XA_OK
    worker.subscribe("c")
    worker.settle(worker.take())
    assert status(worker, DtxEnd(X)) == XA_OK
    assert status(worker, DtxPrepare(X)) == XA_OK
    session.call(QueueDelete("c"))
    assert depth(session, "orphans") == 0
    assert status(session, end) == XA_OK
    assert depth(session, "orphans") == left


def test_what_comes_after_the_end_is_no_part_of_the_branch(session: Session, worker: Session) -> None:
    worker.call(DtxSelect())
    worker.call(DtxStart(X))
    worker.call(DtxEnd(X))
    swap(worker)
    assert depths(session) == (0, 1)


def test_sessions_join_and_resume(session: Session, worker: Session) -> None:
    worker.call(DtxSelect())
    session.call(DtxSelect())
    worker.call(DtxStart(X))
    assert status(session, DtxStart(X, join=True)) == XA_OK
    session.publish(b"joined", key="b")
    session.call(DtxEnd(X))
    worker.call(DtxEnd(X, suspend=True))
    worker.publish(b"outside", key="b")
    assert status(worker, DtxStart(X, resume=True)) == XA_OK
    swap(worker)
    worker.call(DtxEnd(X))
    assert depths(session) == (0, 1)
    assert status(worker, DtxCommit(X, one_phase=True)) == XA_OK
    assert depths(session) == (0, 3)


@pytest.mark.parametrize("end", ["detach", "fail"])
def test_a_branch_without_its_session_is_rolled_back(session: Session, worker: Session, end: str) -> None:
    worker.call(DtxSelect())
    worker.call(DtxStart(X))
    swap(worker)
    if end == "detach":
        worker.detach()
    else:
        assert status(worker, DtxEnd(X, fail=True)) == XA_RBROLLBACK
    session.call(DtxSelect())
    assert status(session, DtxPrepare(X)) == XA_RBROLLBACK
    assert status(session, DtxRollback(X)) == XA_OK
    assert depths(session) == (1, 0)


@requirement("X010-043")
def test_a_branch_has_its_time(bench: NodeBench, session: Session, worker: Session) -> None:
    worker.call(DtxSelect())
    worker.call(DtxStart(X))
    assert worker.call(DtxGetTimeout(X)) == GetTimeoutResult(60)
    worker.call(DtxSetTimeout(X, 2))
    swap(worker)
    bench.advance(3)
    assert depths(session) == (1, 0)
    assert status(worker, DtxEnd(X)) == XA_RBTIMEOUT
    assert status(worker, DtxRollback(X)) == XA_RBTIMEOUT
    assert refused(worker, DtxRollback(X)) == ERROR_NOT_FOUND


def test_a_prepared_branch_has_all_the_time(bench: NodeBench, session: Session, worker: Session) -> None:
    worker.call(DtxSelect())
    worker.call(DtxStart(X))
    swap(worker)
    worker.call(DtxEnd(X))
    worker.call(DtxPrepare(X))
    bench.advance(1000)
    assert status(worker, DtxCommit(X)) == XA_OK
    assert depths(session) == (0, 1)


Y = Xid(0, b"other", b"")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (DtxStart(X), ERROR_ILLEGAL_STATE),
        (DtxStart(Y, join=True, resume=True), ERROR_COMMAND_INVALID),
        (DtxEnd(Y), ERROR_COMMAND_INVALID),
        (DtxEnd(X, fail=True, suspend=True), ERROR_COMMAND_INVALID),
        (DtxPrepare(X), ERROR_ILLEGAL_STATE),
        (DtxCommit(X, one_phase=True), ERROR_ILLEGAL_STATE),
        (DtxRollback(X), ERROR_ILLEGAL_STATE),
        (DtxPrepare(Y), ERROR_NOT_FOUND),
        (DtxCommit(Y), ERROR_NOT_FOUND),
        (DtxRollback(Y), ERROR_NOT_FOUND),
        (DtxForget(Y), ERROR_NOT_FOUND),
        (DtxForget(X), ERROR_ILLEGAL_STATE),
        (DtxGetTimeout(Y), ERROR_NOT_FOUND),
        (DtxSetTimeout(Y, 1), ERROR_NOT_FOUND),
        (DtxSetTimeout(X, 3601), ERROR_INVALID_ARGUMENT),
        (TxSelect(), ERROR_ILLEGAL_STATE),
    ],
    ids=str,
)
def test_what_is_refused_in_a_branch(session: Session, command: Command, code: int) -> None:
    session.call(DtxSelect())
    session.call(DtxStart(X))
    assert refused(session, command) == code


@pytest.mark.parametrize(
    ("commands", "code"),
    [
        ([DtxPrepare(X), DtxCommit(X, one_phase=True)], ERROR_ILLEGAL_STATE),
        ([DtxCommit(X)], ERROR_ILLEGAL_STATE),
        ([DtxStart(X)], ERROR_NOT_ALLOWED),
        ([DtxStart(Y, join=True)], ERROR_NOT_ALLOWED),
        ([DtxStart(X, resume=True)], ERROR_NOT_ALLOWED),
        ([DtxEnd(X)], ERROR_ILLEGAL_STATE),
    ],
    ids=str,
)
def test_what_is_refused_after_a_branch(session: Session, commands: list[Command], code: int) -> None:
    session.call(DtxSelect())
    session.call(DtxStart(X))
    session.call(DtxEnd(X))
    for command in commands[:-1]:
        session.call(command)
    assert refused(session, commands[-1]) == code


def test_dtx_needs_select(session: Session) -> None:
    assert refused(session, DtxStart(X)) == ERROR_COMMAND_INVALID


# --- on a disk ---


def prepared(bench: DiskBench) -> Session:
    """A session that has prepared a branch which moves a message from `a` to `b`."""
    peer = Peer(bench)
    peer.open()
    session = peer.session()
    session.call(QueueDeclare("a", durable=True))
    session.call(QueueDeclare("b", durable=True))
    session.publish(b"message", key="a", delivery_mode=2)
    session.sync()
    session.call(DtxSelect())
    session.call(DtxStart(X))
    swap(session)
    session.call(DtxEnd(X))
    assert status(session, DtxPrepare(X)) == XA_OK
    return session


def coordinator(bench: DiskBench) -> Session:
    peer = Peer(bench)
    peer.open()
    session = peer.session(b"coordinator")
    session.call(DtxSelect())
    return session


@requirement("X010-043", "M010-109")
@pytest.mark.parametrize("how", ["stop", "kill", "power"])
@pytest.mark.parametrize(
    ("end", "left"), [(DtxCommit(X), (0, 1)), (DtxRollback(X), (1, 0))], ids=["commit", "rollback"]
)
def test_a_prepared_branch_survives(how: str, end: Command, left: tuple[int, int]) -> None:
    bench = DiskBench(Cut.WHOLE)
    prepared(bench)
    for _ in range(2):
        bench.restart(how)
        session = coordinator(bench)
        assert session.call(DtxRecover()) == RecoverResult((X,))
        assert depths(session) == (0, 0)
    assert status(session, end) == XA_OK
    assert depths(session) == left
    bench.restart(how)
    session = coordinator(bench)
    assert session.call(DtxRecover()) == RecoverResult(())
    assert depths(session) == left
    assert bench.node.runtime.held_bytes == 0


def test_what_a_branch_of_an_earlier_life_publishes_may_have_been_delivered_before() -> None:
    bench = DiskBench(Cut.WHOLE)
    session = prepared(bench)
    session.subscribe("b", "early")
    session.call(DtxCommit(X))
    assert not session.take().delivery.redelivered
    bench = DiskBench(Cut.WHOLE)
    prepared(bench)
    bench.restart("kill")
    session = coordinator(bench)
    session.call(DtxCommit(X))
    # Not even the next life takes it for new.
    bench.restart("kill")
    session = coordinator(bench)
    session.publish(b"new", key="b")
    session.subscribe("b")
    assert [one.delivery.redelivered for one in session.take_all()] == [True, False]


def test_what_an_unfinished_branch_holds_is_delivered_again_after_a_stop() -> None:
    bench = DiskBench(Cut.WHOLE)
    session = coordinator(bench)
    session.call(QueueDeclare("a", durable=True))
    session.call(QueueDeclare("b", durable=True))
    session.publish(b"message", key="a", delivery_mode=2)
    session.call(DtxStart(X))
    swap(session)
    session.call(DtxEnd(X))
    bench.restart("stop")
    session = coordinator(bench)
    session.subscribe("a")
    assert session.take().delivery.redelivered
    assert session.call(DtxRecover()) == RecoverResult(())


def test_what_was_prepared_finds_room(session: Session, worker: Session) -> None:
    """The queue was filled by others after it had promised room."""
    limits: dict[str, object] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    session.call(QueueDeclare("full", durable=True, arguments=limits))
    worker.call(DtxSelect())
    worker.call(DtxStart(X))
    worker.publish(b"promised", key="full", delivery_mode=2)
    worker.call(DtxEnd(X))
    assert status(worker, DtxPrepare(X)) == XA_OK
    session.publish(b"between", key="full")
    session.sync()
    assert status(worker, DtxCommit(X)) == XA_OK
    assert depth(session, "full") == 2


def test_what_is_in_doubt_is_told_once_it_is_durable() -> None:
    bench = DiskBench(Cut.WHOLE)
    session = prepared(bench)
    other = coordinator(bench)
    bench.is_stuck = True
    session.send(DtxCommit(X))
    session.peer.pump()
    asked = other.send(DtxRecover(), sync=True)
    other.peer.pump()
    assert asked not in other.results
    bench.is_stuck = False
    bench.settle()
    other.peer.pump()
    assert other.results[asked] == RecoverResult(())


@requirement("X010-043")
@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
def test_no_branch_is_half_done(power: bool) -> None:
    """The process dies in every operation of the disk that a commit makes."""
    steps = 0
    while True:
        steps += 1
        bench = DiskBench(Cut.WHOLE, seed=steps)
        session = prepared(bench)
        bench.disk.crash_at = bench.disk.operations + steps
        try:
            session.call(DtxCommit(X))
            break
        except Crash:
            pass
        bench.restart("power" if power else "kill")
        after = coordinator(bench)
        if after.call(DtxRecover()) == RecoverResult((X,)):
            assert depths(after) == (0, 0)
            assert status(after, DtxCommit(X)) == XA_OK
        assert depths(after) == (0, 1)
    assert steps > 1


def test_the_branches_of_another_user_are_out_of_reach(bench: NodeBench, session: Session) -> None:
    from waybill.wire.amqp010.class_connection import (
        ConnectionOpen,
        ConnectionOpenOk,
        ConnectionStartOk,
        ConnectionTune,
        ConnectionTuneOk,
    )

    session.call(DtxSelect())
    session.call(DtxStart(X))
    session.call(DtxEnd(X))
    session.call(DtxPrepare(X))
    administration = bench.node.administration
    administration.put_user("other", "secret")
    administration.set_permission("other", "/", ".*", ".*", ".*")
    other = Peer(bench)
    other.start()
    other.control(ConnectionStartOk({}, "PLAIN", b"\0other\0secret", "en_US"))
    other.expect(ConnectionTune)
    other.control(ConnectionTuneOk(100, 65_535, 0))
    other.control(ConnectionOpen("/"))
    other.expect(ConnectionOpenOk)
    thief = other.session(b"thief")
    thief.call(DtxSelect())
    assert thief.call(DtxRecover()) == RecoverResult(())
    assert refused(thief, DtxRollback(X)) == ERROR_NOT_FOUND
