"""What attackers do to `waybill serve` with TLS before, in and after their handshakes."""

import contextlib
import ssl
import threading
from pathlib import Path
from typing import Final

import trustme

from tests.security.http_attacks import HttpAttack, request
from tests.security.http_siege import HttpSiege

THREADS: Final = 4


class TlsSiege(HttpSiege):
    """A server with TLS that is attacked."""

    def __init__(self, directory: Path) -> None:
        authority, certificate, key = directory / "ca.pem", directory / "certificate.pem", directory / "key.pem"
        made = trustme.CA()
        issued = made.issue_cert("127.0.0.1")
        made.cert_pem.write_to_path(authority)
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        super().__init__(directory, "--tls-certificate", str(certificate), "--tls-key", str(key))
        self.trusted = (str(authority),)


def client_hello() -> bytes:
    """What a client sends first. The answer costs the server most of the handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def silent_clients_close(siege: HttpSiege, count: int) -> None:
    siege.crowd(count)
    siege.leave()


def half_handshakes_at_once(siege: HttpSiege, count: int) -> None:
    siege.crowd(count)
    siege.send_at_once(client_hello())
    siege.quiet()
    siege.leave()


def half_handshakes_close(siege: HttpSiege, count: int) -> None:
    siege.crowd(count, client_hello())
    siege.leave(by_reset=True)


def nonsense_at_once(siege: HttpSiege, count: int) -> None:
    siege.crowd(count)
    siege.send_at_once(request("GET", "/ojs/v1/health"))
    siege.quiet()
    siege.leave()


def hellos_of_single_octets(siege: HttpSiege, count: int) -> None:
    siege.crowd(count)
    for octet in client_hello()[:40]:
        siege.send_at_once(bytes([octet]))
    siege.quiet()
    siege.leave()


def whole_handshakes(siege: HttpSiege, count: int) -> None:
    """Some clients at a time do whole handshakes, and close at once or after a request."""
    context = ssl.create_default_context(cafile=siege.trusted[0])

    def clients(number: int) -> None:
        for asks in range(count // number):
            plain = siege.connect_aside()
            with contextlib.suppress(OSError), context.wrap_socket(plain, server_hostname="127.0.0.1") as attacker:
                if asks % 2:
                    attacker.sendall(request("GET", "/ojs/v1/health"))

    threads = [threading.Thread(target=clients, args=(THREADS,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    siege.serve(3)


def whole_crowd_closes(siege: HttpSiege, count: int) -> None:
    """All have done their handshake, and stay until all are there."""
    context = ssl.create_default_context(cafile=siege.trusted[0])
    for _ in range(count):
        plain = siege.connect_aside()
        attacker = context.wrap_socket(plain, server_hostname="127.0.0.1")
        siege.sockets.append(attacker)
        siege.look()
    siege.serve(3)
    siege.leave()


TLS_ATTACKS: Final[tuple[tuple[HttpAttack, int, int], ...]] = (
    (silent_clients_close, 50, 10_000),
    (half_handshakes_at_once, 50, 2_000),
    (half_handshakes_close, 50, 5_000),
    (nonsense_at_once, 50, 2_000),
    (hellos_of_single_octets, 20, 1_000),
    (whole_handshakes, 40, 2_000),
    (whole_crowd_closes, 20, 3_000),
)
