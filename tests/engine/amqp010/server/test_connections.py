"""Opening and closing a connection of 0-10: header, login, tuning, virtual hosts, heartbeats."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp010.peer import PLAIN_GUEST, Peer
from tests.engine.amqp091.peer import NodeBench
from waybill.wire.amqp010.class_connection import (
    ConnectionOpen,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from waybill.wire.amqp010.class_execution import ExecutionSync
from waybill.wire.amqp010.class_queue import QueueDeclare, QueueQuery, QueueQueryResult
from waybill.wire.amqp010.class_session import SessionAttach
from waybill.wire.amqp010.codec import encode_command, encode_control
from waybill.wire.amqp010.constants import CLOSE_CONNECTION_FORCED, CLOSE_FRAMING_ERROR, CLOSE_INVALID_PATH
from waybill.wire.amqp010.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER
from waybill.wire.amqp010.struct import Control

OPENING: list[Control] = [
    ConnectionStartOk({}, "PLAIN", PLAIN_GUEST, "en_US"),
    ConnectionTuneOk(100, 65_535, 0),
    ConnectionOpen("/"),
]


def logged_in(bench: NodeBench) -> Peer:
    peer = Peer(bench)
    peer.start()
    peer.control(OPENING[0])
    peer.expect(ConnectionTune)
    return peer


@requirement("M010-009", "M010-010")
def test_the_header_of_010_is_answered_with_itself(bench: NodeBench) -> None:
    """Its octets are numbers as they are: 0 and 10, not 100 and 10 times something."""
    peer = Peer(bench)
    start = peer.start()
    assert peer.client.header == PROTOCOL_HEADER == b"AMQP\x01\x01\x00\x0a"
    assert "PLAIN" in start.mechanisms
    assert start.locales == ("en_US",)


@pytest.mark.parametrize("response", [b"\0guest\0wrong", b"\0nobody\0guest", b"", b"\0guest", b"\xff\0\xff\0\xff"])
def test_a_wrong_login_is_refused(bench: NodeBench, response: bytes) -> None:
    peer = Peer(bench)
    peer.start()
    peer.control(ConnectionStartOk({}, "PLAIN", response, "en_US"))
    peer.expect_closed(CLOSE_CONNECTION_FORCED)


def test_an_unknown_mechanism_is_refused(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.start()
    peer.control(ConnectionStartOk({}, "NONSENSE", b"", "en_US"))
    peer.expect_closed(CLOSE_CONNECTION_FORCED)


def test_a_mechanism_of_several_steps(bench: NodeBench) -> None:
    """Each challenge is a connection.secure; a wrong answer ends it."""
    peer = Peer(bench)
    start = peer.start()
    assert "SCRAM-SHA-256" in start.mechanisms
    peer.control(ConnectionStartOk({}, "SCRAM-SHA-256", b"n,,n=guest,r=nonce", "en_US"))
    assert peer.expect(ConnectionSecure).challenge.startswith(b"r=nonce")
    peer.control(ConnectionSecureOk(b"c=biws,r=nonce,p=AAAA"))
    peer.expect_closed(CLOSE_CONNECTION_FORCED)


@pytest.mark.parametrize(
    "tune_ok",
    [
        ConnectionTuneOk(100, 4095, 0),
        ConnectionTuneOk(100, 1, 0),
        ConnectionTuneOk(100, 65_535, 121),
        ConnectionTuneOk(100, 65_535, 65_535),
    ],
    ids=str,
)
def test_what_goes_beyond_the_offer_is_refused(bench: NodeBench, tune_ok: ConnectionTuneOk) -> None:
    peer = logged_in(bench)
    peer.client.write(encode_control(0, tune_ok))
    peer.expect_closed(CLOSE_FRAMING_ERROR)


@pytest.mark.parametrize(
    ("name", "code"),
    [("nowhere", CLOSE_INVALID_PATH), ("/other", CLOSE_CONNECTION_FORCED)],
)
@requirement("M010-072", "M010-073")
def test_a_virtual_host_that_is_not_there_or_not_for_the_user(bench: NodeBench, name: str, code: int) -> None:
    bench.node.administration.add_virtual_host("/other")
    peer = logged_in(bench)
    peer.control(OPENING[1])
    peer.control(ConnectionOpen(name))
    peer.expect_closed(code)


@requirement("M010-071", "M010-074")
def test_a_second_open_is_an_error(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.open()
    peer.control(ConnectionOpen("/"))
    peer.expect_closed(CLOSE_FRAMING_ERROR)


@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_the_opening_has_its_order(bench: NodeBench, skipped: int) -> None:
    peer = Peer(bench)
    peer.start()
    for control in OPENING[:skipped]:
        peer.control(control)
        peer.client.controls.clear()
    peer.control(OPENING[(skipped + 1) % 3])
    peer.expect_closed(CLOSE_FRAMING_ERROR)


@pytest.mark.parametrize(
    "octets",
    [encode_command(1, ExecutionSync()), encode_control(1, SessionAttach(b"s")), encode_control(1, OPENING[2])],
    ids=["command", "session", "channel"],
)
def test_nothing_else_comes_before_the_connection_is_open(bench: NodeBench, octets: bytes) -> None:
    peer = logged_in(bench)
    peer.write(octets)
    peer.expect_closed(CLOSE_FRAMING_ERROR)


def test_channels_beyond_what_was_agreed_are_refused(bench: NodeBench) -> None:
    peer = logged_in(bench)
    for control in OPENING[1:]:
        peer.control(control)
        peer.client.controls.clear()
    peer.write(encode_control(101, SessionAttach(b"s")))
    peer.expect_closed(CLOSE_FRAMING_ERROR)


def test_a_silent_peer_is_given_up_and_hears_of_us(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.open(heartbeat=10)
    bench.advance(6)
    assert HEARTBEAT_FRAME in peer.wire.read(0.0)
    bench.advance(60)
    assert peer.wire.is_closed


def test_close_is_answered(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.open()
    peer.close()
    peer.write(encode_command(1, ExecutionSync()))
    assert not peer.client.sessions
    # Who does not hang up then is hung up on.
    bench.advance(60)
    assert peer.wire.is_closed


@requirement("M010-003")
def test_a_connection_has_many_sessions_at_once(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.open()
    sessions = [peer.session(b"%d" % number, number) for number in range(100)]
    for session in sessions:
        session.sync()


@requirement("M010-075", "M010-017")
def test_virtual_hosts_are_name_spaces(bench: NodeBench) -> None:
    administration = bench.node.administration
    administration.add_virtual_host("/other")
    administration.set_permission("guest", "/other", ".*", ".*", ".*")
    peers = [Peer(bench), Peer(bench)]
    peers[0].open("/")
    peers[1].open("/other")
    first, second = (peer.session(b"same") for peer in peers)
    first.call(QueueDeclare("q"))
    assert second.call(QueueQuery("q")) == QueueQueryResult()
