"""A backend without a server: requests go into the application, on our broker in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from waybill.backend.application import Application
from waybill.backend.backend import Backend
from waybill.backend.keys import KeyRing
from waybill.backend.message import Request, Response
from waybill.backend.routes import routes_of
from waybill.backend.serving import Serving
from waybill.broker import Broker
from waybill.ojs import Jobs, Topology

FAST = {"max_attempts": 3, "initial_interval": "PT1S", "jitter": False}


class Client:
    """Asks an application."""

    def __init__(self, backend: Backend, keys: KeyRing | None = None) -> None:
        self.backend = backend
        self.application = Application(routes_of(backend), keys)

    async def send(self, method: str, path: str, body: object = None, **headers: str) -> Response:
        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        path, _, query = path.partition("?")
        fields = dict(one.split("=", 1) for one in query.split("&") if one)
        return await self.application.handle(Request(method, path, fields, headers, raw))

    async def ask(self, method: str, path: str, body: object = None, status: int = 200) -> Any:
        response = await self.send(method, path, body)
        found = msgspec.json.decode(response.body) if response.body else None
        assert response.status == status, found
        return found

    async def push(self, queue: str = "email", job_type: str = "email.send", **options: object) -> str:
        body = {"type": job_type, "args": ["a@example.com"], "options": {"queue": queue, **options}}
        found: str = (await self.ask("POST", "/ojs/v1/jobs", body, 201))["job"]["id"]
        return found

    async def fetch(self, *queues: str, worker: str = "w1", **fields: object) -> list[Any]:
        body = {"queues": list(queues or ("email",)), "worker_id": worker, **fields}
        found: list[Any] = (await self.ask("POST", "/ojs/v1/workers/fetch", body))["jobs"]
        return found

    async def job(self, job_id: str) -> Any:
        return (await self.ask("GET", f"/ojs/v1/jobs/{job_id}"))["job"]

    async def ack(self, job_id: str, status: int = 200, **fields: object) -> Any:
        return await self.ask("POST", "/ojs/v1/workers/ack", {"job_id": job_id, **fields}, status)

    async def nack(self, job_id: str, status: int = 200, **fields: object) -> Any:
        body = {"job_id": job_id, "error": {"code": "handler_error", "message": "no"}, **fields}
        return await self.ask("POST", "/ojs/v1/workers/nack", body, status)


@asynccontextmanager
async def client_of(uri: str, topology: Topology | None = None) -> AsyncIterator[Client]:
    async with Backend(Jobs(uri, topology=topology, results=False)) as backend:
        yield Client(backend)


@pytest.fixture
async def uri() -> AsyncIterator[str]:
    async with Broker(port=0) as broker:
        yield broker.uri()


@pytest.fixture
async def client(uri: str) -> AsyncIterator[Client]:
    async with client_of(uri) as client:
        yield client


@asynccontextmanager
async def jobs_of_own_broker() -> AsyncIterator[Jobs]:
    async with Broker(port=0) as broker:
        yield Jobs(broker.uri(), results=False)


@pytest.fixture
async def serving() -> AsyncIterator[Serving]:
    """A server behind a socket."""
    async with Serving(jobs_of_own_broker, "127.0.0.1", 0, is_test=True) as serving:
        yield serving
