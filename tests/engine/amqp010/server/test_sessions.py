"""Sessions: attach and detach, ids and completion of commands, and what outlives a connection."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp010.peer import Peer, RemoteError, Session
from tests.engine.amqp091.peer import Cut, NodeBench
from waybill.wire.amqp010.class_connection import (
    ConnectionHeartbeat,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from waybill.wire.amqp010.class_dtx import XaResult
from waybill.wire.amqp010.class_execution import ExecutionSync
from waybill.wire.amqp010.class_file import FileDeliver, FileQos, FileQosOk
from waybill.wire.amqp010.class_message import MessageFlow
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueQuery, QueueQueryResult
from waybill.wire.amqp010.class_session import (
    SessionAttach,
    SessionCommandPoint,
    SessionCompleted,
    SessionFlush,
    SessionGap,
    SessionRequestTimeout,
)
from waybill.wire.amqp010.class_stream import StreamQos, StreamReturn
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.constants import (
    DETACH_NOT_ATTACHED,
    DETACH_SESSION_BUSY,
    DETACH_TRANSPORT_BUSY,
    DETACH_UNKNOWN_IDS,
    ERROR_ILLEGAL_ARGUMENT,
    ERROR_NOT_FOUND,
    ERROR_NOT_IMPLEMENTED,
)
from waybill.wire.amqp010.struct import Command

LAST = 2**32 - 1


def count(session: Session, queue: str = "q") -> int:
    result = session.call(QueueQuery(queue))
    assert isinstance(result, QueueQueryResult)
    return result.message_count


@requirement("X010-014", "X010-016", "X010-018", "X010-032")
def test_ids_count_from_zero_and_completions_name_them(session: Session) -> None:
    assert session.expected_id == 0
    numbers = [session.send(QueueDeclare(f"q{number}")) for number in range(5)]
    session.sync()
    assert numbers == [0, 1, 2, 3, 4]
    assert session.completed == {0, 1, 2, 3, 4, 5}
    assert not session.results


@requirement("X010-015")
def test_ids_wrap(peer: Peer) -> None:
    session = peer.session(first_id=LAST - 3)
    session.call(QueueDeclare("q"))
    for number in range(8):
        session.publish(b"%d" % number, key="q", accept_mode=0)
    session.sync()
    assert {LAST - 3, LAST, 0, 5} <= session.completed
    session.subscribe("q")
    assert len(session.take_all()) == 8


@requirement("X010-017", "M010-004")
def test_a_result_names_its_command(session: Session) -> None:
    first = session.send(QueueDeclare("q"))
    asked = [session.send(QueueQuery("q")) for _ in range(100)]
    session.sync()
    assert first not in session.results
    assert sorted(session.results) == asked


@requirement("X010-011", "X010-019", "M010-020")
def test_an_exception_comes_before_any_completion_of_its_command(session: Session, peer: Peer) -> None:
    other = peer.session(b"other", 2)
    session.send(QueueDeclare("q"))
    failed = session.send(QueueDeclare("nowhere", passive=True))
    after = session.send(QueueDeclare("never"))
    peer.pump()
    exception = session.exceptions[0]
    assert (exception.error_code, exception.command_id) == (ERROR_NOT_FOUND, failed)
    assert (exception.class_code, exception.command_code) == (8, 1)
    assert after not in session.completed
    assert not session.is_attached
    # The other session goes on, and the channel can carry another one.
    other.sync()
    peer.session(b"new").sync()


@requirement("X010-020", "X010-025", "X010-012")
def test_a_synced_transfer_is_completed_once_it_is_durable(bench: NodeBench, session: Session, peer: Peer) -> None:
    session.call(QueueDeclare("q", durable=True))
    bench.is_stuck = True
    number = session.publish(b"", key="q", delivery_mode=2, sync=True)
    peer.pump()
    assert number not in session.completed
    bench.is_stuck = False
    bench.settle()
    peer.pump()
    assert number in session.completed


@requirement("X010-021", "X010-027")
def test_flush_asks_how_far_it_is_and_waits_for_nothing(bench: NodeBench, session: Session, peer: Peer) -> None:
    session.call(QueueDeclare("q", durable=True))
    session.completed.clear()
    bench.is_stuck = True
    session.publish(b"", key="q", delivery_mode=2)
    session.control(SessionFlush(completed=True, confirmed=True, expected=True))
    peer.pump()
    assert session.completed == {0}
    assert session.expected == ((2, 2),)
    bench.is_stuck = False


@requirement("X010-035")
def test_what_is_known_to_be_completed_is_not_told_again(session: Session, peer: Peer) -> None:
    from waybill.wire.amqp010.class_session import SessionKnownCompleted

    session.call(QueueDeclare("q"))
    session.sync()
    session.control(SessionKnownCompleted(((0, 1),)))
    session.completed.clear()
    session.call(QueueQuery("q"))
    assert session.completed == {2}
    del peer


@requirement("X010-035")
def test_timely_reply_is_answered(session: Session, peer: Peer) -> None:
    session.call(QueueDeclare("q"))
    session.publish(b"", key="q")
    session.subscribe("q")
    one = session.take()
    session.complete(one.id, timely_reply=True)
    peer.pump()
    assert one.id not in session.executed


@requirement("X010-036")
def test_a_gap_counts_as_completed(session: Session, peer: Peer) -> None:
    session.call(QueueDeclare("q"))
    session.sent |= {1, 2, 3}
    session.control(SessionGap(((1, 3),)))
    session.next_id = 4
    session.call(QueueQuery("q"))
    assert {1, 2, 3, 4} <= session.completed
    del peer


def test_commands_cannot_be_left_out_without_a_gap(session: Session, peer: Peer) -> None:
    session.call(QueueDeclare("q"))
    session.control(SessionCommandPoint(9, 0))
    peer.pump()
    assert session.exceptions[0].error_code == ERROR_ILLEGAL_ARGUMENT


def test_who_completes_what_was_never_sent_loses_the_session(session: Session, peer: Peer) -> None:
    session.control(SessionCompleted(((5, 7),)))
    peer.pump()
    assert session.detach_code == DETACH_UNKNOWN_IDS


@requirement("X010-033")
def test_a_session_is_attached_once(bench: NodeBench, peer: Peer) -> None:
    first = peer.session(b"same")
    first.call(QueueDeclare("q", exclusive=True))
    other = Peer(bench)
    other.open()
    second = Session(other, b"same")
    second.next_id, second.sent = first.next_id, set(first.sent)
    other.resume(second)
    assert second.detach_code == DETACH_SESSION_BUSY
    other.resume(second, force=True)
    assert second.is_attached
    peer.pump()
    assert first.detach_code == DETACH_SESSION_BUSY


def test_a_channel_carries_one_session(session: Session, peer: Peer) -> None:
    session.control(SessionAttach(b"another"))
    second = Session(peer, b"another")
    peer.client.sessions[1] = second
    peer.pump()
    assert second.detach_code == DETACH_TRANSPORT_BUSY


def test_a_command_without_a_session_is_answered(peer: Peer) -> None:
    session = Session(peer, b"")
    peer.client.sessions[3] = session
    peer.write(encode_command(3, ExecutionSync()))
    assert session.detach_code == DETACH_NOT_ATTACHED


@requirement("X010-034")
def test_without_a_timeout_a_session_ends_with_its_connection(bench: NodeBench, session: Session, peer: Peer) -> None:
    session.call(QueueDeclare("q", exclusive=True, auto_delete=True))
    peer.cut()
    bench.settle()
    other = Peer(bench)
    other.open()
    again = other.session(b"session")
    assert again.call(QueueQuery("q")) == QueueQueryResult()


@requirement("X010-004", "X010-034", "M010-021")
def test_a_session_goes_on_where_it_was(bench: NodeBench, session: Session, peer: Peer) -> None:
    """Commands that were lost come again, those that were executed are not executed twice, in both directions."""
    session.call(QueueDeclare("q", exclusive=True))
    session.control(SessionRequestTimeout(30))
    peer.pump()
    assert session.granted_timeout == 30
    session.publish(b"one", key="q")
    session.sync()
    session.subscribe("q")
    assert session.take().body == b"one"
    peer.cut()
    bench.settle()
    session.publish(b"two", key="q")
    other = Peer(bench)
    other.open()
    other.resume(session, 5)
    other.pump()
    assert session.is_attached
    session.sync()
    assert [one.body for one in session.take_all()] == [b"two"]
    assert count(session) == 0


@requirement("X010-004")
def test_what_was_sent_and_not_received_is_sent_again(bench: NodeBench, session: Session, peer: Peer) -> None:
    session.control(SessionRequestTimeout(30))
    session.call(QueueDeclare("q"))
    session.subscribe("q")
    publisher = peer.session(b"publisher", 2)
    peer.pump()
    # The connection is lost while messages are on their way.
    publisher.publish(b"lost on the way", key="q")
    octets = peer.client.take_output()
    peer.wire.write(octets)
    peer.cut()
    bench.settle()
    other = Peer(bench)
    other.open()
    other.resume(session, 1)
    other.pump()
    assert [one.body for one in session.take_all()] == [b"lost on the way"]


@requirement("X010-004")
def test_a_great_deal_is_sent_again_as_the_peer_takes_it() -> None:
    """More than a connection may have to say at once; what is new comes after it."""
    bench = NodeBench(Cut.WHOLE)
    peer = Peer(bench)
    peer.open()
    session = peer.session()
    session.control(SessionRequestTimeout(30))
    session.call(QueueDeclare("q"))
    session.subscribe("q", accept_mode=1)
    bodies = [b"%d " % number * 12_000 for number in range(30)]
    publisher = peer.session(b"publisher", 2)
    for body in bodies:
        publisher.publish(body, key="q")
    peer.wire.write(peer.client.take_output())
    peer.cut()
    bench.settle()
    other = Peer(bench)
    other.open()
    other.resume(session, 1)
    other.session(b"publisher", 2).publish(b"new", key="q")
    other.pump()
    assert [one.body for one in session.take_all()] == [*bodies, b"new"]
    bench.close()


def test_deliveries_go_on_once_the_peer_has_confirmed_what_it_got() -> None:
    """What a session may have to send again is limited: deliveries wait, and the peer is asked what it has."""
    bench = NodeBench(Cut.WHOLE)
    peer = Peer(bench)
    peer.open()
    session = peer.session()
    session.control(SessionRequestTimeout(30))
    session.call(QueueDeclare("q"))
    for _ in range(100):
        session.publish(bytes(100_000), key="q")
    session.sync()
    session.subscribe("q", accept_mode=1)
    count = 0
    while came := session.take_all():
        assert len(came) < 60
        count += len(came)
        session.complete(*[one.id for one in came])
    assert count == 100
    bench.close()


@requirement("X010-034")
def test_a_session_that_nobody_attaches_ends_in_time(bench: NodeBench, session: Session, peer: Peer) -> None:
    session.control(SessionRequestTimeout(30))
    session.call(QueueDeclare("q"))
    session.publish(b"held", key="q")
    session.subscribe("q")
    session.take()
    peer.cut()
    bench.settle()
    other = Peer(bench)
    other.open()
    witness = other.session(b"witness")
    assert count(witness) == 0
    bench.advance(31)
    assert count(witness) == 1


def test_a_detached_session_of_another_user_is_out_of_reach(bench: NodeBench, session: Session, peer: Peer) -> None:
    administration = bench.node.administration
    administration.put_user("other", "secret")
    administration.set_permission("other", "/", ".*", ".*", ".*")
    session.control(SessionRequestTimeout(30))
    session.call(QueueDeclare("q"))
    peer.cut()
    bench.settle()
    thief = Peer(bench)
    thief.start()
    thief.control(ConnectionStartOk({}, "PLAIN", b"\0other\0secret", "en_US"))
    thief.expect(ConnectionTune)
    thief.control(ConnectionTuneOk(100, 65_535, 0))
    thief.control(ConnectionOpen("/"))
    thief.expect(ConnectionOpenOk)
    stolen = Session(thief, b"session")
    thief.resume(stolen, force=True)
    stolen.control(SessionFlush(expected=True))
    thief.pump()
    assert stolen.expected == ()


@requirement("X010-006", "X010-013", "M010-103")
@pytest.mark.parametrize("command", [FileQos(), StreamQos()], ids=["file", "stream"])
def test_absent_classes_are_refused(session: Session, command: FileQos | StreamQos) -> None:
    with pytest.raises(RemoteError) as refusal:
        session.call(command)
    assert refusal.value.exception.error_code == ERROR_NOT_IMPLEMENTED


@requirement("X010-009")
@pytest.mark.parametrize("command", [FileQosOk(), FileDeliver(), StreamReturn()])
def test_a_command_for_clients_is_refused(session: Session, command: Command) -> None:
    """All that only servers may send is of absent classes."""
    session.send(command)
    session.peer.pump()
    assert session.exceptions[0].error_code == ERROR_NOT_IMPLEMENTED


def test_an_unknown_command_is_refused(session: Session, peer: Peer) -> None:
    octets = bytearray(encode_command(1, ExecutionSync()))
    octets[12] = 0x77
    session.sent.add(0)
    peer.write(bytes(octets))
    assert session.exceptions[0].error_code == ERROR_NOT_IMPLEMENTED


def test_ranges_of_any_size_cost_nothing(session: Session) -> None:
    from waybill.wire.amqp010.class_message import MessageAccept, MessageRelease

    session.call(MessageAccept(tuple((0, 2**31 - 2) for _ in range(2000))))
    session.call(MessageRelease(((0, 2**31 - 2),)))
    assert XaResult(0).status == 0
    assert MessageFlow("", 0, 0).unit == 0
    assert encode_control(0, ConnectionHeartbeat())
