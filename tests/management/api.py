"""The management API of a broker in this process, called without a socket."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from waybill.backend.message import Request, Response, read_query
from waybill.broker import Broker
from waybill.management.serving import Management


@dataclass
class Reply:
    """An answer. `json` is None for an empty body."""

    status: int
    headers: dict[str, str]
    octets: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.octets) if self.octets else None


class Api:
    """Asks as guest, if nobody else is named."""

    def __init__(self, broker: Broker, management: Management) -> None:
        self.broker = broker
        self.management = management

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        login: str | None = "guest:guest",
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Ask for a path below /api; or for another one that begins with two slashes."""
        response = await self.begin(method, path, body, login=login, headers=headers)
        octets = response.body if response.stream is None else b"".join([piece async for piece in response.stream])
        return Reply(response.status, dict(response.headers), octets)

    async def begin(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        login: str | None = "guest:guest",
        headers: dict[str, str] | None = None,
    ) -> Response:
        """Ask, and return an answer that may have its body still to come."""
        raw, _, query = path.partition("?")
        target = raw[1:] if raw.startswith("//") else f"/api{raw}"
        fields = dict(headers or {})
        if login is not None:
            fields["authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        octets = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        request = Request(
            method,
            unquote(target),
            read_query(query.encode()),
            fields,
            octets,
            target=target,
            raw_query=query.encode(),
            peer="127.0.0.1:50000",
        )
        begun = self.management.application.begin(request)
        return begun if isinstance(begun, Response) else await begun

    async def get(self, path: str, login: str = "guest:guest") -> Any:
        """Ask for what must be there."""
        reply = await self.ask("GET", path, login=login)
        assert reply.status == 200, (path, reply.status, reply.octets)
        return reply.json

    async def put(self, path: str, body: object = None) -> int:
        """Make something. Returns the status."""
        return (await self.ask("PUT", path, body)).status

    async def queue(self, name: str, **settings: object) -> None:
        """Declare a queue."""
        assert await self.put(f"/queues/%2F/{quote(name, safe='')}", settings) in {201, 204}

    async def publish(self, key: str, payload: str = "hello", exchange: str = "amq.default") -> bool:
        """Publish a message. Returns whether a queue has it."""
        body = {"properties": {}, "routing_key": key, "payload": payload, "payload_encoding": "string"}
        reply = await self.ask("POST", f"/exchanges/%2F/{exchange}/publish", body)
        assert reply.status == 200, reply.octets
        return bool(reply.json["routed"])

    async def user(self, name: str, tags: str) -> str:
        """Make a user who may do everything in /. Returns the login."""
        assert await self.put(f"/users/{name}", {"password": name, "tags": tags}) == 201
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        assert await self.put(f"/permissions/%2F/{name}", everything) == 201
        return f"{name}:{name}"


@asynccontextmanager
async def running(data_dir: Path | None = None) -> AsyncIterator[Api]:
    """A broker with its management API."""
    async with Broker(port=0, data_dir=data_dir) as broker, Management(broker) as management:
        yield Api(broker, management)


async def until_gone(api: Api, path: str) -> None:
    """Wait until there is nothing at a path."""
    while (await api.ask("GET", path)).status != 404:
        await asyncio.sleep(0)
