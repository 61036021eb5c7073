"""From the protocol header to connection.open-ok, and what may go wrong on the way."""

import pytest
from scramp import ScramMechanism
from scramp.core import ScramServer

from tests.conformance.requirement import requirement
from tests.engine.amqp091.client.peer import Cut, Peer
from waybill.engine.amqp091.client.events import CloseReason, Initiator
from waybill.engine.amqp091.client.settings import ConnectionSettings
from waybill.wire.amqp091.frames import PROTOCOL_HEADER
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)


def close_reason(peer: Peer) -> CloseReason:
    reason = peer.events.events[-1]
    assert isinstance(reason, CloseReason)
    return reason


def test_the_protocol_header_comes_first() -> None:
    assert Peer().engine.data_to_send() == PROTOCOL_HEADER


@pytest.mark.parametrize("cut", Cut)
@requirement("091-connection.start-ok.client-properties")
def test_handshake_in_any_cut(cut: Cut) -> None:
    peer = Peer(cut, ConnectionSettings(user="u", password="p", virtual_host="/ojs", name="me"))
    peer.send(0, ConnectionStart(server_properties={"product": "X"}, mechanisms="AMQPLAIN PLAIN"))
    (start_ok,) = peer.methods()
    assert isinstance(start_ok, ConnectionStartOk)
    assert (start_ok.mechanism, start_ok.response) == ("PLAIN", b"\0u\0p")
    assert start_ok.client_properties["connection_name"] == "me"
    peer.send(0, ConnectionTune(10, 8192, 30))
    assert peer.methods() == [ConnectionTuneOk(10, 8192, 30), ConnectionOpen("/ojs")]
    peer.send(0, ConnectionOpenOk())
    assert peer.events.events == ["opened"]
    assert peer.engine.server_properties == {"product": "X"}


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [
        ((0, 0, 60), (0, 0, 0), (0, 4096, 60)),
        ((5, 9000, 20), (7, 8000, 10), (5, 8000, 10)),
        ((5, 9000, 0), (0, 0, 10), (5, 9000, 0)),
    ],
)
def test_the_smaller_limit_holds(
    ours: tuple[int, int, int], theirs: tuple[int, int, int], agreed: tuple[int, int, int]
) -> None:
    peer = Peer(settings=ConnectionSettings(channel_max=ours[0], frame_max=ours[1], heartbeat_s=ours[2]))
    peer.send(0, ConnectionStart(mechanisms="PLAIN"))
    peer.methods()
    peer.send(0, ConnectionTune(*theirs))
    assert peer.methods()[0] == ConnectionTuneOk(*agreed)


@requirement("091-connection.start.client-support")
def test_a_server_of_another_version_is_told_apart() -> None:
    peer = Peer()
    peer.feed(b"AMQP\x00\x01\x00\x00")
    assert peer.engine.closed
    assert "does not speak AMQP 0-9-1" in close_reason(peer).text


def test_a_mechanism_that_is_not_offered_ends_the_connection() -> None:
    peer = Peer(settings=ConnectionSettings(mechanism="EXTERNAL"))
    peer.send(0, ConnectionStart(mechanisms="PLAIN"))
    (close,) = peer.methods()
    assert isinstance(close, ConnectionClose)
    assert peer.engine.closed


def test_a_refused_login_is_answered_and_reported() -> None:
    peer = Peer()
    peer.send(0, ConnectionStart(mechanisms="PLAIN"))
    peer.methods()
    peer.send(0, ConnectionClose(403, "ACCESS_REFUSED"))
    assert peer.methods() == [ConnectionCloseOk()]
    assert close_reason(peer) == CloseReason(403, "ACCESS_REFUSED")


@pytest.mark.parametrize("method", [ConnectionTune(), ConnectionOpenOk(), ConnectionSecure(b"challenge")])
def test_a_method_out_of_turn_ends_the_connection(method: ConnectionTune) -> None:
    peer = Peer()
    peer.send(0, method)
    assert isinstance(peer.methods()[0], ConnectionClose)
    assert peer.engine.closed
    assert close_reason(peer).initiator is Initiator.CLIENT


def scram_settings() -> ConnectionSettings:
    return ConnectionSettings(user="u,=", password="pencil", mechanism="SCRAM-SHA-256", nonce="abc")


def scram_peer() -> tuple[Peer, ScramServer]:
    """A client that has answered the first challenge of a server that we did not write."""
    information = ScramMechanism("SCRAM-SHA-256").make_auth_info("pencil", iteration_count=4096)
    server = ScramMechanism("SCRAM-SHA-256").make_server({"u,=": information}.__getitem__)
    peer = Peer(settings=scram_settings())
    peer.send(0, ConnectionStart(mechanisms="PLAIN SCRAM-SHA-256"))
    (start_ok,) = peer.methods()
    assert isinstance(start_ok, ConnectionStartOk)
    server.set_client_first(start_ok.response.decode())
    peer.send(0, ConnectionSecure(server.get_server_first().encode()))
    (secure_ok,) = peer.methods()
    assert isinstance(secure_ok, ConnectionSecureOk)
    server.set_client_final(secure_ok.response.decode())
    return peer, server


def test_scram_with_a_server_that_we_did_not_write() -> None:
    peer, server = scram_peer()
    peer.send(0, ConnectionSecure(server.get_server_final().encode()))
    assert peer.methods() == [ConnectionSecureOk(b"")]
    peer.send(0, ConnectionTune(10, 8192, 30))
    assert isinstance(peer.methods()[0], ConnectionTuneOk)


@pytest.mark.parametrize("method", [ConnectionSecure(b"v=AAAA"), ConnectionTune()])
def test_a_server_that_does_not_prove_itself_is_left(method: Method) -> None:
    peer, _ = scram_peer()
    peer.send(0, method)
    assert isinstance(peer.methods()[0], ConnectionClose)
    assert peer.engine.closed
    assert "does not prove" in close_reason(peer).text


@pytest.mark.parametrize(
    "challenge",
    [b"", b"r=abc,s=AAAA,i=4096", b"r=other,s=AAAA,i=4096", b"r=abcd,s=?,i=4096", b"r=abcd,s=AAAA,i=1",
     b"r=abcd,s=AAAA,i=999999999", b"r=abcd,s=AAAA,i=x", b"\xff"],
)  # fmt: skip
def test_a_malformed_scram_challenge_ends_the_connection(challenge: bytes) -> None:
    peer = Peer(settings=scram_settings())
    peer.send(0, ConnectionStart(mechanisms="SCRAM-SHA-256"))
    peer.methods()
    peer.send(0, ConnectionSecure(challenge))
    assert isinstance(peer.methods()[0], ConnectionClose)
    assert peer.engine.closed


def test_the_password_is_in_no_repr() -> None:
    settings = ConnectionSettings(password="s3cret-word")
    peer = Peer(settings=settings)
    peer.send(0, ConnectionStart(mechanisms="PLAIN"))
    assert "s3cret-word" not in repr(settings) + repr(peer.methods())
