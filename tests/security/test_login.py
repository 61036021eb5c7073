"""Who may log in, by which mechanism, and from where."""

import base64
import hashlib

import pytest
from scramp import ScramClient

from tests.engine.amqp091.peer import CLIENT_PROPERTIES, Bench, Channel, NodeBench, Peer
from tests.security.restart import restarted
from waybill.node.certificate import COMMON_NAME, DISTINGUISHED_NAME, certificate_user
from waybill.node.passwords import RABBITMQ_SHA256, SCRYPT, Credential
from waybill.wire.amqp091.methods_connection import (
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)


def scram_log_in(peer: Peer, user: str, password: str) -> ScramClient:
    """Everything up to the client's proof; whatever comes next is left to be read."""
    client = ScramClient(["SCRAM-SHA-256"], user, password)
    peer.start()
    peer.connection.send(ConnectionStartOk(CLIENT_PROPERTIES, "SCRAM-SHA-256", client.get_client_first().encode()))
    client.set_server_first(peer.connection.expect(ConnectionSecure).challenge.decode())
    peer.connection.send(ConnectionSecureOk(client.get_client_final().encode()))
    return client


@pytest.mark.ours
@pytest.mark.parametrize("password", ["guest", "pässwörd", "a=b,c", "Ⅸ\u00ad"])
def test_scram_with_a_client_that_we_did_not_write(node_bench: NodeBench, bystander: Channel, password: str) -> None:
    node_bench.node.administration.put_user("bob,=", password)
    node_bench.node.administration.set_permission("bob,=", "/", ".*", ".*", ".*")
    peer = node_bench.plug()
    client = scram_log_in(peer, "bob,=", password)
    client.set_server_final(peer.connection.expect(ConnectionSecure).challenge.decode())
    peer.connection.send(ConnectionSecureOk(b""))
    peer.connection.expect(ConnectionTune)
    peer.connection.send(ConnectionTuneOk(2047, 131_072, 0))
    peer.connection.call(ConnectionOpen("/"), ConnectionOpenOk)


@pytest.mark.ours
@pytest.mark.parametrize(("user", "password"), [("guest", "wrong"), ("nobody", "guest")])
def test_scram_tells_a_wrong_password_and_no_user_apart_by_nothing(
    node_bench: NodeBench, bystander: Channel, user: str, password: str
) -> None:
    peer = node_bench.plug()
    scram_log_in(peer, user, password)
    assert peer.connection.expect(ConnectionClose).reply_code == 403
    assert node_bench.node.scram_keys(user) == node_bench.node.scram_keys(user)


@pytest.mark.ours
@pytest.mark.parametrize(
    "response",
    [b"", b"n,,", b"p=tls-unique,,n=guest,r=abc", b"n,a=root,n=guest,r=abc", b"n,,n=guest", b"n,,n=gu=20st,r=a",
     b"n,,n=guest,r=", b"n,,n=guest,r=\xff", b"n,,n=guest,r=" + b"a" * 3000],
)  # fmt: skip
def test_a_malformed_scram_response_is_refused(node_bench: NodeBench, bystander: Channel, response: bytes) -> None:
    peer = node_bench.plug()
    peer.start()
    peer.connection.send(ConnectionStartOk(CLIENT_PROPERTIES, "SCRAM-SHA-256", response))
    assert peer.connection.expect(ConnectionClose).reply_code == 403


@pytest.mark.ours
@pytest.mark.parametrize("response", [b"", b"c=biws,r=abc,p=", b"c=biws,r=abc", b",p=", b"c=eSws,r=x,p=AAAA", b"\xff"])
def test_a_malformed_scram_proof_is_refused(node_bench: NodeBench, bystander: Channel, response: bytes) -> None:
    peer = node_bench.plug()
    peer.start()
    peer.connection.send(ConnectionStartOk(CLIENT_PROPERTIES, "SCRAM-SHA-256", b"n,,n=guest,r=abc"))
    peer.connection.expect(ConnectionSecure)
    peer.connection.send(ConnectionSecureOk(response))
    assert peer.connection.expect(ConnectionClose).reply_code == 403


SUBJECT = ((("countryName", "DE"),), (("organizationName", "A, B"),), (("commonName", "worker"),))


@pytest.mark.parametrize(
    ("login_from", "subject", "name"),
    [
        (DISTINGUISHED_NAME, SUBJECT, "CN=worker,O=A\\, B,C=DE"),
        (COMMON_NAME, SUBJECT, "worker"),
        (COMMON_NAME, (*SUBJECT, (("commonName", "guest"),)), ""),
        (COMMON_NAME, ((("organizationName", "x"),),), ""),
        (DISTINGUISHED_NAME, ((("commonName", "a,O=b"),),), "CN=a\\,O\\=b".replace("\\=", "=")),
    ],
)
def test_the_user_of_a_certificate(login_from: str, subject: object, name: str) -> None:
    assert certificate_user({"subject": subject}, login_from) == name
    assert certificate_user(None, login_from) == ""


def external_peer(bench: NodeBench, response: bytes) -> tuple[Peer, str]:
    """A peer whose TLS certificate is that of `SUBJECT`."""
    peer = bench.plug()
    wire = bench.wires[-1]
    wire.output.engine = bench.node.accept(wire.output, "192.0.2.1:1", bench.now, {"subject": SUBJECT})
    mechanisms = peer.start().mechanisms
    peer.connection.send(ConnectionStartOk(CLIENT_PROPERTIES, "EXTERNAL", response))
    return peer, mechanisms


@pytest.mark.ours
@pytest.mark.parametrize("identity", ["", "CN=worker,O=A\\, B,C=DE"])
def test_external_takes_the_name_of_the_certificate(node_bench: NodeBench, identity: str) -> None:
    node_bench.node.administration.put_user("CN=worker,O=A\\, B,C=DE", "")
    peer, mechanisms = external_peer(node_bench, identity.encode())
    assert "EXTERNAL" in mechanisms.split()
    peer.connection.expect(ConnectionTune)


@pytest.mark.ours
@pytest.mark.parametrize("response", [b"", b"guest", b"\0"])
def test_external_is_for_nobody_else(node_bench: NodeBench, bystander: Channel, response: bytes) -> None:
    if response:
        node_bench.node.administration.put_user("CN=worker,O=A\\, B,C=DE", "")
    peer, _ = external_peer(node_bench, response)
    assert peer.connection.expect(ConnectionClose).reply_code == 403


def test_external_is_not_offered_without_a_certificate(bench: Bench) -> None:
    peer = bench.plug()
    assert "EXTERNAL" not in peer.start().mechanisms.split()


@pytest.mark.ours
def test_external_without_a_certificate_is_refused(node_bench: NodeBench, bystander: Channel) -> None:
    peer = node_bench.plug()
    peer.start()
    peer.connection.send(ConnectionStartOk(CLIENT_PROPERTIES, "EXTERNAL", b"guest"))
    assert peer.connection.expect(ConnectionClose).reply_code == 403


@pytest.mark.ours
def test_a_user_without_a_password_has_no_password(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.administration.put_user("bob", "")
    for password in ("", "bob"):
        assert node_bench.node.authenticate("bob", password, "127.0.0.1:1") is None
        peer = node_bench.plug()
        peer.start()
        peer.log_in("bob", password)
        assert peer.connection.expect(ConnectionClose).reply_code == 403


@pytest.mark.ours
def test_a_hash_of_rabbitmq_is_replaced_when_its_password_is_known(node_bench: NodeBench) -> None:
    salt = b"\x90\x8d\xc6\x0a"
    digest = hashlib.sha256(salt + b"test12").digest()
    # The example of RabbitMQ's documentation of its hashes.
    assert base64.b64encode(salt + digest) == b"kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    administration = node_bench.node.administration
    administration.put_user_with_credential("bob", Credential(RABBITMQ_SHA256, salt + digest, None), ())
    assert node_bench.node.authenticate("bob", "wrong", "192.0.2.1:1") is None
    assert administration.accounts.account("bob").credential.algorithm == RABBITMQ_SHA256
    assert node_bench.node.authenticate("bob", "test12", "192.0.2.1:1") is not None
    credential = administration.accounts.account("bob").credential
    assert credential.algorithm == SCRYPT
    assert credential.scram is not None
    assert node_bench.node.authenticate("bob", "test12", "192.0.2.1:1") is not None


@pytest.mark.ours
def test_guest_can_be_deleted_for_good_and_changed_passwords_hold(node_bench: NodeBench) -> None:
    administration = node_bench.node.administration
    administration.put_user("root", "secret", ("administrator",))
    for name in ("/", "/ojs"):
        administration.set_permission("root", name, ".*", ".*", ".*")
    channel = node_bench.channel()
    administration.delete_user("guest")
    node_bench.settle()
    assert "user 'guest' is deleted" in channel.peer.expect_refused(320)
    administration.put_user("root", "changed", ("administrator",))
    again = restarted(node_bench)
    assert list(again.administration.accounts.by_name) == ["root"]
    assert again.authenticate("root", "secret", "192.0.2.1:1") is None
    user = again.authenticate("root", "changed", "192.0.2.1:1")
    assert user is not None
    assert user.tags == ("administrator",)
    assert set(user.permissions) == {"/", "/ojs"}
