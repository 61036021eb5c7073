"""Opening and closing connections and sessions, and errors of both scopes (1.0, 2.4, 2.5, 5.3)."""

import pytest
from scramp import ScramClient

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import NodeBench
from tests.engine.amqp10.peer import Peer, Session, declare, message
from waybill.wire.amqp10.frames import AMQP_HEADER, SASL_HEADER, frame, sasl_frame
from waybill.wire.amqp10.messaging import Source, Target
from waybill.wire.amqp10.performatives import Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Transfer
from waybill.wire.amqp10.security import SaslChallenge, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse

PLAIN_GUEST = b"\0guest\0guest"


def test_a_plain_login(bench: NodeBench) -> None:
    peer = Peer(bench)
    assert peer.log_in("PLAIN", PLAIN_GUEST) == SaslOutcome(0)
    peer.open()
    peer.begin()
    peer.close()


def test_a_login_by_scram(bench: NodeBench) -> None:
    peer = Peer(bench)
    client = ScramClient(["SCRAM-SHA-256"], "guest", "guest")
    challenge = peer.log_in("SCRAM-SHA-256", client.get_client_first().encode())
    assert isinstance(challenge, SaslChallenge)
    client.set_server_first(challenge.challenge.decode())
    peer.write(sasl_frame(SaslResponse(client.get_client_final().encode()).encode()))
    client.set_server_final(peer.expect(SaslChallenge).challenge.decode())
    peer.write(sasl_frame(SaslResponse(b"").encode()))
    assert peer.expect(SaslOutcome) == SaslOutcome(0)
    peer.open()


@pytest.mark.parametrize(
    ("mechanism", "response"), [("PLAIN", b"\0guest\0wrong"), ("PLAIN", b"nonsense"), ("SCRAM-SHA-256", b"nonsense")]
)
def test_a_wrong_login_is_refused(bench: NodeBench, mechanism: str, response: bytes) -> None:
    peer = Peer(bench)
    assert peer.log_in(mechanism, response) == SaslOutcome(1)
    assert peer.wire.is_closed


def test_anonymous_peers_come_in_unless_they_may_not(bench: NodeBench) -> None:
    assert Peer(bench).log_in("ANONYMOUS", b"") == SaslOutcome(0)
    bench.node.anonymous_login = ("", "")
    peer = Peer(bench)
    peer.write(SASL_HEADER)
    peer.take_header(SASL_HEADER)
    assert "ANONYMOUS" not in peer.expect(SaslMechanisms).sasl_server_mechanisms
    peer.write(sasl_frame(SaslInit("ANONYMOUS").encode()))
    assert peer.expect(SaslOutcome) == SaslOutcome(1)
    bare = Peer(bench)
    bare.open()
    bare.expect_closed("amqp:not-allowed")


@requirement("BB-002")
def test_all_in_one_write(bench: NodeBench) -> None:
    declare(bench)
    peer = Peer(bench)
    attach = Attach("name", 0, role=False, source=Source(), target=Target("/queues/q"), initial_delivery_count=0)
    peer.write(
        SASL_HEADER
        + sasl_frame(SaslInit("PLAIN", PLAIN_GUEST).encode())
        + AMQP_HEADER
        + frame(0, Open("me").encode())
        + frame(3, Begin(next_outgoing_id=7, incoming_window=10, outgoing_window=10).encode())
        + frame(3, attach.encode())
        + frame(3, Transfer(0, 0, b"t").encode(), message())
        + frame(3, Detach(0, closed=True).encode())
        + frame(3, End().encode())
        + frame(0, Close().encode())
    )
    peer.take_header(SASL_HEADER)
    peer.expect(SaslMechanisms)
    peer.expect(SaslOutcome)
    peer.take_header(AMQP_HEADER)
    peer.expect(Open)
    kinds = []
    while peer.received:
        value = peer.next()
        if not isinstance(value, Flow):
            kinds.append(type(value))
    assert kinds == [Begin, Attach, Disposition, Detach, End, Close]
    assert peer.wire.is_closed


def test_an_unknown_virtual_host(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.open(hostname="vhost:none")
    peer.expect_closed("amqp:not-found")


def test_the_virtual_host_is_in_the_host_name(bench: NodeBench) -> None:
    bench.node.administration.add_virtual_host("other")
    bench.node.administration.set_permission("guest", "other", ".*", ".*", ".*")
    peer = Peer(bench)
    peer.open(hostname="vhost:other")
    session = peer.begin()
    declare(bench)
    session.expect_refused(session.sender_attach("/queues/q"), "amqp:not-found")


def test_other_frames_before_open(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.write(AMQP_HEADER + frame(0, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1).encode()))
    peer.take_header(AMQP_HEADER)
    peer.expect(Open)
    peer.expect_closed("amqp:not-allowed")


@requirement("BB-033", "BB-032")
@pytest.mark.parametrize(
    ("octets", "condition"),
    [
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x7f\x00\x00\x07\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x08\x02\x05\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x0c\x02\x01\x00\x00\x00\x53\x41\x45", "amqp:connection:framing-error"),
        (frame(0, b"\x40"), "amqp:decode-error"),
        (frame(0, b"\x00\x53\x99\x45"), "amqp:decode-error"),
        (frame(0, b"\x00\x53\x24\x45"), "amqp:decode-error"),
        (frame(9, End().encode()), "amqp:not-allowed"),
        (frame(0, Open("again").encode()), "amqp:not-allowed"),
        (frame(0, Close().encode(), b"rest"), "amqp:connection:framing-error"),
    ],
)
def test_malformed_frames_close_the_connection(peer: Peer, octets: bytes, condition: str) -> None:
    peer.write(octets)
    peer.expect_closed(condition)


@requirement("BB-034")
def test_a_malformed_begin_closes_the_connection(peer: Peer) -> None:
    """There is no session yet that could end."""
    peer.write(frame(5, b"\x00\x53\x11\xc0\x02\x01\x40"))
    peer.expect_closed("amqp:decode-error")


@requirement("BB-035")
@pytest.mark.parametrize("code", [0x12, 0x13, 0x14, 0x15, 0x16])
def test_malformed_performatives_end_their_session(peer: Peer, session: Session, code: int) -> None:
    peer.write(frame(0, bytes([0, 0x53, code, 0xC0, 2, 1, 0x40])))
    session.expect_ended("amqp:decode-error")
    peer.begin()


@requirement("BB-035")
def test_unattached_handles_end_the_session(peer: Peer) -> None:
    for performative in (Transfer(9, 0, b"t"), Detach(9)):
        session = peer.begin()
        session.send(performative)
        session.expect_ended("amqp:session:unattached-handle")
    session = peer.begin()
    session.flow(handle=9)
    session.expect_ended("amqp:session:unattached-handle")


def test_a_handle_in_use_ends_the_session(bench: NodeBench, session: Session) -> None:
    declare(bench)
    sender = session.sender("/queues/q")
    session.send(Attach("other", sender.handle, role=True, source=Source("/queues/q")))
    session.expect_ended("amqp:session:handle-in-use")


def test_channels_and_handles_beyond_the_maximum(bench: NodeBench, peer: Peer) -> None:
    session = peer.begin()
    assert session.answer is not None
    session.send(Attach("name", session.answer.handle_max + 1, role=True, source=Source("/queues/q")))
    peer.expect_closed("amqp:connection:framing-error")
    other = Peer(bench)
    answer = other.open()
    other.send(answer.channel_max + 1, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    other.expect_closed("amqp:connection:framing-error")


def test_a_second_begin_on_a_channel(peer: Peer, session: Session) -> None:
    peer.send(0, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    peer.expect_closed("amqp:not-allowed")


def test_frames_above_the_maximum_frame_size(bench: NodeBench) -> None:
    peer = Peer(bench)
    answer = peer.open()
    peer.write((answer.max_frame_size + 1).to_bytes(4, "big") + b"\x02\0\0\0")
    peer.expect_closed("amqp:connection:framing-error")


def test_silent_peers_are_cut_off(bench: NodeBench) -> None:
    peer = Peer(bench)
    answer = peer.open()
    assert answer.idle_time_out
    bench.advance(answer.idle_time_out / 1000 * 2 + 1)
    assert peer.wire.is_closed


def test_the_peers_idle_time_out_is_kept(bench: NodeBench) -> None:
    peer = Peer(bench)
    peer.open(idle_time_out=2000)
    bench.advance(10)
    peer.receive()
    assert peer.empty_frames >= 9
    peer.begin()


def test_the_node_stops(bench: NodeBench, peer: Peer) -> None:
    bench.node.shut_down()
    bench.settle()
    peer.expect_closed("amqp:connection:forced")


def test_what_comes_after_our_end_is_dropped(peer: Peer, session: Session) -> None:
    session.send(Detach(9))
    session.expect(End)
    session.send(Transfer(0, 0, b"t"), Detach(3), End())
    peer.expect_nothing()
    peer.begin()
