"""Compressed bodies: of requests, with a limit against bombs, and of large answers."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

import msgspec
import pytest
from backports import zstd

from tests.backend.conftest import Client
from waybill.backend import compression
from waybill.backend.application import Application
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import OPEN, Route
from waybill.backend.server.limits import MAX_BATCH_BYTES, MAX_BODY_BYTES
from waybill.backend.shortcut import Take

LARGE = {"items": ["abc"] * 10_000}
GZIP = {"content-encoding": "gzip"}


async def _size(request: Request) -> Response:
    return answer({"size": len(request.body)})


async def _large(_request: Request) -> Response:
    return answer(LARGE)


async def _small(_request: Request) -> Response:
    return answer({"ok": True})


async def _encoded(_request: Request) -> Response:
    return Response(200, b"x" * 10_000, [("Content-Encoding", "br")])


def _shortened(_request: Request) -> Take | None:
    raise AssertionError


ROUTES = [
    Route("POST", "/size", _size, OPEN, shorten=_shortened),
    Route("POST", "/ojs/v1/jobs/batch", _size, OPEN),
    Route("POST", "/large", _large, OPEN),
    Route("GET", "/large", _large, OPEN),
    Route("GET", "/small", _small, OPEN),
    Route("GET", "/encoded", _encoded, OPEN),
]


async def post(body: bytes, coding: str = "gzip", path: str = "/size") -> tuple[int, Any]:
    response = await Application(ROUTES).handle(Request("POST", path, {}, {"content-encoding": coding}, body))
    found = msgspec.json.decode(response.body)
    return response.status, found.get("size") or found["error"]["code"]


async def test_a_compressed_body_is_decompressed() -> None:
    whole = b'{"a": 1}'
    for coding in ("gzip", "x-gzip", " GZip "):
        assert await post(gzip.compress(whole), coding) == (200, len(whole))
    assert await post(gzip.compress(whole) + gzip.compress(whole)) == (200, 2 * len(whole))
    assert await post(zstd.compress(whole), "zstd") == (200, len(whole))
    assert await post(zstd.compress(whole) + zstd.compress(whole), "ZSTD") == (200, 2 * len(whole))
    assert await post(whole, "identity") == (200, len(whole))
    assert await post(gzip.compress(b"x" * MAX_BODY_BYTES)) == (200, MAX_BODY_BYTES)
    assert await post(gzip.compress(b"x" * MAX_BATCH_BYTES), path="/ojs/v1/jobs/batch") == (200, MAX_BATCH_BYTES)


async def test_a_body_is_decompressed_no_further_than_the_limit() -> None:
    zeros = b"\0" * (8 * MAX_BODY_BYTES)
    assert await post(gzip.compress(zeros)) == (413, "payload_too_large")
    assert await post(zstd.compress(zeros), "zstd") == (413, "payload_too_large")
    assert await post(gzip.compress(b"x" * MAX_BODY_BYTES) + gzip.compress(b"x")) == (413, "payload_too_large")
    assert await post(gzip.compress(b"\0" * MAX_BATCH_BYTES) * 2, path="/ojs/v1/jobs/batch") == (
        413,
        "payload_too_large",
    )


@pytest.mark.parametrize(
    "body", [b"{}", gzip.compress(b"{}", mtime=0)[:-3], gzip.compress(b"{}", mtime=0) + b"x", zlib.compress(b"{}")]
)
async def test_a_body_that_is_not_compressed_as_it_says_is_refused(body: bytes) -> None:
    assert await post(body) == (400, "invalid_payload")


@pytest.mark.parametrize(
    "body", [b"{}", zstd.compress(b"{}")[:-3], zstd.compress(b"{}") + b"x", gzip.compress(b"{}", mtime=0)]
)
async def test_a_body_that_is_not_in_zstd_is_refused(body: bytes) -> None:
    assert await post(body, "zstd") == (400, "invalid_payload")


async def test_a_frame_with_a_large_window_is_refused() -> None:
    """Its decompressor takes the whole window at once."""
    wide: dict[int, int] = {zstd.CompressionParameter.window_log: 24, zstd.CompressionParameter.content_size_flag: 0}
    packer = zstd.ZstdCompressor(options=wide)
    body = packer.compress(b"{}" * 10) + packer.flush()
    assert zstd.decompress(body) == b"{}" * 10
    assert await post(body, "zstd") == (400, "invalid_payload")


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "é"])
async def test_another_coding_is_refused(coding: str) -> None:
    assert await post(b"{}", coding) == (415, "UNSUPPORTED_COMPRESSION")


async def test_decompressed_bodies_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MOST_INFLATED_BYTES", 1500)
    going = asyncio.Event()

    async def wait(request: Request) -> Response:
        await going.wait()
        return answer({"size": len(request.body)})

    application = Application([Route("POST", "/size", wait, OPEN)])
    body = gzip.compress(b"x" * 1000)
    asked = [asyncio.ensure_future(application.handle(Request("POST", "/size", {}, GZIP, body))) for _ in range(2)]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert [one.result().status for one in done] == [503]
    going.set()
    assert sorted([(await one).status for one in asked]) == [200, 503]
    assert (await application.handle(Request("POST", "/size", {}, GZIP, body))).status == 200


async def test_a_large_answer_is_compressed_for_clients_that_accept_it() -> None:
    async def get(accept: str, path: str = "/large", method: str = "GET") -> tuple[Response, str | None]:
        response = await Application(ROUTES).handle(Request(method, path, {}, {"accept-encoding": accept}))
        return response, dict(response.headers).get("Content-Encoding")

    for accept in ("gzip", "gzip, deflate, br", "br;q=1, gzip;q=0.5", "*", "x-gzip"):
        response, coding = await get(accept)
        assert (coding, dict(response.headers)["Vary"]) == ("gzip", "Accept-Encoding")
        assert msgspec.json.decode(gzip.decompress(response.body)) == LARGE
        assert len(response.body) < 1000
    for accept in ("", "identity", "gzip;q=0", "gzip;q=0.000, *", "br"):
        response, coding = await get(accept)
        assert (coding, msgspec.json.decode(response.body)) == (None, LARGE)
    assert (await get("gzip", "/small"))[1] is None
    assert (await get("gzip", method="POST"))[1] is None
    assert (await get("gzip", "/encoded"))[1] == "br"


async def test_jobs_are_pushed_compressed(client: Client) -> None:
    body = gzip.compress(msgspec.json.encode({"type": "email.send", "args": ["x"], "queue": "email"}))
    request = Request("POST", "/ojs/v1/jobs", {}, GZIP | {"content-type": "application/json"}, body)
    assert client.application.shortcut(request) is None
    response = await client.application.handle(request)
    assert (response.status, msgspec.json.decode(response.body)["job"]["args"]) == (201, ["x"])
    manifest = await client.ask("GET", "/ojs/manifest")
    assert manifest["payload_limits"]["supported_compression"] == ["gzip", "zstd"]


async def test_a_body_of_many_members_is_refused() -> None:
    """Each member took a copy of all that follow it: 16 MiB of empty ones took minutes."""
    member = gzip.compress(b"x")
    assert await post(member * compression.MOST_MEMBERS) == (200, compression.MOST_MEMBERS)
    assert await post(member * (compression.MOST_MEMBERS + 1)) == (400, "invalid_payload")
