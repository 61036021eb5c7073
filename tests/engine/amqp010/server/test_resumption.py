"""A session that is attached again, while its peer has not said yet what it has of it."""

from tests.engine.amqp010.peer import Peer, Session
from tests.engine.amqp091.peer import NodeBench
from waybill.wire.amqp010.class_message import MessageAccept
from waybill.wire.amqp010.class_queue import QueueDeclare, QueuePurge
from waybill.wire.amqp010.class_session import SessionCompleted, SessionFlush, SessionRequestTimeout
from waybill.wire.amqp010.constants import ERROR_NOT_FOUND
from waybill.wire.amqp010.types import Ranges


class Curious(Session):
    """Asks what is completed before it has told what it expects. `early`: what was, before its fate was known."""

    def __init__(self, peer: Peer, name: bytes) -> None:
        super().__init__(peer, name)
        self.early: set[int] = set()

    def _take_expected(self, control: object) -> None:
        super()._take_expected(control)  # type: ignore[arg-type]
        self.control(SessionFlush(completed=True))

    def _take_completed(self, control: SessionCompleted) -> None:
        before = set(self.completed)
        super()._take_completed(control)
        if not any(isinstance(command, MessageAccept) for _, command in self.commands):
            self.early |= self.completed - before


def detached(bench: NodeBench, peer: Peer, session: Session) -> Peer:
    """Another connection, after the one of a session that outlives it was lost."""
    session.control(SessionRequestTimeout(30))
    session.call(QueueDeclare("q"))
    peer.cut()
    bench.settle()
    other = Peer(bench)
    other.open()
    return other


def test_why_a_command_fails_that_comes_before_the_peer_is_heard(
    bench: NodeBench, session: Session, peer: Peer
) -> None:
    other = detached(bench, peer, session)
    failed = session.send(QueueDeclare("nowhere", passive=True))
    other.resume(session)
    other.pump()
    assert [(one.error_code, one.command_id) for one in session.exceptions] == [(ERROR_NOT_FOUND, failed)]
    assert not session.is_attached


def test_who_was_not_read_during_an_alarm_is_not_taken_for_silent_after_it(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.open(heartbeat=1)
    session = peer.session()
    session.call(QueueDeclare("q"))
    other = Peer(bench)
    other.open()
    witness = other.session(b"witness")
    bench.node._memory_alarm_bytes = 1000
    session.publish(bytes(2000), key="q")
    peer.pump()
    bench.advance(10)
    witness.call(QueuePurge("q"))
    bench.advance(0.9)
    assert not peer.wire.is_closed
    session.sync()


def test_no_transfer_is_completed_before_its_fate_is_told(bench: NodeBench, peer: Peer) -> None:
    session = Curious(peer, b"curious")
    peer.resume(session)
    session.control(SessionRequestTimeout(30))
    other = detached(bench, peer, session)
    number = session.publish(b"", key="q", accept_mode=0)
    other.resume(session)
    other.pump()
    assert number in session.completed
    assert number not in session.early
    found: list[Ranges] = [command.transfers for _, command in session.commands if isinstance(command, MessageAccept)]
    assert found == [((number, number),)]
