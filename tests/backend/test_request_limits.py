"""The limit of requests of a client: its headers are on all answers, and whoever exceeds it is told when to return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import jobs_of_own_broker
from tests.backend.test_shortcuts import Caller, caller
from waybill.backend import request_limits
from waybill.backend.application import Application
from waybill.backend.asgi_app import BackendApp
from waybill.backend.keys import InvalidKeyFile, Key, KeyRing, add_key, hash_of, read_keys
from waybill.backend.message import Request, Response, answer
from waybill.backend.request_limits import RequestLimits
from waybill.backend.router import OPEN, READ, Route
from waybill.backend.serving import Serving
from waybill.ojs import Jobs

JOB = {"type": "email.send", "args": []}
NAMES = (b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset")
NOW = 1_800_000_000


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return 5.0 + self.passed

    def time(self) -> float:
        return NOW + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(request_limits, "time", SimpleNamespace(monotonic=clock.monotonic, time=clock.time))
    return clock


@pytest.fixture
async def limited(clock: Clock) -> AsyncIterator[Serving]:
    async with Serving(jobs_of_own_broker, "127.0.0.1", 0, request_limit=(10, 60), is_test=True) as serving:
        yield serving


async def hello(_request: Request) -> Response:
    return answer({"hello": True})


def application_of(limit: tuple[int, int], keys: KeyRing | None = None) -> Application:
    routes = [Route("GET", "/a", hello, READ), Route("GET", "/ojs/v1/health", hello, OPEN)]
    return Application(routes, keys, RequestLimits(limit, keys))


async def get(application: Application, peer: str = "10.0.0.1:7", path: str = "/a", **headers: str) -> Response:
    return await application.handle(Request("GET", path, {}, {"host": "localhost"} | headers, peer=peer))


def told(response: Response) -> tuple[int, ...]:
    headers = dict(response.headers)
    return tuple(int(headers[f"X-RateLimit-{name}"]) for name in ("Limit", "Remaining", "Reset"))


async def test_a_bucket_empties_and_fills(clock: Clock) -> None:
    application = application_of((3, 30))
    assert [told(await get(application)) for _ in range(3)] == [(3, 2, NOW + 10), (3, 1, NOW + 10), (3, 0, NOW + 10)]
    clock.passed = 0.5
    refused = await get(application)
    assert (refused.status, told(refused)) == (429, (3, 0, NOW + 10))
    assert dict(refused.headers)["Retry-After"] == "10"
    assert [name for name, _ in refused.headers].count("Retry-After") == 1
    error = msgspec.json.decode(refused.body)["error"]
    assert (error["code"], error["retryable"]) == ("rate_limited", True)
    assert error["details"] == {"limit": 3, "window_seconds": 30, "retry_after_seconds": 10}
    clock.passed = 10.0
    assert [(await get(application)).status for _ in range(2)] == [200, 429]
    clock.passed = 100.0
    assert told(await get(application)) == (3, 2, NOW + 110)


async def test_each_client_has_its_own_bucket(clock: Clock) -> None:
    keys = KeyRing([Key("one", "read", hash_of("k1")), Key("two", "read", hash_of("k2"))])
    application = application_of((2, 60), keys)
    for key in ("k1", "k2"):
        # Whatever address it comes from.
        found = [await get(application, f"10.0.0.{one}:1", **{"x-api-key": key}) for one in range(3)]
        assert [one.status for one in found] == [200, 200, 429]
    for peer in ("10.0.0.1:1", "[2001:db8::1]:1"):
        found = [await get(application, peer, **headers) for headers in ({}, {"x-api-key": "wrong"}, {})]
        assert [(one.status, told(one)[1]) for one in found] == [(401, 1), (401, 0), (429, 0)]
    # The same network of IPv6.
    assert (await get(application, "[2001:db8::2]:1")).status == 429


async def test_a_key_may_have_its_own_limit(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    texts = {name: add_key(path, name, "read", request_limit=limit) for name, limit in (("few", 0), ("many", 4))}
    application = application_of((2, 60), read_keys(path))
    few, many = [[await get(application, **{"x-api-key": texts[name]}) for _ in range(5)] for name in texts]
    assert [one.status for one in few] == [200] * 2 + [429] * 3
    assert [one.status for one in many] == [200] * 4 + [429]
    assert [told(few[0])[:2], told(many[0])[:2]] == [(2, 1), (4, 3)]
    assert msgspec.json.decode(many[4].body)["error"]["details"]["limit"] == 4
    path.write_text(path.read_text().replace('"request_limit": 4', '"request_limit": -4'))
    with pytest.raises(InvalidKeyFile):
        read_keys(path)


async def test_health_is_not_limited(clock: Clock) -> None:
    application = application_of((1, 60))
    assert [(await get(application)).status for _ in range(2)] == [200, 429]
    found = await get(application, path="/ojs/v1/health")
    assert (found.status, told(found)[1]) == (200, 0)


def test_few_clients_are_remembered(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "MOST_CLIENTS", 100)
    limits = RequestLimits((2, 60))
    for one in range(1000):
        limits.take("busy")
        clock.passed += 60
        limits.take(f"10.0.{one // 250}.{one % 250}")
    assert len(limits) == 100
    # Who was active last is remembered.
    assert [limits.has_token(one) for one in ("10.0.3.249", "10.0.0.0", "busy")] == [True, True, True]
    limits.take("10.0.3.249")
    assert not limits.has_token("10.0.3.249")


# --- over a socket ---


async def raw(serving: Serving, text: str) -> tuple[int, dict[bytes, bytes]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(serving.url.rpartition(":")[2]))
    writer.write(text.replace("\n", "\r\n").encode())
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).rstrip().split(b"\r\n")
    writer.close()
    return int(status.split()[1]), {name.lower(): value for name, _, value in (one.partition(b": ") for one in lines)}


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /ojs/manifest HTTP/1.1\nHost: localhost\n\n", 200),
        ("HEAD /ojs/manifest HTTP/1.1\nHost: localhost\n\n", 200),
        ("GET /ojs/v1/health HTTP/1.1\nHost: localhost\n\n", 200),
        ("GET /nothing HTTP/1.1\nHost: localhost\n\n", 404),
        ("PATCH /ojs/v1/health HTTP/1.1\nHost: localhost\n\n", 405),
        ("OPTIONS /ojs/v1/health HTTP/1.1\nHost: localhost\n\n", 204),
        ("GET /ojs/v1/health HTTP/1.1\nHost: evil.example\n\n", 403),
        ("POST /ojs/v1/jobs HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n{}", 400),
        ("GET /ojs/v1/events/stream HTTP/1.1\nHost: localhost\n\n", 200),
        ("GET /%zz# HTTP/1.1\nHost: localhost\n\n", 400),
        ("BREW / HTTP/1.1\n\n", 400),
    ],
)
async def test_the_headers_are_on_every_answer(limited: Serving, request_text: str, status: int) -> None:
    found, headers = await raw(limited, request_text)
    assert (found, headers[b"x-ratelimit-limit"]) == (status, b"10")
    left = 10 if "/health" in request_text else 9
    assert headers[b"x-ratelimit-remaining"] == str(left).encode()
    assert int(headers[b"x-ratelimit-reset"]) >= NOW


async def push(client: Caller) -> tuple[int, dict[bytes, bytes]]:
    status, headers, _ = await client.post("/ojs/v1/jobs", JOB)
    return status, headers


async def test_shortcuts_count_and_are_taken_nevertheless(limited: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    begin = Application.begin

    def noted(application: Application, one: Request) -> Any:
        begun.append(one.path)
        return begin(application, one)

    monkeypatch.setattr(Application, "begin", noted)
    async with caller(limited) as client:
        found = [await push(client) for _ in range(12)]
        assert [status for status, _ in found] == [201] * 10 + [429] * 2
        assert [int(headers[b"x-ratelimit-remaining"]) for _, headers in found] == [*range(9, -1, -1), 0, 0]
        assert all(name in headers for _, headers in found for name in NAMES)
        # Two until the head is known, and those that are refused.
        assert len(begun) <= 4


async def test_without_a_limit_there_are_no_headers(serving: Serving) -> None:
    async with caller(serving) as client:
        for _ in range(4):
            _, headers = await push(client)
            assert not set(NAMES) & set(headers)


async def test_a_limit_of_the_environment_that_is_none_is_named(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_HTTP_REQUEST_LIMIT", "2")
    monkeypatch.setenv("WAYBILL_HTTP_REQUEST_WINDOW_S", "soon")
    app = BackendApp(Jobs(uri, results=False))
    with pytest.raises(ValueError, match="WAYBILL_HTTP_REQUEST_WINDOW_S must be a whole number from 1 to 86400"):
        await app.start()
    await app.close()


async def test_an_asgi_application_limits_too(clock: Clock, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_HTTP_REQUEST_LIMIT", "2")
    app = BackendApp(Jobs(uri, results=False))
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {"type": "http", "method": "GET", "path": "/ojs/manifest", "query_string": b""}
    for client in (["10.0.0.1", 7], ["10.0.0.2", 7], None):
        sent.clear()
        for _ in range(3):
            await app({**scope, "headers": [(b"host", b"localhost")], "client": client}, receive, send)
        starts = [one for one in sent if one["type"] == "http.response.start"]
        assert [one["status"] for one in starts] == [200, 200, 429]
        assert dict(starts[0]["headers"])[b"x-ratelimit-remaining"] == b"1"
    await app.close()
