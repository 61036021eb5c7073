"""What attackers do to a listener with TLS before, in and after their handshakes, of a server or a broker."""

import contextlib
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trustme

from tests.security.broker_siege import BrokerSiege
from tests.security.crowd import Crowd
from tests.security.http_siege import HttpSiege
from tests.security.siege import login
from waybill.engine.host import Limits

TlsAttack = Callable[[Crowd, int], None]

THREADS: Final = 4


CLIENT_TIMEOUT_S: Final = 3.0


class ServerCertificate:
    """What a listener with TLS shows, and the authority that clients trust, as PEM files."""

    def __init__(self, directory: Path) -> None:
        self.authority, self.certificate, self.key = (
            directory / name for name in ("ca.pem", "certificate.pem", "key.pem")
        )
        made = trustme.CA()
        issued = made.issue_cert("127.0.0.1")
        made.cert_pem.write_to_path(self.authority)
        issued.cert_chain_pems[0].write_to_path(self.certificate)
        issued.private_key_pem.write_to_path(self.key)

    def options(self) -> tuple[str, ...]:
        """For the commands."""
        return ("--tls-certificate", str(self.certificate), "--tls-key", str(self.key))


class HttpTlsSiege(HttpSiege):
    """A server with TLS that is attacked."""

    def __init__(self, directory: Path) -> None:
        shown = ServerCertificate(directory)
        super().__init__(directory, *shown.options())
        self.trusted = (str(shown.authority),)


class BrokerTlsSiege(BrokerSiege):
    """A broker whose port for TLS is attacked."""

    hello = login()
    clients_max = Limits().tls_connections_max

    def __init__(self, directory: Path) -> None:
        shown = ServerCertificate(directory)
        super().__init__(directory, "--tls-port", *shown.options())
        self.trusted = (str(shown.authority),)


def client_hello() -> bytes:
    """What a client sends first. The answer costs the server most of the handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def silent_clients_close(siege: Crowd, count: int) -> None:
    siege.crowd(count)
    siege.leave()


def half_handshakes_at_once(siege: Crowd, count: int) -> None:
    siege.crowd(count)
    siege.send_at_once(client_hello())
    siege.quiet()
    siege.leave()


def half_handshakes_close(siege: Crowd, count: int) -> None:
    siege.crowd(count, client_hello())
    siege.leave(by_reset=True)


def nonsense_at_once(siege: Crowd, count: int) -> None:
    siege.crowd(count)
    siege.send_at_once(siege.hello)
    siege.quiet()
    siege.leave()


def hellos_of_single_octets(siege: Crowd, count: int) -> None:
    siege.crowd(count)
    for octet in client_hello()[:40]:
        siege.send_at_once(bytes([octet]))
    siege.quiet()
    siege.leave()


def whole_handshakes(siege: Crowd, count: int) -> None:
    """Some clients at a time do whole handshakes, and close at once or after a request."""
    context = ssl.create_default_context(cafile=siege.trusted[0])

    def clients(number: int) -> None:
        for asks in range(count // number):
            plain = siege.connect_aside()
            with contextlib.suppress(OSError), context.wrap_socket(plain, server_hostname="127.0.0.1") as attacker:
                if asks % 2:
                    attacker.sendall(siege.hello)

    threads = [threading.Thread(target=clients, args=(THREADS,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    siege.serve(3)


def whole_crowd_closes(siege: Crowd, count: int) -> None:
    """All have done their handshake and said hello, and stay until all are there, or no more are let in."""
    context = ssl.create_default_context(cafile=siege.trusted[0])
    for _ in range(count):
        plain = siege.connect_aside()
        plain.settimeout(CLIENT_TIMEOUT_S)
        try:
            attacker = context.wrap_socket(plain, server_hostname="127.0.0.1")
            siege.sockets.append(attacker)
            attacker.sendall(siege.hello)
            attacker.recv(1)
        except OSError:
            plain.close()
            break
        siege.look()
    siege.serve(3)
    siege.leave()


TLS_ATTACKS: Final[tuple[tuple[TlsAttack, int, int], ...]] = (
    (silent_clients_close, 50, 10_000),
    (half_handshakes_at_once, 50, 2_000),
    (half_handshakes_close, 50, 5_000),
    (nonsense_at_once, 50, 2_000),
    (hellos_of_single_octets, 20, 1_000),
    (whole_handshakes, 40, 2_000),
    (whole_crowd_closes, 20, 5_000),
)
