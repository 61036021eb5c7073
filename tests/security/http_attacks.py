"""What attackers do to `waybill serve`. Each takes how many to do it with: `make siege-http` has the large numbers."""

import contextlib
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.security.http_siege import HttpSiege

HttpAttack = Callable[[HttpSiege, int], None]


def request(method: str, path: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


HALF: Final = request("POST", "/ojs/v1/jobs", {"type": "half.job", "args": ["x" * 3000]})[:2000]
LONG_POLL: Final = request(
    "POST", "/ojs/v1/workers/fetch", {"queues": ["empty"], "worker_id": "attacker", "wait_ms": 50_000}
)
EVENTS: Final = request("GET", "/ojs/v1/events/stream")
WEB_SOCKET: Final = (
    b"GET /ojs/v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
# A masked text message.
SUBSCRIBE: Final = b"\x81\xab\0\0\0\0" + b'{"action":"subscribe","channel":"events"}  '
MANY_VALUES: Final = ["a"] * 190_000
PUSH: Final = request("POST", "/ojs/v1/jobs", {"type": "gone.job", "args": []})


def idle_clients_close(siege: HttpSiege, count: int) -> None:
    siege.crowd(count)
    siege.leave()


def idle_clients_reset(siege: HttpSiege, count: int) -> None:
    siege.crowd(count)
    siege.leave(by_reset=True)


def answered_clients_close(siege: HttpSiege, count: int) -> None:
    siege.crowd(count, request("GET", "/ojs/v1/health"))
    siege.leave()


def half_requests_close(siege: HttpSiege, count: int) -> None:
    siege.crowd(count, HALF)
    siege.leave()


def half_requests_reset(siege: HttpSiege, count: int) -> None:
    siege.crowd(count, HALF)
    siege.leave(by_reset=True)


def long_polls_close(siege: HttpSiege, count: int) -> None:
    siege.crowd(count, LONG_POLL)
    siege.leave()


def long_polls_reset(siege: HttpSiege, count: int) -> None:
    siege.crowd(count, LONG_POLL)
    siege.leave(by_reset=True)


def event_streams_close(siege: HttpSiege, count: int) -> None:
    siege.crowd(count, EVENTS)
    siege.leave()


def event_streams_reset(siege: HttpSiege, count: int) -> None:
    siege.crowd(count, EVENTS)
    siege.leave(by_reset=True)


def malformed_requests_at_once(siege: HttpSiege, count: int) -> None:
    _crowd_sends(siege, count, b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n")


def half_requests_at_once(siege: HttpSiege, count: int) -> None:
    _crowd_sends(siege, count, HALF, is_answered=False)


def answered_clients_at_once(siege: HttpSiege, count: int) -> None:
    _crowd_sends(siege, count, request("GET", "/ojs/v1/health"))


def pipelines_at_once(siege: HttpSiege, count: int) -> None:
    _crowd_sends(siege, count, request("GET", "/ojs/v1/health") * 20)


def long_polls_at_once(siege: HttpSiege, count: int) -> None:
    _crowd_sends(siege, count, LONG_POLL, is_answered=False)


def fetches_at_once(siege: HttpSiege, count: int) -> None:
    _crowd_sends(siege, count, request("POST", "/ojs/v1/workers/fetch", {"queues": ["empty"], "worker_id": "attacker"}))


def event_streams_at_once(siege: HttpSiege, count: int) -> None:
    _crowd_sends(siege, count, EVENTS)


def pushes_at_once(siege: HttpSiege, count: int) -> None:
    _crowd_sends(siege, count, PUSH)


def batches_at_once(siege: HttpSiege, count: int) -> None:
    jobs = [{"type": "batch.job", "args": [number]} for number in range(1000)]
    _crowd_sends(siege, count, request("POST", "/ojs/v1/jobs/batch", {"jobs": jobs}))


def lists_at_once(siege: HttpSiege, count: int) -> None:
    _crowd_sends(siege, count, request("GET", "/ojs/v1/admin/jobs"))


def event_streams_never_read(siege: HttpSiege, count: int) -> None:
    _events_for(siege, count, EVENTS)


def web_sockets_never_read(siege: HttpSiege, count: int) -> None:
    _events_for(siege, count, WEB_SOCKET, SUBSCRIBE)


def web_sockets_with_many_channels(siege: HttpSiege, count: int) -> None:
    _events_for(siege, count, WEB_SOCKET, SUBSCRIBE * 100)


def _events_for(siege: HttpSiege, count: int, hello: bytes, then: bytes = b"") -> None:
    """Thousands of events for clients that read none. What comes `then` is sent when the server has answered."""
    for _ in range(count):
        client = siege.connect(hello, small_buffer=True)
        if then:
            assert client.recv(1000)
            client.sendall(then)
    siege.quiet()
    jobs = [{"type": "batch.job", "args": [number]} for number in range(1000)]
    with siege.connect_aside() as pusher:
        for _ in range(3):
            _ask(pusher, request("POST", "/ojs/v1/jobs/batch", {"jobs": jobs}))
            siege.look()
    siege.quiet()
    siege.leave(by_reset=True)


def _ask(client: socket.socket, data: bytes, status: bytes = b" 201 ") -> bytes:
    """Send a request, and return the body of the answer."""
    client.sendall(data)
    with client.makefile("rb") as answer:
        line = answer.readline()
        assert status in line, line + answer.read1(2000)
        length = 0
        while (line := answer.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        body = answer.read(length)
        assert len(body) == length
        return body


def large_results_never_read(siege: HttpSiege, count: int) -> None:
    """Each of the clients follows the same job, whose result is large."""
    with siege.connect_aside() as worker:
        pushed = {"type": "large.result", "args": [], "options": {"queue": "results"}}
        job = json.loads(_ask(worker, request("POST", "/ojs/v1/jobs", pushed)))["job"]
        _ask(worker, request("POST", "/ojs/v1/workers/fetch", {"queues": ["results"], "wait_ms": 10_000}), b" 200 ")
        for _ in range(count):
            siege.connect(request("GET", f"/ojs/v1/jobs/{job['id']}/result/stream"), small_buffer=True)
        siege.quiet()
        ended = {"job_id": job["id"], "result": "x" * 900_000}
        _ask(worker, request("POST", "/ojs/v1/workers/ack", ended), b" 200 ")
    siege.quiet()
    siege.leave(by_reset=True)


def long_polls_of_many_values(siege: HttpSiege, count: int) -> None:
    asked = {"queues": ["empty"], "worker_id": "attacker", "wait_ms": 50_000, "more": MANY_VALUES}
    _each_sends(siege, count, request("POST", "/ojs/v1/workers/fetch", asked))


def heartbeats_of_many_values(siege: HttpSiege, count: int) -> None:
    with siege.connect_aside() as worker:
        for number in range(count):
            told = {"worker_id": f"w{number}", "metadata": {"a": MANY_VALUES}}
            _ask(worker, request("POST", "/ojs/v1/workers/heartbeat", told), b" 200 ")
            siege.look()


def _each_sends(siege: HttpSiege, count: int, data: bytes) -> None:
    """Each sends as much as the server takes, and reads nothing."""
    siege.crowd(count)
    for attacker in siege.sockets:
        with contextlib.suppress(OSError):
            attacker.setblocking(False)
            attacker.send(data)
    siege.quiet()
    siege.leave(by_reset=True)


def lists_of_large_jobs_at_once(siege: HttpSiege, count: int) -> None:
    with siege.connect_aside() as pusher:
        for _ in range(10):
            _ask(pusher, request("POST", "/ojs/v1/jobs", {"type": "large.job", "args": ["x" * 500_000]}))
    siege.crowd(count)
    siege.send_at_once(request("GET", "/ojs/v1/admin/jobs?limit=100"))
    siege.hear()
    siege.leave(by_reset=True)


def large_enqueues_at_once(siege: HttpSiege, count: int) -> None:
    """Of a megabyte of short texts each."""
    _crowd_sends_large(siege, count, request("POST", "/ojs/v1/jobs", {"type": "large.job", "args": ["a"] * 200_000}))


def heavy_batches_at_once(siege: HttpSiege, count: int) -> None:
    jobs = [{"type": "batch.job", "args": ["a"] * 480}] * 1000
    _crowd_sends_large(siege, count, request("POST", "/ojs/v1/jobs/batch", {"jobs": jobs}))


def _crowd_sends_large(siege: HttpSiege, count: int, data: bytes) -> None:
    siege.crowd(count)

    def send(attacker: socket.socket) -> None:
        # Some are refused before they have sent everything.
        with contextlib.suppress(OSError):
            attacker.sendall(data)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(send, siege.sockets))
    siege.hear()
    siege.leave(by_reset=True)


def _crowd_sends(siege: HttpSiege, count: int, data: bytes, *, is_answered: bool = True) -> None:
    """They connect first, then all send in the same moment, and go when they are answered or at least read."""
    siege.crowd(count)
    siege.send_at_once(data)
    if is_answered:
        siege.hear()
    siege.quiet()
    siege.leave()


def pushes_close(siege: HttpSiege, count: int) -> None:
    """They push, and go without the answer."""
    siege.crowd(count)
    for attacker in siege.sockets:
        with contextlib.suppress(OSError):
            attacker.sendall(PUSH)
    siege.leave()


def unread_answers(siege: HttpSiege, count: int) -> None:
    """Many requests in a row for a large answer, which nobody reads."""
    answers = request("GET", "/ojs/v1/openapi.json") * 40
    for _ in range(count):
        siege.connect(small_buffer=True)
    for attacker in siege.sockets:
        with contextlib.suppress(OSError):
            attacker.setblocking(False)
            attacker.send(answers)
    siege.quiet()
    siege.leave(by_reset=True)


ATTACKS: Final[tuple[tuple[HttpAttack, int, int], ...]] = (
    (idle_clients_close, 50, 15_000),
    (idle_clients_reset, 50, 15_000),
    (answered_clients_close, 50, 15_000),
    (half_requests_close, 50, 15_000),
    (half_requests_reset, 50, 15_000),
    (long_polls_close, 50, 15_000),
    (long_polls_reset, 50, 15_000),
    (event_streams_close, 50, 15_000),
    (event_streams_reset, 50, 15_000),
    (malformed_requests_at_once, 50, 15_000),
    (half_requests_at_once, 50, 15_000),
    (answered_clients_at_once, 50, 15_000),
    (pipelines_at_once, 50, 15_000),
    (long_polls_at_once, 50, 15_000),
    (fetches_at_once, 50, 15_000),
    (event_streams_at_once, 50, 15_000),
    (event_streams_never_read, 20, 4000),
    (web_sockets_never_read, 20, 1000),
    (pushes_at_once, 50, 15_000),
    (batches_at_once, 5, 20),
    (large_enqueues_at_once, 3, 45),
    (heavy_batches_at_once, 2, 20),
    (lists_at_once, 50, 5_000),
    (lists_of_large_jobs_at_once, 10, 200),
    (pushes_close, 50, 15_000),
    (unread_answers, 20, 400),
    (web_sockets_with_many_channels, 5, 500),
    (large_results_never_read, 3, 4000),
    (long_polls_of_many_values, 3, 400),
    (heartbeats_of_many_values, 3, 150),
)
