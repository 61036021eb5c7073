"""Requests that repeat a head are answered from their bodies alone, as the application would answer them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import jobs_of_own_broker
from tests.backend.test_quick import DEEP, PUSHES, _same
from waybill.backend import push_flight
from waybill.backend.application import Application
from waybill.backend.keys import Key, KeyRing, hash_of
from waybill.backend.message import Request
from waybill.backend.push_checks import QueueBound
from waybill.backend.push_flight import PushFlight
from waybill.backend.server.connections import NO_SHORTCUT, Connections
from waybill.backend.serving import Serving

CHANGING = (b"date", b"x-request-id", b"location", b"content-length")


class Caller:
    """A client with one connection, and how many of its requests came to the application."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def post(self, path: str, body: object, more: str = "") -> tuple[int, dict[bytes, bytes], Any]:
        self.send(path, body, more)
        return await self.read()

    def send(self, path: str, body: object, more: str = "") -> None:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n{more}"
        self._writer.write(f"POST {path} HTTP/1.1\r\n{fields}\r\n".encode() + raw)

    async def read(self) -> tuple[int, dict[bytes, bytes], Any]:
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).rstrip().split(b"\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
        body = await self._reader.readexactly(int(headers[b"content-length"]))
        return int(status.split()[1]), headers, msgspec.json.decode(body)

    async def at_end(self) -> bytes:
        return await self._reader.read()


@asynccontextmanager
async def caller(serving: Serving) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(serving.url.rpartition(":")[2]))
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of requests that the application was given."""
    found: list[str] = []
    begin = Application.begin

    def noted(application: Application, request: Request) -> object:
        found.append(request.path)
        return begin(application, request)

    monkeypatch.setattr(Application, "begin", noted)
    return found


async def _outcomes(serving: Serving, more: str = "") -> list[object]:
    """What comes of many pushes, each sent so often that the last one may take a shortcut."""
    found: list[object] = []
    bodies: list[tuple[str, object]] = [("/ojs/v1/jobs", one) for one in PUSHES + DEEP if "unique" not in str(one)]
    bodies += [("/ojs/v1/jobs/batch", {"jobs": PUSHES[:6]}), ("/ojs/v1/jobs/batch", {"jobs": []})]
    bodies += [("/ojs/v1/jobs/batch", {"jobs": [PUSHES[0], one]}) for one in DEEP[:6]]
    bodies += [("/ojs/v1/jobs", one) for one in (b"{", b"[]", b'{"type":"a.b","args":["\xff"]}', b"null")]
    async with caller(serving) as client:
        for queue in ("default", "q", "z"):
            await client.post("/ojs/v1/jobs", {"type": "a.b", "args": [], "options": {"queue": queue}})
        for path, body in bodies:
            for _ in range(3):
                status, headers, told = await client.post(path, body, more)
            told.pop("error", {}).pop("request_id", None)
            shown = {name: value for name, value in headers.items() if name not in CHANGING}
            jobs = [_same(one) for one in told.get("jobs", [])]
            assert (b"location" in headers) == (status == 201 and "id" in told)
            found.append((status, shown, _same(told), _same(told.get("job")), jobs))
    return found


async def test_shortcuts_answer_as_the_application_does(
    serving: Serving, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = await _outcomes(serving)
    short_count = len(begun)
    monkeypatch.setattr(Connections, "find_shortcut", lambda *_: NO_SHORTCUT)
    assert serving._server is not None
    serving._server.connections.shortcuts.clear()
    begun.clear()
    usual = await _outcomes(serving)
    for first, second in zip(short, usual, strict=True):
        assert first == second
    # Of the usual ones, only those whose heads were new.
    assert len(begun) - short_count >= 7


async def test_a_client_names_its_requests(serving: Serving, begun: list[str]) -> None:
    async with caller(serving) as client:
        answers = [await client.post("/ojs/v1/jobs", PUSHES[0], "X-Request-ID: mine\r\n") for _ in range(4)]
        assert [headers[b"x-request-id"] for _, headers, _ in answers] == [b"mine"] * 4
        assert len(begun) < 4
        answers = [await client.post("/ojs/v1/jobs", PUSHES[0]) for _ in range(4)]
        assert len({headers[b"x-request-id"] for _, headers, _ in answers}) == 4
        answers = [await client.post("/ojs/v1/jobs", PUSHES[0], "X-Request-ID: \xe9\r\n") for _ in range(4)]
        assert len({headers[b"x-request-id"] for _, headers, _ in answers}) == 4
        assert {status for status, _, _ in answers} == {201}
        [python] = {
            headers[b"content-type"]
            for _, headers, _ in [
                await client.post("/ojs/v1/jobs", PUSHES[0], "User-Agent: python-httpx/1\r\n") for _ in range(4)
            ]
        }
        assert b'alt="application/json"' in python


async def test_pipelined_requests_and_those_in_pieces_are_answered_in_order(serving: Serving) -> None:
    async with caller(serving) as client:
        for _ in range(3):
            await client.post("/ojs/v1/jobs", PUSHES[0])
        for number in range(5):
            client.send("/ojs/v1/jobs", {"type": "a.b", "args": [number]})
        client.send("/ojs/v1/jobs", {"type": "a.b", "args": {}})
        answers = [await client.read() for _ in range(6)]
        assert [told["job"]["args"] for _, _, told in answers[:5]] == [[number] for number in range(5)]
        assert answers[5][0] in {400, 422}
        body = msgspec.json.encode(PUSHES[0])
        for end in (10, len(body) - 1):
            fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            raw = f"POST /ojs/v1/jobs HTTP/1.1\r\n{fields}\r\n".encode() + body
            client._writer.write(raw[:end])
            await client._writer.drain()
            await asyncio.sleep(0)
            client._writer.write(raw[end:])
            assert (await client.read())[0] == 201


async def test_settings_and_other_heads_take_no_shortcut(serving: Serving, begun: list[str]) -> None:
    async with caller(serving) as client:
        for _ in range(4):
            assert (await client.post("/ojs/v1/jobs", PUSHES[0]))[0] == 201
        assert len(begun) < 4
        begun.clear()
        for more in ("Idempotency-Key: k\r\n", "X-OJS-Tenant: t\r\n"):
            answers = [await client.post("/ojs/v1/jobs", PUSHES[0], more) for _ in range(4)]
            assert {status for status, _, _ in answers} == {201}
        assert len(begun) == 8
        backend = serving._backend
        assert backend is not None
        backend.extensions.push_checks.bounds.known["default"] = QueueBound(1)
        assert (await client.post("/ojs/v1/jobs", PUSHES[0]))[0] == 429


async def test_keys_are_checked_once_for_a_head(begun: list[str]) -> None:
    keys = KeyRing([Key("a", "operate", hash_of("good")), Key("t", "operate", hash_of("theirs"), "shop")])
    async with Serving(jobs_of_own_broker, "127.0.0.1", 0, keys=keys) as serving, caller(serving) as client:
        for text, status in (("good", 201), ("bad", 401), ("theirs", 201), ("good", 201)):
            begun.clear()
            for _ in range(4):
                answer = await client.post("/ojs/v1/jobs", PUSHES[0], f"Authorization: Bearer {text}\r\n")
                assert answer[0] == status
            assert len(begun) == (4 if text != "good" else len(begun))
        assert not begun


async def test_another_application_has_shortcuts_of_its_own(serving: Serving) -> None:
    async with caller(serving) as client:
        ids = [(await client.post("/ojs/v1/jobs", PUSHES[0]))[2]["id"] for _ in range(4)]
        assert (await client.post("/ojs/v1/admin/reset", {}))[0] == 200
        again = [(await client.post("/ojs/v1/jobs", PUSHES[0]))[2]["id"] for _ in range(4)]
        assert not set(ids) & set(again)
        assert serving._backend is not None
        assert await serving._backend.view.knows(again, 1.0)
        assert not serving._backend.view.knows_now(ids)


@pytest.mark.plain_source
async def test_what_fails_in_a_shortcut_is_answered(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_flight: PushFlight) -> bool:
        raise ArithmeticError("wrong")

    async with caller(serving) as client:
        for _ in range(3):
            await client.post("/ojs/v1/jobs", PUSHES[0])
        with monkeypatch.context() as patch:
            patch.setattr(PushFlight, "_published", fail)
            status, _, told = await client.post("/ojs/v1/jobs", PUSHES[0])
            assert (status, told["error"]["code"]) == (500, "backend_error")
        with monkeypatch.context() as patch:
            patch.setattr(push_flight, "traceparents", fail)
            status, _, told = await client.post("/ojs/v1/jobs", PUSHES[0])
            assert (status, told["error"]["code"]) == (500, "backend_error")
        assert (await client.post("/ojs/v1/jobs", PUSHES[0]))[0] == 201


async def test_a_closing_server_says_so(serving: Serving) -> None:
    async with caller(serving) as client:
        for _ in range(3):
            await client.post("/ojs/v1/jobs", PUSHES[0])
        assert serving._server is not None
        client.send("/ojs/v1/jobs", PUSHES[0])
        serving._server.connections.is_closing = True
        status, headers, _ = await client.read()
        assert (status, headers[b"connection"]) == (201, b"close")
        assert await client.at_end() == b""
        serving._server.connections.is_closing = False


async def _acked(serving: Serving, result: object, **fields: object) -> list[object]:
    """Push, fetch and acknowledge jobs over one connection; what the acks answer, and what a second ack does."""
    found: list[object] = []
    async with caller(serving) as client:
        for _ in range(4):
            await client.post("/ojs/v1/jobs", {"type": "a.b", "args": ["é"]})
            job = (await client.post("/ojs/v1/workers/fetch", {"queues": ["default"], "worker_id": "w"}))[2]["jobs"][0]
            ack = {"job_id": job["id"], "worker_id": "w", "result": result, **fields}
            for _ in range(2):
                status, headers, told = await client.post("/ojs/v1/workers/ack", ack)
                shown = {name: value for name, value in headers.items() if name not in CHANGING}
                ended = told.get("job")
                found.append((status, shown, sorted(told), _same(ended), told.get("error", {}).get("code")))
                if ended is not None:
                    assert (ended["id"], told["completed_at"]) == (job["id"], ended["completed_at"])
            if status == 409 and found[-2][0] != 200:  # type: ignore[index]
                await client.post("/ojs/v1/workers/ack", {"job_id": job["id"]})
    return found


async def test_acks_are_answered_as_the_application_does(
    serving: Serving, begun: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: list[tuple[object, dict[str, object]]] = [
        (None, {}),
        ({"ok": [1, "é"]}, {}),
        ("x", {"attempt": 1}),
        ("x", {"attempt": 2}),
        ("x", {"worker_id": "another"}),
        ("x", {"more": 1}),
    ]
    short = [await _acked(serving, result, **fields) for result, fields in cases]
    acks = begun.count("/ojs/v1/workers/ack")
    monkeypatch.setattr(Connections, "find_shortcut", lambda *_: NO_SHORTCUT)
    assert serving._server is not None
    serving._server.connections.shortcuts.clear()
    begun.clear()
    usual = [await _acked(serving, result, **fields) for result, fields in cases]
    for first, second in zip(short, usual, strict=True):
        assert first == second
    assert begun.count("/ojs/v1/workers/ack") - acks >= 6
