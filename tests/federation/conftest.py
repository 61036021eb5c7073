"""Servers of several regions on loopback, each with a broker of its own, and ones that behave badly."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import msgspec
import pytest

from waybill.backend.application import Application
from waybill.backend.keys import KeyRing
from waybill.backend.message import Request, Response
from waybill.backend.serving import Serving
from waybill.broker import Broker
from waybill.federation.configuration import Federation, read
from waybill.federation.layer import Layer
from waybill.ojs import Jobs

Form = dict[str, Any]
OK = b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"status":"ok"}'


Answering = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def saying(status: str, body: bytes = b"", *fields: str) -> Answering:
    async def answer(_body: bytes, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    return answer


class Clock:
    """Time that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Region:
    """A server that can be killed and come back, at the same port and with the same jobs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.keys: KeyRing | None = None
        self.tls: ssl.SSLContext | None = None
        self._broker = Broker(port=0)
        self._serving: Serving | None = None

    async def __aenter__(self) -> Self:
        await self._broker.__aenter__()
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        await self._broker.__aexit__(None, None, None)

    async def start(self) -> None:
        @asynccontextmanager
        async def jobs() -> AsyncIterator[Jobs]:
            yield Jobs(self._broker.uri(), results=False)

        self._serving = Serving(jobs, "127.0.0.1", self.port, region=self.name, keys=self.keys, tls=self.tls)
        await self._serving.start()
        self.port = int(self._serving.url.rpartition(":")[2])

    async def kill(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.close()

    @property
    def entry(self) -> Form:
        scheme = "http" if self.tls is None else "https"
        return {"id": self.name, "url": f"{scheme}://127.0.0.1:{self.port}"}


class Hostile:
    """A server whose health is good, and whose other answers are what a test says."""

    def __init__(self, answer: Answering, port: int = 0) -> None:
        self.requests: list[str] = []
        self.port = port
        self._answer = answer
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(lengths[0].partition(b":")[2]) if lengths else 0)
                line = head.partition(b"\r\n")[0].decode().rpartition(" ")[0]
                if line == "GET /ojs/v1/health":
                    writer.write(OK)
                    continue
                self.requests.append(line)
                await self._answer(body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def entry(self, name: str) -> Form:
        return {"id": name, "url": f"http://127.0.0.1:{self.port}"}


class Asking:
    """Asks a layer as a proxy would."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.application = Application(layer.routes())

    async def send(self, method: str, path: str, body: object = None, **headers: str) -> Response:
        path, _, query = path.partition("?")
        fields = dict(one.split("=", 1) for one in query.split("&") if one)
        raw = b"" if body is None else msgspec.json.encode(body)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.application.handle(Request(method, path, fields, names, raw))

    async def ask(self, method: str, path: str, body: object = None, status: int = 200) -> Any:
        response = await self.send(method, path, body)
        found = msgspec.json.decode(response.body) if response.body else None
        assert response.status == status, found
        return found

    async def push(self, status: int = 201, **fields: object) -> Any:
        body = {"type": "email.send", "args": ["a@example.com"], **fields}
        return await self.ask("POST", "/ojs/v1/jobs", body, status)

    async def region_of(self, **fields: object) -> str:
        """Push a job, and say where it went."""
        response = await self.send("POST", "/ojs/v1/jobs", {"type": "email.send", "args": [], **fields})
        assert response.status == 201, response.body
        return dict(response.headers)["OJS-Federation-Region"]

    async def fetch(self, *queues: str, worker: str = "w1", **fields: object) -> list[Any]:
        body = {"queues": list(queues or ("default",)), "worker_id": worker, **fields}
        found: list[Any] = (await self.ask("POST", "/ojs/v1/workers/fetch", body))["jobs"]
        return found


def federation_of(*entries: Form, **settings: object) -> Federation:
    """Describe a federation whose health is checked when a test says."""
    return read(
        {
            "federation_id": "test",
            "regions": list(entries),
            "health_check": {"interval_seconds": 3600, "timeout_seconds": 5},
            **settings,
        }
    )


@asynccontextmanager
async def layer_of(*entries: Form, clock: Clock | None = None, **settings: object) -> AsyncIterator[Asking]:
    async with Layer(federation_of(*entries, **settings), clock or Clock(), random.Random(7)) as layer:
        yield Asking(layer)


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions are asked again soon, and so what was fetched for nobody is back soon."""
    monkeypatch.setattr("waybill.federation.fetches.ROUND_SECONDS", 0.1)


@pytest.fixture
async def regions() -> AsyncIterator[tuple[Region, Region]]:
    """Two servers, us and eu."""
    async with AsyncExitStack() as stack:
        us, eu = Region("us"), Region("eu")
        for one in (us, eu):
            await stack.enter_async_context(one)
        yield us, eu
