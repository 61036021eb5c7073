"""`waybill.backend:app` under a server of others, and mounted into an application of others."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import waybill.backend
from waybill.backend.asgi_app import BackendApp
from waybill.ojs import Jobs

JOB = msgspec.json.encode({"type": "email.send", "args": []})


async def ask(application: Any, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    await application(scope, receive, send)
    return sent[0]["status"], msgspec.json.decode(sent[1]["body"])


async def test_it_follows_the_lifespan(uri: str) -> None:
    app = BackendApp(Jobs(uri, results=False))
    received: asyncio.Queue[Any] = asyncio.Queue()
    sent: asyncio.Queue[Any] = asyncio.Queue()
    living = asyncio.ensure_future(app({"type": "lifespan"}, received.get, sent.put))
    await received.put({"type": "lifespan.startup"})
    assert (await sent.get())["type"] == "lifespan.startup.complete"
    assert (await ask(app, "POST", "/ojs/v1/jobs", JOB))[0] == 201
    await received.put({"type": "lifespan.shutdown"})
    assert (await sent.get())["type"] == "lifespan.shutdown.complete"
    await living


async def test_it_mounts(uri: str) -> None:
    app = BackendApp(Jobs(uri, results=False))
    outer = Starlette(routes=[Mount("/work", app)])
    assert (await ask(outer, "POST", "/work/ojs/v1/jobs", JOB))[0] == 201
    await app.close()


async def test_the_environment_says_what_is_served(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_URL", uri)
    app = waybill.backend.app
    assert app is waybill.backend.app
    assert (await ask(app, "GET", "/ojs/v1/health"))[0] == 200
    await app.close()
    with pytest.raises(AttributeError):
        _ = waybill.backend.nothing
