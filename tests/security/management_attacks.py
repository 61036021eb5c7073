"""What attackers who may log in do to the management API of a broker: large bodies, and answers with much in them."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.security.broker_siege import BrokerSiege
from waybill.backend.server.limits import Limits

LOGIN: Final = base64.b64encode(b"guest:guest").decode()
MESSAGE_OCTETS: Final = 12_000_000
ROUNDS: Final = 3


def request(method: str, path: str, body: object = None) -> bytes:
    """`body` as it is if it is octets, else as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} /api{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {LOGIN}\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


class ManagementSiege(BrokerSiege):
    """A broker whose management API is attacked."""

    hello = request("GET", "/whoami")
    clients_max = Limits().connections - 1

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "--management-port", "--management")


ManagementAttack = Callable[[ManagementSiege, int], None]


def bodies_of_many_values(siege: ManagementSiege, count: int) -> None:
    values = b"[" + b"{}," * 5_000_000 + b"{}]"
    _all_send(siege, count, request("POST", "/definitions", b'{"queues":%b}' % values))


def published_tables(siege: ManagementSiege, count: int) -> None:
    headers: dict[str, list[Any]] = {f"key {number}": [[]] * 10 for number in range(4000)}
    body = {"properties": {"headers": headers}, "routing_key": "", "payload": "", "payload_encoding": "string"}
    _all_send(siege, count, request("POST", "/exchanges/%2F/amq.default/publish", body))


def large_messages(siege: ManagementSiege, count: int) -> None:
    """They are published at once, again and again, and then fetched by all."""
    _make(siege, "PUT", "/queues/%2F/large", {"durable": True})
    message = {"properties": {}, "routing_key": "large", "payload": "x" * MESSAGE_OCTETS, "payload_encoding": "string"}
    for _ in range(ROUNDS):
        _all_send(siege, count, request("POST", "/exchanges/%2F/amq.default/publish", message))
    get = {"count": 100, "ackmode": "ack_requeue_true", "encoding": "auto"}
    _all_send(siege, count, request("POST", "/queues/%2F/large/get", get))
    _make(siege, "DELETE", "/queues/%2F/large", None)


def passwords(siege: ManagementSiege, count: int) -> None:
    _all_send(siege, count, request("PUT", "/users/many", {"password": "x" * 1000, "tags": ""}))


def long_passwords(siege: ManagementSiege, count: int) -> None:
    _all_send(siege, count, request("PUT", "/users/long", {"password": "x" * 1_000_000, "tags": ""}))


def long_documents(siege: ManagementSiege, count: int) -> None:
    queue: dict[str, Any] = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    queues = [{"name": f"queue {number}", **queue} for number in range(200 * count)]
    _make(siege, "POST", "/definitions", {"queues": queues})
    for path in ("/definitions", "/definitions/%2F", "/queues"):
        _all_send(siege, count, request("GET", path))


def _all_send(siege: ManagementSiege, count: int, data: bytes) -> None:
    """All are complete in the same moment."""
    for _ in range(count):
        siege.connect(data[:-1])
        siege.look()
    siege.send_at_once(data[-1:])
    siege.hear()
    siege.quiet()
    siege.leave()


def _make(siege: ManagementSiege, method: str, path: str, body: object) -> None:
    with siege.connect_aside() as client:
        client.sendall(request(method, path, body))
        assert client.recv(12).split()[1].startswith(b"20")


MANAGEMENT_ATTACKS: Final[tuple[tuple[ManagementAttack, int, int], ...]] = (
    (bodies_of_many_values, 2, 20),
    (published_tables, 5, 100),
    (large_messages, 3, 20),
    (passwords, 5, 50),
    (long_passwords, 5, 50),
    (long_documents, 2, 100),
)
"""With how many to do them, in the suite and at full size."""
