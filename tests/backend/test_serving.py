"""The server behind a socket: what is odd on the wire gets an answer, too."""

from __future__ import annotations

import asyncio

import msgspec

from tests.backend.conftest import jobs_of_own_broker
from waybill.backend.server.limits import MAX_BODY_BYTES
from waybill.backend.serving import Serving


async def exchange(serving: Serving, *parts: bytes, answers: int = 1) -> list[tuple[int, bytes]]:
    """Send bytes as they are, and read so many answers."""
    port = int(serving.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        found: list[tuple[int, bytes]] = []
        while len(found) < answers:
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            if status == 100:
                continue
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            size = int(lengths[0].partition(b":")[2]) if lengths else 0
            found.append((status, await reader.readexactly(size)))
        return found
    finally:
        writer.close()


def post(path: str, body: bytes, more: str = "") -> bytes:
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}"
    return f"POST {path} HTTP/1.1\r\n{fields}\r\n".encode() + body


JOB = msgspec.json.encode({"type": "email.send", "args": []})


async def test_requests_come_in_every_way(serving: Serving) -> None:
    whole = post("/ojs/v1/jobs", JOB)
    assert (await exchange(serving, whole))[0][0] == 201
    assert (await exchange(serving, *(whole[i : i + 1] for i in range(len(whole)))))[0][0] == 201
    assert [status for status, _ in await exchange(serving, whole * 3, answers=3)] == [201] * 3
    chunked = b"POST /ojs/v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"%x\r\n%s\r\n0\r\n\r\n" % (len(JOB), JOB)
    assert (await exchange(serving, chunked))[0][0] == 201
    expecting = post("/ojs/v1/jobs", JOB, "Expect: 100-continue\r\n")
    assert (await exchange(serving, expecting))[0][0] == 201


async def test_what_is_odd_gets_the_right_status(serving: Serving) -> None:
    large = b'"' + b"x" * MAX_BODY_BYTES + b'"'
    status, body = (await exchange(serving, post("/ojs/v1/jobs", large)))[0]
    assert (status, msgspec.json.decode(body)["error"]["code"]) == (413, "payload_too_large")
    for request, expected in (
        (b"BREW /ojs/v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /ojs/v1/jobs?limit=x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /ojs/v1/jobs?" + b"&".join([b"a=b"] * 500) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"no http at all\r\n\r\n", 400),
    ):
        assert (await exchange(serving, request))[0][0] == expected, request
    port = int(serving.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HEAD /ojs/manifest HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head = await reader.read()
    assert head.startswith(b"HTTP/1.1 200")
    assert head.endswith(b"\r\n\r\n")
    writer.close()


async def test_a_reset_empties_a_server_in_a_test(serving: Serving) -> None:
    assert (await exchange(serving, post("/ojs/v1/jobs", JOB)))[0][0] == 201
    assert (await exchange(serving, post("/ojs/v1/admin/reset", b"")))[0][0] == 200
    fetch = post("/ojs/v1/workers/fetch", b'{"queues": ["default"]}')
    assert msgspec.json.decode((await exchange(serving, fetch))[0][1])["jobs"] == []


async def test_no_other_server_can_be_emptied() -> None:
    async with Serving(jobs_of_own_broker, "127.0.0.1", 0) as serving:
        assert (await exchange(serving, post("/ojs/v1/admin/reset", b"")))[0][0] == 404
