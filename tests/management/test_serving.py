"""The API at a port of its own, and beside the Open Job Spec."""

import asyncio
import base64
import urllib.error
import urllib.request
from asyncio import to_thread

import msgspec

from waybill.backend.application import Application
from waybill.backend.keys import Key, KeyRing, hash_of
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import READ, Route
from waybill.broker import Broker
from waybill.management.serving import CombinedApplication, Management, ManagementServer


def fetch(url: str, login: str = "guest:guest") -> tuple[int, bytes]:
    """Ask over a socket."""
    fields = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    try:
        request = urllib.request.Request(url, headers=fields)  # noqa: S310 - our own
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - our own
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


async def test_at_a_port_of_its_own() -> None:
    async with Broker(port=0) as broker, ManagementServer(broker, port=0) as server:
        status, body = await to_thread(fetch, f"{server.url}/api/overview")
        assert status == 200
        assert {one["protocol"] for one in msgspec.json.decode(body)["listeners"]} == {"amqp", "http"}
        assert (await to_thread(fetch, f"{server.url}/api/overview", "guest:no"))[0] == 401
        assert (await to_thread(fetch, f"{server.url}/metrics"))[0] == 200
        assert (await to_thread(fetch, f"{server.url}/api/queues/%2F/a%2Fb"))[0] == 404


async def ok(_request: Request) -> Response:
    return answer({"ours": False})


async def ask(beside: CombinedApplication, method: str, target: str, key: str = "") -> tuple[int, dict[str, object]]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = Request(method, target, {}, headers, target=target)
    begun = beside.begin(request)
    response = begun if isinstance(begun, Response) else beside.conclude(request, await settled(begun))
    body = response.body
    return response.status, msgspec.json.decode(body) if body.startswith((b"{", b"[")) else {}


async def settled(future: asyncio.Future[Response]) -> asyncio.Future[Response]:
    """Wait for a future without taking its result."""
    await asyncio.wait([future])
    return future


async def test_large_answers_of_both_applications_take_turns() -> None:
    async with Broker(port=0) as broker:
        management, other = Management(broker), Application([])
        CombinedApplication(management, other)
        assert management.application.large_answers is other.large_answers


async def test_beside_another_application() -> None:
    keys = KeyRing(
        [
            Key("reader", "read", hash_of("r")),
            Key("operator", "operate", hash_of("o")),
            Key("boss", "admin", hash_of("a")),
            Key("theirs", "admin", hash_of("t"), "acme"),
        ]
    )
    async with Broker(port=0) as broker, Management(broker) as management:
        beside = CombinedApplication(management, Application([Route("GET", "/ojs/v1/jobs", ok, READ)], keys))
        assert (await ask(beside, "GET", "/ojs/v1/jobs", "r"))[1] == {"ours": False}
        assert (await ask(beside, "GET", "/api/overview"))[0] == 401
        assert (await ask(beside, "GET", "/apis"))[0] == 404
        assert (await ask(beside, "GET", "/health/ready"))[0] == 200
        assert (await ask(beside, "GET", "/metrics/broker"))[0] == 401
        assert (await ask(beside, "GET", "/metrics/broker", "r"))[0] == 200
        broker_path = "/ojs/v1/broker"
        assert (await ask(beside, "GET", f"{broker_path}/queues"))[0] == 401
        assert (await ask(beside, "GET", f"{broker_path}/whoami", "r"))[1] == {"name": "reader", "tags": ["monitoring"]}
        assert (await ask(beside, "GET", f"{broker_path}/queues", "t"))[0] == 403
        assert (await ask(beside, "PUT", f"{broker_path}/queues/%2F/q", "r"))[0] == 403
        assert (await ask(beside, "PUT", f"{broker_path}/queues/%2F/q", "o"))[0] == 201
        assert (await ask(beside, "GET", f"{broker_path}/users", "o"))[0] == 401
        assert (await ask(beside, "GET", f"{broker_path}/users", "a"))[0] == 200
        # What is in messages is for administrators: it may be of anybody.
        for key, status in (("r", 403), ("o", 401), ("a", 400)):
            assert (await ask(beside, "POST", f"{broker_path}/queues/%2F/q/get", key))[0] == status
        assert (await ask(beside, "PUT", f"{broker_path}/vhosts/x", "a"))[0] == 201
