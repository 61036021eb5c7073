"""The client over HTTP without a socket: its requests go into the application of a backend in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.backend.conftest import Client, client_of
from waybill.backend.message import Request
from waybill.broker import Broker
from waybill.http.answer import ANSWER_SECONDS, Answer
from waybill.http.errors import NoAnswer
from waybill.ojs import Jobs

URL = "http://backend.test"


class Wire:
    """Carries requests to an application. `fault` may end one before it arrives, or lose its answer."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.sent: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], str] = lambda _method, _path: ""

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        self.sent.append((method, path))
        fault = self.fault(method, path)
        if fault == "lost":
            raise NoAnswer("the connection is refused")
        path, _, query = path.partition("?")
        fields = dict(one.split("=", 1) for one in query.split("&") if one)
        request = Request(method, path, fields, dict(headers or {}), body or b"")
        handling = self.client.application.handle(request)
        if asyncio.get_running_loop() is self.loop:
            response = await handling
        else:
            response = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(handling, self.loop))
        if fault == "unheard":
            raise NoAnswer("the connection was closed before the answer")
        assert isinstance(response.body, bytes)
        return Answer(response.status, response.body)

    async def close(self) -> None:
        pass


@pytest.fixture
async def uri() -> AsyncIterator[str]:
    async with Broker(port=0) as broker:
        yield broker.uri()


@asynccontextmanager
async def wired(uri: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    """Let every client of URL reach a backend on this broker."""
    async with client_of(uri) as client:
        wire = Wire(client)
        monkeypatch.setattr("waybill.http.link.open_exchange", lambda _url: wire)
        monkeypatch.setattr("waybill.http.worker.open_exchange", lambda _url: wire)
        yield wire


@pytest.fixture
async def wire(uri: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    async with wired(uri, monkeypatch) as wire:
        yield wire


@pytest.fixture
async def jobs(wire: Wire) -> AsyncIterator[Jobs]:
    async with Jobs(URL) as jobs:
        yield jobs
