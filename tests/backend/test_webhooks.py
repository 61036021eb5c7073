"""Webhooks: signed, retried, dead in the end, after any restart; and they lead to no place where they must not."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.backend.conftest import Client
from waybill.backend import host_names, webhook_sender, webhook_shares, webhooks
from waybill.backend.backend import Backend
from waybill.backend.host_names import HostNames
from waybill.backend.webhook_sender import is_public, send
from waybill.client import Inspector
from waybill.ojs import Jobs
from waybill.ojs.coordinator.records import Record
from waybill.ojs.spec.events import read_events

BASE = "/ojs/v1/webhooks"


class Endpoint:
    """An endpoint that answers with the given statuses, and with 200 then."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
        self.statuses: list[int] = []
        self.location = ""
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.put_nowait((headers, body))
        status = self.statuses.pop(0) if self.statuses else 200
        location = f"Location: {self.location}\r\n" if self.location else ""
        writer.write(f"HTTP/1.1 {status} Fine\r\n{location}Content-Length: 2\r\n\r\nOK".encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    found = Endpoint()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    async with server:
        found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        yield found


@asynccontextmanager
async def open_client(uri: str, *, allows_private: bool = True) -> AsyncIterator[Client]:
    async with Backend(Jobs(uri, results=False), allows_private=allows_private) as backend:
        yield Client(backend)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(webhooks, "DELAYS_SECONDS", (0.0, 0.0, 0.0))


async def subscribe(client: Client, url: str, *events: str, status: int = 201, **fields: object) -> Any:
    body = {"url": url, "events": list(events or ("job.completed",)), **fields}
    return await client.ask("POST", f"{BASE}/subscriptions", body, status)


async def finish(client: Client, queue: str = "email") -> str:
    job_id = await client.push(queue)
    await client.fetch(queue)
    await client.ack(job_id, result={"sent": True})
    return job_id


async def ended(client: Client, state: str) -> Any:
    """Return the first delivery that has ended so."""
    async with asyncio.timeout(20):
        while True:
            found = (await client.ask("GET", f"{BASE}/deliveries"))["deliveries"]
            for one in found:
                if one["state"] == state:
                    return one
            await asyncio.sleep(0.01)


async def test_an_event_is_delivered_and_signed(uri: str, endpoint: Endpoint) -> None:
    async with open_client(uri) as client:
        made = await subscribe(client, endpoint.url, metadata={"owner": "ada"})
        shown = await client.ask("GET", f"{BASE}/subscriptions/{made['id']}")
        assert "secret" not in shown
        assert (shown["url"], shown["active"], shown["metadata"]) == (endpoint.url, True, {"owner": "ada"})
        job_id = await finish(client)
        headers, body = await endpoint.received.get()
        event = msgspec.json.decode(body)
        assert (event["type"], event["subject"], event["data"]["result"]) == ("job.completed", job_id, {"sent": True})
        assert headers["content-type"] == "application/json"
        assert (headers["x-ojs-event-type"], headers["x-ojs-subscription-id"]) == ("job.completed", made["id"])
        signed = headers["x-ojs-timestamp"].encode() + b"." + body
        digest = hmac.new(made["secret"].encode(), signed, hashlib.sha256).hexdigest()
        assert headers["x-ojs-signature"] == f"sha256={digest}"
        assert (await ended(client, "delivered"))["id"] == headers["x-ojs-delivery-id"]
        assert endpoint.received.empty()


async def test_a_failed_delivery_is_tried_again_under_the_same_id(uri: str, endpoint: Endpoint) -> None:
    endpoint.statuses = [500, 429]
    async with open_client(uri) as client:
        await subscribe(client, endpoint.url, "job.*", filter={"queues": ["email"], "job_types": ["email.send"]})
        await client.push("other")
        await client.push()
        ids = {(await endpoint.received.get())[0]["x-ojs-delivery-id"] for _ in range(3)}
        delivery = await ended(client, "delivered")
        assert ids == {delivery["id"]}
        assert delivery["attempts"] == 3


@pytest.mark.parametrize(("statuses", "attempts"), [([500] * 9, 3), ([404], 1)])
async def test_a_dead_delivery_is_kept_and_may_be_sent_again(
    uri: str, endpoint: Endpoint, statuses: list[int], attempts: int
) -> None:
    endpoint.statuses = list(statuses)
    async with open_client(uri) as client:
        await subscribe(client, endpoint.url)
        await finish(client)
        dead = await ended(client, "dead")
        assert (dead["attempts"], dead["status_code"]) == (attempts, statuses[0])
    endpoint.statuses = []
    async with open_client(uri) as client:
        assert (await client.ask("GET", f"{BASE}/deliveries/{dead['id']}"))["event"]["type"] == "job.completed"
        await client.ask("POST", f"{BASE}/deliveries/{dead['id']}/retry", status=202)
        assert (await ended(client, "delivered"))["id"] == dead["id"]
        await client.ask("GET", f"{BASE}/deliveries/nothing", status=404)


async def test_a_server_that_dies_leaves_its_deliveries_to_another(
    uri: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "LEASE_SECONDS", 0.0)
    async with open_client(uri) as client:
        await subscribe(client, endpoint.url)

        async def hang(*_args: object, **_fields: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(webhooks.Webhooks, "send", hang)
        await finish(client)
        while not await client.backend.extensions.records.list("webhook-open/", 1):
            await asyncio.sleep(0.01)
    monkeypatch.undo()
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.02)
    async with open_client(uri) as client:
        await endpoint.received.get()
        await ended(client, "delivered")


async def test_a_subscription_is_changed_rotated_tested_and_removed(uri: str, endpoint: Endpoint) -> None:
    async with open_client(uri) as client:
        made = await subscribe(client, endpoint.url)
        path = f"{BASE}/subscriptions/{made['id']}"
        rotated = await client.ask("POST", f"{path}/rotate-secret")
        assert rotated["secret"] not in {made["secret"], ""}
        told = await client.ask("POST", f"{path}/test")
        assert (told["success"], told["status_code"], told["response_body"]) == (True, 200, "OK")
        headers, body = await endpoint.received.get()
        signed = headers["x-ojs-timestamp"].encode() + b"." + body
        secrets = (rotated["secret"], made["secret"])
        assert headers["x-ojs-signature"].split(",") == [
            f"sha256={hmac.new(one.encode(), signed, hashlib.sha256).hexdigest()}" for one in secrets
        ]
        assert not (await client.ask("PATCH", path, {"active": False}))["active"]
        await finish(client)
        await client.ask("PATCH", path, {"active": True, "events": ["*"]})
        await client.ask("DELETE", path)
        await client.ask("GET", path, status=404)
        assert (await client.ask("GET", f"{BASE}/subscriptions"))["subscriptions"] == []
        assert endpoint.received.empty()
        events = (await client.ask("GET", "/ojs/v1/events?limit=1000"))["events"]
        assert not any("whsec_" in str(event) for event in events)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://10.0.0.1/",
        "https://169.254.169.254/latest",
        "https://[::ffff:127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://0.0.0.0/",
        "https://localhost/",
        "http://example.com/",
        "ftp://example.com/",
        "https://user:password@example.com/",
        "https://example.com:99999/",
        "https:///nothing",
        "https://example.com/\r\nX: y",
        "x" * 3000,
        7,
        None,
    ],
)
async def test_a_webhook_leads_to_no_place_of_ours(uri: str, url: object) -> None:
    async with open_client(uri, allows_private=False) as client:
        body = {"url": url, "events": ["job.completed"]}
        await client.ask("POST", f"{BASE}/subscriptions", body, 400)


@pytest.mark.parametrize(
    "fields",
    [
        {"events": []},
        {"events": "job.*"},
        {"events": [7]},
        {"filter": []},
        {"filter": {"queue": ["a"]}},
        {"filter": {"queues": "a"}},
        {"active": 1},
        {"metadata": 7},
        {"metadata": {"a": "x" * 20_000}},
    ],
)
async def test_what_is_no_subscription_is_refused(uri: str, fields: dict[str, object]) -> None:
    async with open_client(uri) as client:
        body = {"url": "https://example.com/", "events": ["*"], **fields}
        await client.ask("POST", f"{BASE}/subscriptions", body, 400)


async def test_a_name_that_leads_to_us_is_not_followed(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(endpoint.url.split(":")[2].split("/")[0])

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_fields: [(2, 1, 6, "", ("127.0.0.1", port))])
    found = await send(f"https://evil.example:{port}/", {}, b"{}", HostNames(), allows_private=False)
    assert (found.status, "a private network" in found.error) == (0, True)
    assert endpoint.received.empty()


async def test_redirects_are_followed_so_far(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint.location, endpoint.statuses = "/there", [307, 302]
    found = await send(endpoint.url, {}, b"{}", HostNames(), allows_private=True)
    assert (found.status, endpoint.received.qsize()) == (200, 3)
    endpoint.statuses = [307] * 9
    assert (await send(endpoint.url, {}, b"{}", HostNames(), allows_private=True)).error == "too many redirects"
    monkeypatch.setattr(webhook_sender, "TIMEOUT_SECONDS", 0.05)
    async with await asyncio.start_server(_say_nothing, "127.0.0.1", 0) as silent:
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/"
        assert "no answer" in (await send(url, {}, b"{}", HostNames(), allows_private=True)).error


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3 + b"HTTP/1.1 200\r\ncontent-LENGTH : 0\r\n\r\n", 200),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000, 0),
        ((b"HTTP/1.1 100 Continue\r\n" + b"a:\r\n" * 5000 + b"\r\n") * 3 + b"HTTP/1.1 200 OK\r\n\r\n", 0),
        (b"HTTP/1.1 2000 OK\r\n\r\n", 0),
    ],
)
async def test_interim_answers_are_skipped_up_to_a_limit(answer: bytes, status: int) -> None:
    """One endpoint that sent them without end kept the server busy for 30 seconds."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        assert (await send(url, {}, b"{}", HostNames(), allows_private=True)).status == status


async def test_names_that_are_not_found_soon_hold_up_no_others(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(endpoint.url.split(":")[2].split("/")[0])
    goes_on = threading.Event()

    def resolve(host: str, *_args: object, **_fields: object) -> list[object]:
        if host.startswith("hangs"):
            goes_on.wait()
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(host_names, "MOST_AT_ONCE", 51)
    names = HostNames()

    async def sent_to(host: str) -> int:
        return (await send(f"http://{host}:{port}/", {}, b"{}", names, allows_private=True)).status

    waiting = [asyncio.ensure_future(sent_to(f"hangs{number // 2}.example")) for number in range(100)]
    await asyncio.sleep(0)
    assert await sent_to("other.example") == 200
    waiting.append(asyncio.ensure_future(sent_to("hangs50.example")))
    await asyncio.sleep(0)
    assert await sent_to("other.example") == 0
    goes_on.set()
    assert await asyncio.gather(*waiting) == [200] * 101


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.parametrize(
    ("address", "is_ours"),
    [
        ("8.8.8.8", False),
        ("2606:4700::1111", False),
        ("192.168.1.1", True),
        ("fe80::1", True),
        ("224.0.0.1", True),
        ("2002:7f00:1::", True),
        ("100.64.0.1", True),
        ("::", True),
        ("192.0.0.192", True),
        ("::127.0.0.1", True),
        ("::ffff:0:127.0.0.1", True),
        ("64:ff9b:1::7f00:1", True),
        ("64:ff9b::808:808", False),
        ("fec0::1", True),
    ],
)
def test_public_addresses_are_those_of_the_internet(address: str, *, is_ours: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is not is_ours


async def publish(client: Client, *events: dict[str, object]) -> None:
    """Publish events as anybody may who may write to their exchange."""
    broker = client.backend.broker
    channel = await broker.connection.channel()
    for event in events:
        exchange = broker.declarer.topology.events
        await channel.publish(msgspec.json.encode(event), exchange=exchange, routing_key="custom")


def event_of(number: int, data: object) -> dict[str, object]:
    event = {"id": f"e{number}", "type": "custom.x", "source": "x", "time": "2026-01-01T00:00:00Z", "subject": "s"}
    return {**event, "data": data}


async def test_events_that_no_record_can_carry_hold_up_no_others(uri: str, endpoint: Endpoint) -> None:
    deep = msgspec.json.decode(b"[" * 250 + b"]" * 250)
    async with open_client(uri) as client:
        await subscribe(client, endpoint.url, "custom.*")
        await until_gathered(client)
        await publish(client, *(event_of(number, {"a": deep}) for number in range(webhooks.PREFETCH + 5)))
        await publish(client, event_of(99, {"a": 1}))
        async with asyncio.timeout(20):
            _, body = await endpoint.received.get()
        assert msgspec.json.decode(body)["data"] == {"a": 1}


async def test_what_cannot_be_written_now_is_gathered_later(
    uri: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_client(uri) as client:
        await subscribe(client, endpoint.url, "custom.*")
        await until_gathered(client)
        written = client.backend.extensions.webhooks._open
        failures = [TimeoutError(), *(TimeoutError() for _ in range(webhooks.PREFETCH)), ArithmeticError()]

        async def often_fails(*what: Any) -> None:
            if failures:
                raise failures.pop(0)
            await written(*what)

        monkeypatch.setattr(client.backend.extensions.webhooks, "_open", often_fails)
        await publish(client, *(event_of(number, {"a": number}) for number in range(4)))
        async with asyncio.timeout(20):
            found = [msgspec.json.decode((await endpoint.received.get())[1])["data"] for _ in range(3)]
        assert len({one["a"] for one in found}) == 3


async def test_a_slow_endpoint_keeps_no_other_waiting(uri: str, endpoint: Endpoint) -> None:
    never = asyncio.Event()

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    async with await asyncio.start_server(hold, "127.0.0.1", 0) as slow, open_client(uri) as client:
        await subscribe(client, f"http://127.0.0.1:{slow.sockets[0].getsockname()[1]}/", "custom.*")
        await until_gathered(client)
        await publish(client, *(event_of(number, {}) for number in range(webhook_shares.AT_ONCE + 5)))
        await until_busy(client, webhook_shares.AT_ONCE_EACH)
        await subscribe(client, endpoint.url, "custom.*")
        await publish(client, event_of(99, {}))
        async with asyncio.timeout(20):
            await endpoint.received.get()
        never.set()


async def test_many_slow_endpoints_keep_no_other_waiting(
    uri: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "SLOW_SECONDS", 0.02)
    async with await asyncio.start_server(_say_nothing, "127.0.0.1", 0) as slow, open_client(uri) as client:
        for _ in range(9):
            await subscribe(client, f"http://127.0.0.1:{slow.sockets[0].getsockname()[1]}/", "custom.*")
        await until_gathered(client)
        await publish(client, *(event_of(number, {}) for number in range(5)))
        await until_busy(client, webhook_shares.AT_ONCE)
        await subscribe(client, endpoint.url, "custom.*")
        await publish(client, event_of(99, {}))
        async with asyncio.timeout(20):
            await endpoint.received.get()


async def until_gathered(client: Client) -> None:
    async with asyncio.timeout(20):
        while client.backend.extensions.webhooks._consumer is None:
            await asyncio.sleep(0.01)


async def until_busy(client: Client, count: int) -> None:
    async with asyncio.timeout(20):
        while len(client.backend.extensions.webhooks._sending) < count:
            await asyncio.sleep(0.01)


async def test_an_event_costs_no_look_at_all_open_deliveries(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10,000 of them, each event and each answer of an endpoint read and decoded them all."""
    async with open_client(uri) as client:
        made = client.backend.extensions.webhooks
        subscription = webhooks.Subscription("sub_1", "http://127.0.0.1:1/", ["*"], "secret")
        listed = made._records.list
        lists: list[str] = []

        async def counted(prefix: str, limit: int, after: str = "") -> list[Record]:
            lists.append(prefix)
            return await listed(prefix, limit, after)

        monkeypatch.setattr(made._records, "list", counted)
        await made.close()
        for number in range(20):
            await made._put(read_events(msgspec.json.encode(event_of(number, {"a": number})))[0][0], subscription)
        assert lists.count(webhooks.OPEN) <= 1
        made._due = webhook_shares.DueDeliveries()
        await made._look()
        assert (made._open_ones.counts, len(made._due)) == ({"sub_1": 20}, 20)


async def test_open_deliveries_have_a_size(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand of them may carry a result of 1 MiB each."""
    monkeypatch.setattr(webhook_shares, "MOST_OPEN_BYTES", 1000)
    async with open_client(uri) as client:
        made = client.backend.extensions.webhooks
        subscription = webhooks.Subscription("sub_1", "http://127.0.0.1:1/", ["*"], "secret")
        await made.close()
        for number in range(2):
            await made._put(read_events(msgspec.json.encode(event_of(number, {"a": "x" * 1000})))[0][0], subscription)
        assert (made._open_ones.counts["sub_1"], await made._backlogs.count("sub_1")) == (1, 1)


async def test_a_dead_endpoint_takes_only_its_share(
    uri: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its open deliveries filled the limit of all, and no other subscription got an event."""
    monkeypatch.setattr(webhook_shares, "MOST_OPEN", 10)
    monkeypatch.setattr(webhooks, "DELAYS_SECONDS", (0.0, *[3600.0] * 8))
    async with open_client(uri) as client:
        made = client.backend.extensions.webhooks
        dead = await subscribe(client, "http://127.0.0.1:1/", "custom.*")
        await subscribe(client, endpoint.url, "custom.*")
        await until_gathered(client)
        await publish(client, *(event_of(number, {"a": number}) for number in range(30)))
        async with asyncio.timeout(20):
            found = {(await endpoint.received.get())[0]["x-ojs-delivery-id"] for _ in range(30)}
            while await made._backlogs.count(dead["id"]) + made._open_ones.counts[dead["id"]] < 30:
                await asyncio.sleep(0.01)
        assert len(found) == 30
        assert made._open_ones.counts[dead["id"]] <= 6


async def test_what_waits_for_an_endpoint_is_delivered_when_it_is_back(
    uri: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_shares, "MOST_OPEN", 5)
    async with open_client(uri) as client:
        await client.backend.extensions.webhooks.ensure_queue()
        monkeypatch.setattr(webhook_shares, "AT_ONCE_EACH", 0)
        await subscribe(client, endpoint.url, "custom.*")
        await publish(client, *(event_of(number, {"a": number}) for number in range(30)))
        async with asyncio.timeout(20):
            while not client.backend.extensions.webhooks._behind:
                await asyncio.sleep(0.01)
    monkeypatch.setattr(webhook_shares, "AT_ONCE_EACH", 5)
    # Another server finds the backlog.
    async with open_client(uri) as client:
        async with asyncio.timeout(20):
            found = {msgspec.json.decode((await endpoint.received.get())[1])["data"]["a"] for _ in range(30)}
        assert found == set(range(30))


async def test_what_is_no_event_in_a_backlog_is_skipped(uri: str, endpoint: Endpoint) -> None:
    async with open_client(uri) as client:
        made = client.backend.extensions.webhooks
        subscription = await subscribe(client, endpoint.url, "custom.*")
        await until_gathered(client)
        assert await made._backlogs.count(subscription["id"]) == 0
        channel = await client.backend.broker.connection.channel()
        for body in (b"\xff", b"7", b"{}", b'{"id": "e1", "type": "custom.x"}'):
            await channel.publish(body, routing_key=f"ojs.webhooks.{subscription['id']}")
        made._behind.add(subscription["id"])
        async with asyncio.timeout(20):
            await endpoint.received.get()
            while made._behind:
                await asyncio.sleep(0.01)


async def test_the_backlog_of_a_removed_subscription_is_removed(uri: str) -> None:
    async with open_client(uri) as client:
        made = client.backend.extensions.webhooks
        subscription = await subscribe(client, "http://127.0.0.1:1/", "custom.*")
        await made._backlogs.put(subscription["id"], {"id": "e1"})
        await client.ask("DELETE", f"{BASE}/subscriptions/{subscription['id']}")
        queue = f"ojs.webhooks.{subscription['id']}"
        assert await Inspector(client.backend.broker.connection).queue(queue) is None


def test_subscriptions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_shares, "AT_ONCE", 6)
    monkeypatch.setattr(webhook_shares, "AT_ONCE_EACH", 2)
    due = webhook_shares.DueDeliveries()
    due.failing.update(f"f{number}" for number in range(9))
    for subscription in (*sorted(due.failing), "a", "b"):
        for number in range(3):
            due.add(f"{subscription}-{number}", subscription)
    taken = [due.take() for _ in range(7)]
    assert [one[1] for one in taken if one] == ["f0", "f1", "f2", "a", "b", "a"]
    due.done("a-0", "a")
    assert due.take() == ("b-1", "b")
    due.done("f1-0", "f1")
    assert due.take() == ("f3-0", "f3")


def test_slow_deliveries_take_no_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_shares, "AT_ONCE", 2)
    monkeypatch.setattr(webhook_shares, "AT_ONCE_EACH", 2)
    monkeypatch.setattr(webhook_shares, "MOST_SLOW", 4)
    due = webhook_shares.DueDeliveries()
    due.failing.update(f"f{number}" for number in range(9))
    for subscription in (*sorted(due.failing), "a", "b", "c"):
        for number in range(3):
            due.add(f"{subscription}-{number}", subscription)

    def take_slow() -> list[str]:
        taken = [one for one in (due.take(), due.take()) if one]
        for one in taken:
            due.is_slow(*one)
        return [key for key, _ in taken]

    # From half of MOST_SLOW on, each has one; beyond it, failing ones have half of the places.
    assert [take_slow() for _ in range(2)] == [["f0-0", "a-0"], ["f1-0", "b-0"]]
    assert take_slow() == ["f2-0", "c-0"]
    assert take_slow() == []
    due.done("a-0", "a")
    assert due.take() == ("a-1", "a")
    due.done("a-1", "a")
    due.done("c-0", "c")
    due.done("f0-0", "f0")
    assert due.slow == {"f1": 1, "b": 1, "f2": 1}
    assert due.take() == ("f3-0", "f3")


async def test_the_certificates_of_authorities_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them took 60 ms of the loop for each delivery."""
    read: list[bool] = []
    context = ssl.create_default_context()

    def count() -> ssl.SSLContext:
        read.append(threading.current_thread() is threading.main_thread())
        return context

    monkeypatch.setattr(ssl, "create_default_context", count)
    webhook_sender._tls.cache_clear()
    for _ in range(3):
        assert (await send("https://127.0.0.1:1/", {}, b"{}", HostNames(), allows_private=True)).status == 0
    assert read == [False]
    webhook_sender._tls.cache_clear()
