"""WebSockets: channels of jobs, queues and all events (ojs-realtime section 3), over our server and over ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest

from tests.backend.conftest import Client, jobs_of_own_broker
from waybill.backend import socket_channels
from waybill.backend.asgi import AsgiApplication
from waybill.backend.keys import add_key, read_keys
from waybill.backend.server import web_socket
from waybill.backend.server.turns import Turns
from waybill.backend.server.web_socket import WebSocket
from waybill.backend.serving import Serving
from waybill.backend.socket_channels import ChannelRoom, SocketChannels

PATH = "/ojs/v1/ws"
SHAKE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
KEY = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}


@asynccontextmanager
async def connected(serving: Serving, **headers: str) -> AsyncIterator[tuple[Any, Any]]:
    async with (
        aiohttp.ClientSession(serving.url, headers=headers) as http,
        http.ws_connect(PATH, protocols=["ojs.v1"]) as socket,
    ):
        yield socket, http


async def push(http: Any, queue: str = "email") -> str:
    body = {"type": "email.send", "args": [], "options": {"queue": queue}}
    async with http.post("/ojs/v1/jobs", json=body) as response:
        found: str = (await response.json(content_type=None))["job"]["id"]
        return found


async def post(http: Any, path: str, body: object) -> None:
    async with http.post(f"/ojs/v1/{path}", json=body) as response:
        assert response.status == 200, await response.text()


async def run(http: Any, queue: str = "email") -> None:
    await post(http, "workers/fetch", {"queues": [queue], "worker_id": "w1"})


async def subscribe(socket: Any, channel: str, **fields: object) -> Any:
    await socket.send_json({"action": "subscribe", "channel": channel, **fields})
    return await socket.receive_json()


async def test_a_client_follows_a_queue_and_a_job(serving: Serving) -> None:
    async with connected(serving) as (socket, http):
        assert socket.protocol == "ojs.v1"
        job_id = await push(http)
        assert await subscribe(socket, "queue:email") == {"type": "subscribed", "channel": "queue:email"}
        await run(http)
        told = await socket.receive_json()
        assert {name: told[name] for name in ("type", "channel", "event")} == {
            "type": "event",
            "channel": "queue:email",
            "event": "job.state_changed",
        }
        data = told["data"]
        assert (data["job_id"], data["queue"], data["type"]) == (job_id, "email", "email.send")
        assert (data["from"], data["to"], data["timestamp"]) == ("available", "active", told["timestamp"])
        assert told["id"].startswith("evt_")
        filtered = {"type": "subscribed", "channel": "queue:email", "event_types": ["job.progress"]}
        assert await subscribe(socket, "queue:email", event_types=["job.progress"]) == filtered
        async with http.put(f"/ojs/v1/jobs/{job_id}/progress", json={"progress": 0.5, "message": "half"}):
            pass
        told = await socket.receive_json()
        assert (told["event"], told["data"]["progress"], told["data"]["message"]) == ("job.progress", 50, "half")
        await post(http, "workers/ack", {"job_id": job_id})
        await socket.send_json({"action": "unsubscribe", "channel": "queue:email"})
        assert await socket.receive_json() == {"type": "unsubscribed", "channel": "queue:email"}
        assert (await subscribe(socket, f"job:{job_id}"))["type"] == "subscribed"
        told = await socket.receive_json()
        assert (told["channel"], told["data"]["to"]) == (f"job:{job_id}", "completed")


async def test_all_events_are_a_channel(serving: Serving) -> None:
    async with connected(serving) as (socket, http):
        await subscribe(socket, "all", event_types=["job.state_changed", "queue.paused"])
        job_id = await push(http, "other")
        assert (await socket.receive_json())["data"]["job_id"] == job_id
        async with http.post("/ojs/v1/queues/other/pause"):
            pass
        told = await socket.receive_json()
        assert (told["event"], told["data"]["queue"]) == ("queue.paused", "other")


async def test_the_events_themselves_are_a_channel(serving: Serving) -> None:
    """ojs-events section 6.2."""
    async with connected(serving) as (socket, http):
        chosen = {"event_types": ["job.enqueued", "job.started"], "queues": ["email"], "job_types": ["email.send"]}
        first = await subscribe(socket, "events", filter=chosen)
        second = await subscribe(socket, "events", filter={"event_types": ["queue.paused"]})
        assert [(one["action"], one["channel"]) for one in (first, second)] == [("subscribed", "events")] * 2
        assert first["subscription_id"] != second["subscription_id"]
        await push(http, "other")
        job_id = await push(http)
        told = await socket.receive_json()
        assert (told["specversion"], told["type"], told["subject"]) == ("1.0", "job.enqueued", job_id)
        assert told["id"].startswith("evt_")
        assert told["source"].startswith("ojs://")
        # The arguments of a job are for those who may read it.
        assert told["data"] == {"job_type": "email.send", "queue": "email", "priority": 0}
        await run(http)
        assert (await socket.receive_json())["type"] == "job.started"
        await socket.send_json({"action": "unsubscribe", "subscription_id": first["subscription_id"]})
        assert await socket.receive_json() == {"action": "unsubscribed", "subscription_id": first["subscription_id"]}
        await push(http)
        async with http.post("/ojs/v1/queues/email/pause"):
            pass
        assert (await socket.receive_json())["type"] == "queue.paused"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no", "invalid_payload"),
        ("[]", "invalid_payload"),
        ('{"action": "sing", "channel": "all"}', "invalid_request"),
        ('{"action": "subscribe"}', "invalid_request"),
        ('{"action": "subscribe", "channel": "queue:"}', "invalid_request"),
        ('{"action": "subscribe", "channel": "thing:7"}', "invalid_request"),
        ('{"action": "subscribe", "channel": "all", "event_types": 7}', "invalid_request"),
        ('{"action": "subscribe", "channel": "events", "filter": 7}', "invalid_request"),
        ('{"action": "subscribe", "channel": "events", "filter": {"queues": 7}}', "invalid_request"),
        ('{"action": "subscribe", "channel": "job:019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"}', "not_found"),
        ('{"action": "subscribe", "channel": "queue:nothing"}', "not_found"),
        ('{"action": "resume", "last_event_id": 7}', "invalid_request"),
        ('{"action": "resume", "last_event_id": "evt_0042"}', "unknown_event_id"),
    ],
)
async def test_a_wrong_message_is_answered_with_an_error(serving: Serving, message: str, code: str) -> None:
    async with connected(serving) as (socket, _):
        await socket.send_str(message)
        told = await socket.receive_json()
        assert (told["type"], told["code"], bool(told["message"])) == ("error", code, True)
        assert (await subscribe(socket, "all"))["type"] == "subscribed"


async def test_a_client_that_reconnects_gets_what_it_has_missed(serving: Serving) -> None:
    async with connected(serving) as (socket, http):
        await push(http)
        await subscribe(socket, "queue:email")
        first = await push(http)
        seen = await socket.receive_json()
        assert seen["data"]["job_id"] == first
    async with connected(serving) as (socket, http):
        missed = await push(http)
        await push(http, "other")
        await socket.send_json({"action": "resume", "last_event_id": seen["id"]})
        assert (await socket.receive_json())["type"] == "resumed"
        assert (await subscribe(socket, "queue:email"))["type"] == "subscribed"
        assert (await socket.receive_json())["data"]["job_id"] == missed


async def test_channels_have_a_limit(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_channels, "MOST_CHANNELS", 1)
    async with connected(serving) as (socket, http):
        await push(http)
        assert [(await subscribe(socket, name))["type"] for name in ("all", "queue:email", "all")] == [
            "subscribed",
            "error",
            "subscribed",
        ]


async def test_the_channels_of_all_clients_have_a_limit(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hundred clients with a hundred channels each took 300 MB."""
    monkeypatch.setattr(socket_channels, "ROOM_BYTES", 2 * socket_channels.CHANNEL_BYTES + 1000)
    async with connected(serving) as (one, _), connected(serving) as (other, _):
        assert [(await subscribe(one, "events"))["type"] for _ in range(3)] == ["subscribed", "subscribed", "error"]
        assert (await subscribe(other, "events", event_types=["x" * 5000]))["code"] == "overloaded"
        assert (await subscribe(other, "events"))["type"] == "subscribed"
        await one.close()
        async with asyncio.timeout(20):
            while (await subscribe(other, "all"))["type"] == "error":
                await asyncio.sleep(0.01)


async def test_what_a_client_has_missed_is_sent_in_turns(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with a hundred channels that resumed kept others waiting for 0.9 s at each message."""
    monkeypatch.setattr(socket_channels, "PORTION_SECONDS", 0.0)
    await client.push()
    recent, sent = client.backend.events, [0]
    async with asyncio.timeout(20):
        while not recent.seen_count:
            await asyncio.sleep(0.01)
    found = recent.events_of(0)
    assert found
    first = found[0].id
    await client.ask("POST", "/ojs/v1/jobs/batch", {"jobs": [{"type": "a.b", "args": []}] * 50}, 201)

    class Reader:
        async def receive(self) -> str:
            await asyncio.get_running_loop().create_future()
            return ""

        async def until_writable(self) -> None:
            """Go on."""

        async def send(self, _text: str) -> None:
            sent[-1] += 1

        async def close(self, code: int) -> None:
            """Go on."""

    channels = SocketChannels(client.backend, Reader(), "", ChannelRoom())
    for _ in range(4):
        await channels._obey('{"action": "subscribe", "channel": "events"}')
    resuming = asyncio.ensure_future(channels._obey(json.dumps({"action": "resume", "last_event_id": first})))
    while not resuming.done():
        sent.append(0)
        await asyncio.sleep(0)
    assert sum(sent) >= 4 * 50
    assert max(sent[5:]) <= 4
    channels._room.end(channels._tasks.values(), recent.steps)


async def test_what_is_no_handshake_is_refused(serving: Serving) -> None:
    async with aiohttp.ClientSession(serving.url) as http:
        for headers, status in (
            ({}, 426),
            (SHAKE, 400),
            (SHAKE | KEY | {"Sec-WebSocket-Key": "short"}, 400),
            (SHAKE | KEY | {"Sec-WebSocket-Version": "8"}, 426),
            (SHAKE | KEY | {"Origin": "https://evil.example"}, 403),
        ):
            async with http.get(PATH, headers=headers) as response:
                assert response.status == status, headers
        async with http.get("/ojs/v1/health") as response:
            assert response.status == 200


async def test_frames_that_break_the_protocol_end_the_connection(serving: Serving) -> None:
    parts = urlsplit(serving.url)
    for frame in (b"\x81\x02no", b"\xff\x80aaaa", b"\x82\x82aaaa" + b"no"):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        lines = "".join(f"{name}: {value}\r\n" for name, value in (SHAKE | KEY | {"Host": parts.netloc}).items())
        writer.write(f"GET {PATH} HTTP/1.1\r\n{lines}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"101 Switching Protocols" in head
        assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
        writer.write(frame)
        assert (await reader.read())[:1] == b"\x88"
        writer.close()


async def test_a_large_message_is_refused(serving: Serving) -> None:
    async with connected(serving) as (socket, _):
        await socket.send_str("x" * 70_000)
        assert (await socket.receive()).data == 1009


async def test_parts_without_text_do_not_add_up(serving: Serving) -> None:
    parts = urlsplit(serving.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    lines = "".join(f"{name}: {value}\r\n" for name, value in (SHAKE | KEY | {"Host": parts.netloc}).items())
    writer.write(f"GET {PATH} HTTP/1.1\r\n{lines}\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"\x01\x80aaaa" + b"\x00\x80aaaa" * 10_000)
    assert (await reader.readexactly(4))[2:] == (1009).to_bytes(2)
    writer.close()


class Wire(asyncio.Transport):
    """A transport that counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Go on."""

    def resume_reading(self) -> None:
        """Go on."""

    def close(self) -> None:
        """Go on."""


async def test_small_frames_wait_for_later_turns() -> None:
    """One read of 256 KiB took 0.3 s."""
    wire = Wire()
    socket = WebSocket(wire, lambda: None, Turns(0.004), "127.0.0.1")
    socket.data_received(b"\x89\x80aaaa" * 40_000)
    before = turns = 0
    while wire.written < 80_000:
        await asyncio.sleep(0)
        assert wire.written - before <= web_socket.PIECE_BYTES
        before = wire.written
        turns += 1
    assert turns >= 100
    socket.end(1000)


async def test_a_client_that_does_not_answer_pings_is_disconnected(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_socket, "PING_SECONDS", 0.05)
    monkeypatch.setattr(web_socket, "PONG_SECONDS", 0.05)
    async with aiohttp.ClientSession(serving.url) as http:
        async with http.ws_connect(PATH, autoping=False) as socket:
            assert (await socket.receive()).type is aiohttp.WSMsgType.PING
            assert (await socket.receive()).type in {aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR}
        monkeypatch.setattr(web_socket, "PONG_SECONDS", 60)
        async with http.ws_connect(PATH, autoping=False) as socket:
            for _ in range(3):
                assert (await socket.receive()).type is aiohttp.WSMsgType.PING
                await socket.pong()


async def test_a_server_that_ends_tells_its_clients() -> None:
    async with Serving(jobs_of_own_broker, "127.0.0.1", 0) as serving, connected(serving) as (socket, _):
        await subscribe(socket, "all")
        closing = asyncio.create_task(serving.close())
        kinds = [(await socket.receive()).type async for _ in _twice()]
        assert aiohttp.WSMsgType.CLOSE in kinds
        await closing


async def _twice() -> AsyncIterator[None]:
    for _ in range(2):
        yield


async def test_a_tenant_sees_its_queues_only(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    tenant, admin = add_key(path, "acme", "operate", tenant="acme"), add_key(path, "root", "admin")
    async with Serving(jobs_of_own_broker, "127.0.0.1", 0, keys=read_keys(path)) as serving:
        async with connected(serving, **{"X-API-Key": admin}) as (_, root):
            foreign = await push(root, "email")
            async with connected(serving, **{"X-API-Key": tenant}) as (socket, http):
                assert (await subscribe(socket, f"job:{foreign}"))["code"] == "not_found"
                assert (await subscribe(socket, "queue:email"))["code"] == "not_found"
                await subscribe(socket, "all")
                await push(root, "email")
                own = await push(http, "email")
                told = await socket.receive_json()
                assert (told["data"]["job_id"], told["data"]["queue"]) == (own, "email")
                assert (await subscribe(socket, "queue:email"))["type"] == "subscribed"
        async with aiohttp.ClientSession(serving.url) as http, http.get(PATH, headers=SHAKE | KEY) as response:
            assert response.status == 401


async def test_asgi_servers_have_the_same_channels(client: Client) -> None:
    sent: list[MutableMapping[str, Any]] = []
    coming: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    arrived = asyncio.Event()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)
        arrived.set()

    scope: dict[str, Any] = {"type": "websocket", "path": PATH, "headers": [], "query_string": b""}
    scope["subprotocols"] = ["ojs.v1"]
    coming.put_nowait({"type": "websocket.connect"})
    coming.put_nowait({"type": "websocket.receive", "text": '{"action": "subscribe", "channel": "all"}'})
    talking = asyncio.create_task(AsgiApplication(client.application)(scope, coming.get, send))
    while len(sent) < 2:
        await arrived.wait()
        arrived.clear()
    job_id = await client.push()
    while len(sent) < 3:
        await arrived.wait()
        arrived.clear()
    coming.put_nowait({"type": "websocket.disconnect"})
    await talking
    assert sent[0] == {"type": "websocket.accept", "subprotocol": "ojs.v1"}
    told = [msgspec.json.decode(one["text"]) for one in sent[1:]]
    assert (told[0]["type"], told[1]["data"]["job_id"]) == ("subscribed", job_id)
    sent.clear()
    coming.put_nowait({"type": "websocket.connect"})
    await AsgiApplication(client.application)(scope | {"path": "/ojs/v1/nothing"}, coming.get, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
