"""Regions that answer slowly, with rubbish, with too much, or lead elsewhere: others take the jobs."""

from __future__ import annotations

import asyncio
import gzip

import msgspec
import pytest

from tests.federation.conftest import Answering, Hostile, layer_of, saying
from waybill.federation import connection


async def _silent(_body: bytes, writer: asyncio.StreamWriter) -> None:
    """Answer never."""


async def _drop(_body: bytes, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _trickle(_body: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n{")


async def _endless(_body: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
        await writer.drain()


async def _good(body: bytes, writer: asyncio.StreamWriter) -> None:
    await saying("201 Created" if b'"type"' in body else "200 OK", b'{"id":"x","jobs":[]}')(body, writer)


HOSTILE: dict[str, Answering] = {
    "silence": _silent,
    "cut": _drop,
    "trickle": _trickle,
    "endless": _endless,
    "redirect": saying("302 Found", b"", "Location: http://169.254.169.254/latest"),
    "rubbish": saying("201 Created", b"\xff<html>"),
    "array": saying("201 Created", b"[1,2]"),
    "nothing": saying("201 Created"),
    "deep": saying("201 Created", b'{"job":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "packed": saying("201 Created", gzip.compress(b'{"job":{}}'), "Content-Encoding: gzip"),
    "refusal of our key": saying("401 Unauthorized", b"{}"),
    "failure": saying("500 Internal Server Error", b"oops"),
    "no HTTP": saying("banana"),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_jobs_go_to_another_region(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr("waybill.federation.region.MAX_ANSWER_BYTES", 1 << 20)
    async with Hostile(HOSTILE[kind]) as bad, Hostile(_good) as other:
        entries = bad.entry("bad"), other.entry("good")
        async with layer_of(*entries, local_region="bad", request_timeout_seconds=0.2) as asking:
            assert await asking.region_of() == "good"
            region = asking.layer.regions.get("bad")
            assert region is not None
            assert region.breaker.failure_count >= 1
            # Fetches go on with those that answer sense.
            assert await asking.fetch() == []
            await asking.ask("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w"})
            assert (await asking.send("GET", "/ojs/federation/stats")).status == 200
            assert (await asking.send("GET", "/ojs/v1/dead-letter")).status == 200


async def test_jobs_that_make_no_sense_are_not_given_out() -> None:
    for body in (b'{"jobs":[1]}', b'{"jobs":[{"id":7}]}', b'{"jobs":{}}', b'{"jobs":[{"type":"a"}]}'):
        async with Hostile(saying("200 OK", body)) as bad, layer_of(bad.entry("bad")) as asking:
            error = (await asking.ask("POST", "/ojs/v1/workers/fetch", {"queues": ["default"]}, 503))["error"]
            assert "invalid jobs" in error["details"]["regions"]["bad"]


async def test_more_jobs_than_were_asked_for_are_put_back() -> None:
    async with Hostile(saying("200 OK", b'{"jobs":[{"id":"a"},{"id":"b"},{"id":"c"}]}')) as bad:
        async with layer_of(bad.entry("bad")) as asking:
            assert [job["id"] for job in await asking.fetch(count=1)] == ["a"]
        assert bad.requests == ["POST /ojs/v1/workers/fetch", *["POST /ojs/v1/workers/nack"] * 2]


async def test_jobs_are_put_back_one_after_another_while_the_region_takes_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An answer of 100,000 jobs made as many requests at once, and kept others waiting for 20 s."""
    jobs = msgspec.json.encode({"jobs": [{"id": f"job{number}"} for number in range(1000)]})

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        is_refused = b'"job_id":"job3"' in body
        await saying("500 No" if is_refused else "200 OK", b"{}" if b'"job_id"' in body else jobs)(body, writer)

    async with Hostile(answer) as bad:
        async with layer_of(bad.entry("bad")) as asking:
            assert [job["id"] for job in await asking.fetch(count=1)] == ["job0"]
            async with asyncio.timeout(30):
                while "job job3 and 996 others wait in bad" not in caplog.text:
                    await asyncio.sleep(0.01)
        assert bad.requests == ["POST /ojs/v1/workers/fetch", *["POST /ojs/v1/workers/nack"] * 3]


ODD: list[object] = [None, 7, -1.5, "x", [], {}, [[]], [{}], {"x": {}}, True]
NAMES = ("id", "job", "jobs", "errors", "items", "queues", "stats", "paused", "status", "state", "directive", "error")
BODIES = [{name: value} for name in (*NAMES, "jobs_extended") for value in ODD] + [
    {
        "jobs": [{"id": []}],
        "errors": [{"job_id": {}}],
        "queues": [{"name": []}, 7, {"name": "x"}],
        "stats": {"total": []},
    },
    {"job": {"id": {}}, "jobs_extended": [[], 7], "directive": [], "error": {"message": 7, "code": []}},
    {"jobs": [{"id": "x", "created_at": 7, "discarded_at": {}}, {"created_at": []}], "items": {}},
]
REQUESTS: list[tuple[str, str, object]] = [
    ("POST", "/ojs/v1/jobs", {"type": "a.b", "args": []}),
    ("POST", "/ojs/v1/jobs/batch", {"jobs": [{"type": "a.b", "args": []}, {"type": "a.b", "args": [1]}]}),
    ("GET", "/ojs/v1/jobs", None),
    ("GET", "/ojs/v1/jobs/x", None),
    ("POST", "/ojs/v1/workers/fetch", {"queues": ["default"], "count": 2}),
    ("POST", "/ojs/v1/workers/ack", {"job_id": "x"}),
    ("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "active_jobs": ["x"]}),
    ("GET", "/ojs/v1/queues/x/stats", None),
    ("POST", "/ojs/v1/queues/x/pause", {}),
    ("GET", "/ojs/v1/dead-letter", None),
    ("POST", "/ojs/v1/dead-letter/x/retry", {}),
    ("GET", "/ojs/federation/stats", None),
]


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "400 Bad Request", "204 No Content"])
async def test_odd_types_are_no_failure_of_ours(status: str) -> None:
    bodies = iter(msgspec.json.encode(body) for _ in REQUESTS for body in BODIES)

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        await saying(status, b"" if status.startswith("204") else next(bodies, b"{}"))(body, writer)

    breaker = {"failure_threshold": 1000}
    async with Hostile(answer) as bad, layer_of(bad.entry("bad"), circuit_breaker=breaker) as asking:
        for _ in BODIES[::4]:
            for method, path, body in REQUESTS:
                response = await asking.send(method, path, body)
                assert response.status != 500, (method, path, response.body)


async def test_odd_requests_are_no_failure_of_ours() -> None:
    async with Hostile(_good) as other, layer_of(other.entry("good")) as asking:
        names = ("id", "type", "args", "meta", "metadata", "options", "queue", "tags", "jobs", "job_id", "worker_id")
        more = ("queues", "count", "wait_ms", "active_jobs", "active_job_ids")
        nested = [{"options": {name: value}} for name in ("id", "meta", "queue", "tags") for value in ODD]
        attributes = ("federation_id", "region", "region_affinity", "source_region", "routed_at")
        nested += [{"meta": {f"ojs.federation.{name}": value}} for name in attributes for value in ODD]
        for odd in [{name: value} for name in names + more for value in ODD] + nested:
            for method, path, body in (*REQUESTS, ("POST", "/v1/federation/route", {})):
                if isinstance(body, dict):
                    given = {**body, **odd}
                    sent = {"jobs": [given]} if path.endswith("batch") else given
                    response = await asking.send(method, path, sent)
                    assert response.status != 500, (path, sent, response.body)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n" + b'{"status":"degraded"}', "degraded"),
        (b"HTTP/1.1 503 Gone\r\nContent-Length: 2\r\n\r\n{}", "503"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "without a status"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b" " * 100_000, "more than 65536 bytes"),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n", "leads elsewhere"),
    ],
)
async def test_a_bad_health_check_is_no_health(answer: bytes, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.federation.conftest.OK", answer)
    async with Hostile(_silent) as bad, layer_of(bad.entry("bad")) as asking:
        found = (await asking.ask("GET", "/v1/federation/regions"))["regions"][0]
        assert (found["status"], found["latency_ms"]) == ("unhealthy", None)
        assert problem in found["problem"]
        assert (await asking.ask("GET", "/v1/federation/health"))["status"] == "unhealthy"
        assert (await asking.ask("GET", "/ojs/v1/health", status=503))["status"] == "degraded"
        assert bad.requests == []
