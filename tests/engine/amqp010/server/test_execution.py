"""Layers, and what the execution layer conveys: ids, completion (the draft's execution mark), sync, flush, results.

The draft's words and those of the final text are in docs/explanation/amqp-0-10.md.
"""

from itertools import pairwise

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp010.peer import Peer, Session
from tests.engine.amqp091.peer import Cut, NodeBench
from waybill.wire.amqp010.class_connection import ConnectionHeartbeat, ConnectionStart
from waybill.wire.amqp010.class_exchange import ExchangeBound, ExchangeBoundResult, ExchangeQuery, ExchangeQueryResult
from waybill.wire.amqp010.class_execution import ExecutionException, ExecutionSync
from waybill.wire.amqp010.class_message import DeliveryProperties, MessageTransfer
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueQuery, QueueQueryResult
from waybill.wire.amqp010.class_session import SessionCommandPoint, SessionFlush, SessionRequestTimeout
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.constants import CLOSE_FRAMING_ERROR
from waybill.wire.amqp010.frames import COMMAND, COMMAND_TRACK, CONTROL, CONTROL_TRACK
from waybill.wire.amqp010.message_header import encode_header
from waybill.wire.amqp010.struct import Command

QUESTIONS: list[tuple[Command, type]] = [
    (QueueQuery("q"), QueueQueryResult),
    (ExchangeQuery("amq.topic"), ExchangeQueryResult),
    (ExchangeBound("amq.topic", "q"), ExchangeBoundResult),
]


def frames_of(octets: bytes) -> list[bytes]:
    found = []
    while octets:
        size = int.from_bytes(octets[2:4], "big")
        found.append(octets[:size])
        octets = octets[size:]
    return found


def raw(peer: Peer, octets: bytes) -> list[bytes]:
    """The frames that answer octets."""
    peer.wire.write(octets)
    came = b""
    while octets := peer.wire.read(0.0):
        came += octets
    return frames_of(came)


@requirement("X010-001")
def test_controls_and_commands_have_tracks_of_their_own(session: Session) -> None:
    session.call(QueueDeclare("q"))
    asked = encode_command(1, QueueQuery("q"), sync=True) + encode_control(1, SessionFlush(expected=True))
    answers = raw(session.peer, asked)
    assert {(frame[1], frame[5] & 0x0F) for frame in answers} == {(CONTROL, CONTROL_TRACK), (COMMAND, COMMAND_TRACK)}


@requirement("X010-001")
@pytest.mark.parametrize("octets", [encode_command(1, ExecutionSync()), encode_control(1, SessionFlush())])
def test_what_comes_on_the_track_of_another_layer_is_refused(session: Session, octets: bytes) -> None:
    frame = bytearray(octets)
    frame[5] ^= 1
    session.peer.write(bytes(frame))
    session.peer.expect_closed(CLOSE_FRAMING_ERROR)


@requirement("X010-001", "X010-002")
def test_controls_do_not_reach_the_layers_above(session: Session) -> None:
    """They have no ids, and are not executed: what is counted are commands."""
    for _ in range(5):
        session.control(SessionFlush(expected=True, confirmed=True))
        session.control(SessionRequestTimeout(0))
        session.peer.control(ConnectionHeartbeat())
    session.call(QueueDeclare("q"))
    session.control(SessionFlush(expected=True))
    session.peer.pump()
    assert session.completed == {0}
    assert session.expected == ((1, 1),)


@requirement("X010-002", "X010-003")
def test_controls_come_between_the_frames_of_a_command(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.open(max_frame_size=4096)
    session = peer.session()
    session.call(QueueDeclare("q"))
    header = encode_header(DeliveryProperties(routing_key="q"))
    frames = frames_of(encode_command(1, MessageTransfer(), 4096, header=header, body=b"x" * 20_000))
    assert len(frames) > 6
    session.sent.add(session.next_id)
    session.next_id += 1
    for frame in frames:
        peer.write(frame)
        peer.control(ConnectionHeartbeat())
        session.control(SessionFlush(completed=True))
    session.sync()
    session.subscribe("q")
    assert session.take().body == b"x" * 20_000


@requirement("X010-009")
def test_what_servers_say_is_refused_of_a_client(session: Session) -> None:
    session.peer.control(ConnectionStart({}, (), ()))
    session.peer.expect_closed(CLOSE_FRAMING_ERROR)


@requirement("X010-007", "X010-017")
def test_each_question_has_its_own_answer(session: Session) -> None:
    """All are asked before the first is answered; the strict client sees that none is answered twice."""
    session.call(QueueDeclare("q"))
    asked = {session.send(command): kind for _ in range(20) for command, kind in QUESTIONS}
    session.sync()
    assert {number: type(result) for number, result in session.results.items()} == asked


@requirement("X010-008")
def test_messages_come_between_a_question_and_its_answer(session: Session) -> None:
    session.call(QueueDeclare("q"))
    session.subscribe("q")
    first = session.expected_id
    session.publish(b"before", key="q")
    asked = session.send(QueueQuery("q"))
    session.publish(b"after", key="q")
    again = session.send(QueueQuery("q"), sync=True)
    session.peer.pump()
    # Two results, and a message between them: what is executed before a question is seen by its answer.
    assert [one.body for one in session.take_all()] == [b"before", b"after"]
    assert set(session.results) == {asked, again}
    assert first is not None
    assert session.expected_id == first + 4


@requirement("X010-016", "X010-024", "X010-032")
def test_completion_grows_with_each_command_that_is_executed(bench: NodeBench, session: Session) -> None:
    """And stops before the first one that is not, whatever came after it."""
    marks = []
    session.call(QueueDeclare("q", durable=True))
    for _ in range(5):
        session.send(ExecutionSync())
        session.peer.pump()
        marks.append(max(session.completed))
        assert session.completed == set(range(marks[-1] + 1))
    assert all(after == before + 1 for before, after in pairwise(marks))
    bench.is_stuck = True
    stuck = session.publish(b"", key="q", delivery_mode=2)
    session.send(ExecutionSync())
    session.control(SessionFlush(completed=True))
    session.peer.pump()
    assert max(session.completed) == stuck - 1
    bench.is_stuck = False
    bench.settle()
    session.peer.pump()
    assert session.completed == session.sent


@requirement("X010-023")
def test_a_command_says_whether_it_wants_its_completion_and_its_id_is_its_place(session: Session) -> None:
    assert encode_command(1, ExecutionSync())[12:16] == b"\x03\x01\x01\x00"
    assert encode_command(1, ExecutionSync(), sync=True)[12:16] == b"\x03\x01\x01\x01"
    session.control(SessionCommandPoint(70, 0))
    session.next_id = 70
    asked = [session.send(QueueQuery("nowhere"), sync=sync) for sync in (False, True, False)]
    session.peer.pump()
    assert sorted(session.results) == asked == [70, 71, 72]
    assert {70, 71} <= session.completed


@requirement("X010-023")
@pytest.mark.parametrize("head", [b"\x00\x00", b"\x01\x02", b"\x02\x00", b"\x01\xff"])
def test_a_command_without_a_session_header_is_refused(session: Session, head: bytes) -> None:
    octets = encode_command(1, ExecutionSync())
    session.sent.add(0)
    session.peer.write(octets[:14] + head + octets[16:])
    assert isinstance(session.exceptions[0], ExecutionException)
    assert not session.is_attached


@requirement("X010-022")
def test_commands_are_executed_in_the_order_of_their_octets(session: Session) -> None:
    """Whatever pieces the transport makes of them: TCP keeps their order, and nothing else is listened on."""
    session.call(QueueDeclare("q"))
    octets = b""
    for number in range(200):
        header = encode_header(DeliveryProperties(routing_key="q"))
        octets += encode_command(1, MessageTransfer("", 1, 0), header=header, body=b"%d" % number)
    session.sent |= set(range(session.next_id, session.next_id + 200))
    session.next_id += 200
    session.peer.write(octets)
    session.sync()
    session.subscribe("q")
    assert [one.body for one in session.take_all()] == [b"%d" % number for number in range(200)]


@requirement("X010-035")
def test_completions_are_forgotten_once_the_peer_knows_of_them() -> None:
    """The broker asks for that, now and then, by timely-reply: what it has to remember is bounded."""
    bench = NodeBench(Cut.WHOLE)
    peer = Peer(bench)
    peer.open()
    session = peer.session()
    for _ in range(3):
        session.sent |= set(range(session.next_id, session.next_id + 5000))
        session.next_id += 5000
        session.peer.write(encode_command(1, ExecutionSync()) * 5000)
    session.completed.clear()
    session.control(SessionFlush(completed=True))
    peer.pump()
    assert len(session.completed) <= 5000
    bench.close()
