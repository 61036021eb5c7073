"""AMQP 0-10: bodies without an end, sets of ids that cost much, sessions and branches that are left behind."""

from collections.abc import Iterator
from time import process_time

import pytest

from tests.engine.amqp010.peer import Peer, Session
from tests.engine.amqp091.peer import Cut, NodeBench
from tests.security.amqp010.attached import attached, held
from waybill.engine.amqp010.sessions import KEPT_PER_USER_MAX
from waybill.model.branches import PER_USER_MAX
from waybill.wire.amqp010.class_connection import ConnectionHeartbeat
from waybill.wire.amqp010.class_dtx import DtxEnd, DtxSelect, DtxStart, Xid
from waybill.wire.amqp010.class_message import (
    DeliveryProperties,
    MessageAccept,
    MessageAcquire,
    MessageFlush,
    MessageRelease,
    MessageTransfer,
)
from waybill.wire.amqp010.class_queue import QueueDeclare
from waybill.wire.amqp010.class_session import (
    SessionAttach,
    SessionCompleted,
    SessionConfirmed,
    SessionDetach,
    SessionKnownCompleted,
    SessionRequestTimeout,
)
from waybill.wire.amqp010.class_tx import TxSelect
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.constants import CLOSE_CONNECTION_FORCED, CLOSE_FRAMING_ERROR, ERROR_RESOURCE_LIMIT_EXCEEDED
from waybill.wire.amqp010.message_header import encode_header
from waybill.wire.amqp010.struct import Command

LIMIT = 1 << 20
RANGES = 8000
MESSAGES = 1000
COMMANDS_SENT = 17_000
CPU_MAX_S = 10.0
"""Generous: what is tried here would take minutes if each range looked at each delivery."""


@pytest.fixture
def bench() -> Iterator[NodeBench]:
    bench = NodeBench(Cut.WHOLE)
    bench.node.limits.held_per_connection_max = LIMIT
    yield bench
    bench.close()


def test_bodies_in_frames_are_counted_and_given_back(bench: NodeBench, session: Session) -> None:
    session.call(QueueDeclare("q"))
    header = encode_header(DeliveryProperties(routing_key="q"))
    octets = encode_command(1, MessageTransfer(), 4096, header=header, body=bytes(100_000))
    session.peer.write(octets[:-5000])
    assert 90_000 < held(bench) < 110_000
    session.sent.add(session.next_id)
    session.next_id += 1
    session.peer.write(octets[-5000:])
    assert held(bench) == 0
    session.sync()


def test_bodies_without_an_end_close_their_connection(bench: NodeBench, session: Session) -> None:
    header = encode_header(DeliveryProperties(routing_key="q"))
    octets = encode_command(1, MessageTransfer(), 4096, header=header, body=bytes(2 * LIMIT))
    session.peer.write(octets[:-5000])
    session.peer.expect_closed(CLOSE_CONNECTION_FORCED)
    assert held(bench) == 0


def test_a_transaction_without_a_commit_ends_its_session(bench: NodeBench, session: Session) -> None:
    session.call(QueueDeclare("q"))
    session.call(TxSelect())
    for _ in range(30):
        session.publish(bytes(50_000), key="q")
    session.peer.pump()
    assert session.exceptions[0].error_code == ERROR_RESOURCE_LIMIT_EXCEEDED
    assert held(bench) == 0


def test_a_branch_that_holds_too_much_is_refused(bench: NodeBench, session: Session) -> None:
    bench.node.branches._held_max = LIMIT
    session.call(QueueDeclare("q"))
    session.call(DtxSelect())
    session.call(DtxStart(Xid(0, b"g", b"b")))
    for _ in range(30):
        session.publish(bytes(50_000), key="q")
    session.peer.pump()
    assert session.exceptions[0].error_code == ERROR_RESOURCE_LIMIT_EXCEEDED
    assert held(bench) == 0


def test_one_user_has_a_limited_number_of_branches(session: Session) -> None:
    session.call(DtxSelect())
    for number in range(PER_USER_MAX + 1):
        xid = Xid(number, b"g", b"b")
        session.send(DtxStart(xid))
        session.send(DtxEnd(xid))
    session.peer.pump()
    assert session.exceptions[0].error_code == ERROR_RESOURCE_LIMIT_EXCEEDED


def test_one_user_leaves_a_limited_number_of_sessions_behind(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.open()
    before = bench.node.runtime.footprint_bytes
    octets = b""
    for number in range(KEPT_PER_USER_MAX + 10):
        name = b"%d" % number
        for control in (SessionAttach(name), SessionRequestTimeout(60), SessionDetach(name)):
            octets += encode_control(9, control)
    peer.client.sessions[9] = Session(peer, b"")
    peer.wire.write(octets)
    assert len(bench.node.sessions._by_key) <= KEPT_PER_USER_MAX + 1
    bench.advance(61)
    assert len(bench.node.sessions._by_key) == 1
    assert bench.node.runtime.footprint_bytes == before


def test_what_a_session_keeps_to_send_again_is_limited(bench: NodeBench, session: Session) -> None:
    session.control(SessionRequestTimeout(60))
    session.call(QueueDeclare("q"))
    publisher = attached(bench, b"publisher")
    for _ in range(100):
        publisher.publish(bytes(50_000), key="q")
    publisher.sync()
    session.subscribe("q", accept_mode=1)
    session.take_all()
    assert 0 < held(bench) < 6 * LIMIT
    session.peer.cut()
    bench.settle()
    bench.advance(61)
    assert held(bench) == 0


def scattered(first: int, count: int) -> tuple[tuple[int, int], ...]:
    return tuple([(first + 2 * number, first + 2 * number) for number in range(count)])


EVERYTHING = tuple([(0, 2**31 - 1)] * RANGES)
BEFORE = tuple([(2**32 - 2**30, 2**32 - 1)] * RANGES)


@pytest.mark.parametrize("ranges", [EVERYTHING, BEFORE, scattered(0, RANGES)], ids=["all", "before", "scattered"])
@pytest.mark.parametrize(
    "command",
    [MessageAccept, MessageAcquire, MessageRelease],
    ids=["accept", "acquire", "release"],
)
def test_sets_of_ids_cost_what_they_name(
    session: Session, command: type[MessageAccept], ranges: tuple[tuple[int, int], ...]
) -> None:
    session.call(QueueDeclare("q"))
    for _ in range(MESSAGES):
        session.publish(b"", key="q")
    session.sync()
    session.subscribe("q", messages=MESSAGES, acquire_mode=1 if command is MessageAcquire else 0)  # type: ignore[comparison-overlap]
    assert len(session.take_all()) == MESSAGES
    began = process_time()
    for _ in range(3):
        session.call(command(ranges))
    assert process_time() - began < CPU_MAX_S


@pytest.mark.parametrize("control", [SessionKnownCompleted, SessionConfirmed, SessionCompleted])
def test_what_a_peer_knows_of_costs_what_it_names(session: Session, control: type[SessionKnownCompleted]) -> None:
    octets = encode_command(1, MessageAccept(()))
    session.sent |= set(range(session.next_id, session.next_id + COMMANDS_SENT))
    session.next_id += COMMANDS_SENT
    session.peer.write(octets * COMMANDS_SENT)
    began = process_time()
    for _ in range(3):
        ranges = scattered(0, RANGES) if control is SessionKnownCompleted else ((0, 0),) * RANGES
        session.control(control(ranges))
    session.peer.pump()
    assert process_time() - began < CPU_MAX_S


def test_flushes_are_limited_while_the_disk_does_not_answer(bench: NodeBench, session: Session) -> None:
    session.call(QueueDeclare("q", durable=True))
    session.publish(b"", key="q", delivery_mode=2)
    session.subscribe("q", messages=1)
    bench.is_stuck = True
    session.publish(b"", key="q", delivery_mode=2)
    for _ in range(1100):
        session.send(MessageFlush("d"))
    session.peer.pump()
    bench.is_stuck = False
    bench.settle()


@pytest.mark.parametrize(
    "octets",
    [
        b"\x4f\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x01\x0a\x00\x00",
        b"\x0f\x09\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x01\x0a\x00\x00",
        b"\x0f\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x01\x0a\x00\x00",
        b"\x0f\x03\x00\x0c\x00\x01\x00\x01\x00\x00\x00\x00" * 2,
        b"\x0b\x01\x00\x10\x00\x01\x00\x01\x00\x00\x00\x00\x04\x01\x01\x00" * 2,
    ],
    ids=["version", "type", "size", "body first", "command in command"],
)
def test_frames_that_cannot_be_close_the_connection(session: Session, octets: bytes) -> None:
    session.peer.write(octets)
    session.peer.expect_closed(CLOSE_FRAMING_ERROR)


def test_heartbeats_are_only_counted(session: Session) -> None:
    session.peer.write(encode_control(0, ConnectionHeartbeat()) * 5000)
    session.sync()


COMMANDS: tuple[type[Command], ...] = (MessageAccept, QueueDeclare)


@pytest.mark.parametrize("command", COMMANDS)
def test_octets_that_mean_nothing_end_the_session(session: Session, command: type[Command]) -> None:
    octets = bytearray(encode_command(1, command()))
    octets[17] = 0xFF
    session.sent.add(0)
    session.peer.write(bytes(octets))
    assert session.exceptions
