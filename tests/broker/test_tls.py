"""TLS beside the plain port, logging in with a certificate, and who is kept out."""

import asyncio
import ssl
from pathlib import Path

import pika
import pytest
import trustme

from tests.security.tls_attacks import client_hello
from waybill.broker import Broker
from waybill.client import connect, errors
from waybill.transport.tls import server_context


class Certificates:
    """An authority with a certificate for localhost and one for the client `worker`, as PEM files."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.authority = directory / "ca.pem"
        authority.cert_pem.write_to_path(self.authority)
        self.server, self.server_key = self._write(directory / "server", authority.issue_cert("localhost", "127.0.0.1"))
        self.client, self.client_key = self._write(directory / "client", authority.issue_cert(common_name="worker"))
        stranger = trustme.CA().issue_cert(common_name="worker")
        self.strange_client, self.strange_key = self._write(directory / "stranger", stranger)

    def _write(self, stem: Path, leaf: trustme.LeafCert) -> tuple[Path, Path]:
        certificate, key = stem.with_suffix(".pem"), stem.with_suffix(".key")
        leaf.cert_chain_pems[0].write_to_path(certificate)
        leaf.private_key_pem.write_to_path(key)
        return certificate, key

    def uri(self, broker: Broker, query: str = "", *, login: str = "guest:guest@") -> str:
        return f"amqps://{login}localhost:{broker.tls_port}/?cacertfile={self.authority}{query}"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """See `Certificates`."""
    return Certificates(tmp_path)


@pytest.fixture
def broker(certificates: Certificates) -> Broker:
    """Serves TLS to clients that may show a certificate, and is not started yet."""
    return Broker(
        port=0,
        tls_port=0,
        tls_certificate=certificates.server,
        tls_key=certificates.server_key,
        tls_ca=certificates.authority,
        certificate_login_from="common_name",
    )


async def talk(uri: str) -> None:
    """Publish and take back one message."""
    async with connect(uri) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q")
        await channel.publish(b"over tls" * 10_000, routing_key="q")
        delivery = await channel.get("q", no_ack=True)
        assert delivery is not None
        assert delivery.body == b"over tls" * 10_000


async def test_tls_and_plain_at_once(broker: Broker, certificates: Certificates) -> None:
    async with broker:
        await talk(certificates.uri(broker))
        await talk(broker.uri())


async def test_a_certificate_logs_in(broker: Broker, certificates: Certificates) -> None:
    query = f"&certfile={certificates.client}&keyfile={certificates.client_key}&auth_mechanism=external"
    async with broker:
        with pytest.raises(errors.ClientError):
            await talk(certificates.uri(broker, query, login=""))
        broker.administration.put_user("worker", "")
        broker.administration.set_permission("worker", "/", ".*", ".*", ".*")
        await talk(certificates.uri(broker, query, login=""))


async def test_a_stranger_with_the_same_name_does_not(broker: Broker, certificates: Certificates) -> None:
    query = f"&certfile={certificates.strange_client}&keyfile={certificates.strange_key}&auth_mechanism=external"
    async with broker:
        broker.administration.put_user("worker", "")
        broker.administration.set_permission("worker", "/", ".*", ".*", ".*")
        with pytest.raises((errors.ClientError, OSError)):
            await talk(certificates.uri(broker, query, login=""))
        await talk(broker.uri())


async def test_a_client_without_a_certificate_can_be_refused(certificates: Certificates) -> None:
    broker = Broker(
        port=0,
        tls_port=0,
        tls_certificate=certificates.server,
        tls_key=certificates.server_key,
        tls_ca=certificates.authority,
        verify_peer=True,
    )
    async with broker:
        with pytest.raises((errors.ClientError, OSError)):
            await talk(certificates.uri(broker))
        await talk(certificates.uri(broker, f"&certfile={certificates.client}&keyfile={certificates.client_key}"))


async def test_pika_over_tls(broker: Broker, certificates: Certificates) -> None:
    def use_pika() -> None:
        context = ssl.create_default_context(cafile=str(certificates.authority))
        parameters = pika.ConnectionParameters(
            "localhost", broker.tls_port, ssl_options=pika.SSLOptions(context, "localhost")
        )
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            channel.basic_publish("", "q", b"1")
            assert channel.basic_get("q", auto_ack=True)[2] == b"1"

    async with broker:
        await asyncio.to_thread(use_pika)


def test_old_versions_of_tls_are_refused(certificates: Certificates) -> None:
    context = server_context(certificates.server, certificates.server_key)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    "arguments", [{"tls_certificate": "x"}, {"tls_key": "x"}, {"tls_ca": "x"}, {"verify_peer": True}]
)
def test_half_a_configuration_is_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="TLS needs"):
        Broker(**arguments)  # type: ignore[arg-type]


def test_verifying_peers_needs_an_authority(certificates: Certificates) -> None:
    with pytest.raises(ValueError, match="tls_ca"):
        Broker(tls_certificate=certificates.server, tls_key=certificates.server_key, verify_peer=True)


async def test_of_too_many_unfinished_handshakes_the_oldest_is_cut(
    broker: Broker, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.transport.listener.HANDSHAKES_MAX", 2)
    async with broker:
        half = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.tls_port)
            writer.write(client_hello())
            # The broker has answered, and waits.
            assert await reader.read(1)
            half.append((reader, writer))
        async with asyncio.timeout(5):
            await half[0][0].read()
        await talk(certificates.uri(broker))
        for _, writer in half:
            writer.close()
