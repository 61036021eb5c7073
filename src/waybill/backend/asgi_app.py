"""`waybill.backend:app`, an ASGI application: for uvicorn, granian, or to be mounted.

    uvicorn waybill.backend:app
    fastapi_app.mount("/jobs", waybill.backend.app)

It is configured by the environment: WAYBILL_URL is the broker, WAYBILL_DATABASE the database of jobs, WAYBILL_KEYS the
file of API keys. WAYBILL_HTTP_REQUEST_LIMIT and WAYBILL_HTTP_REQUEST_WINDOW_S limit the requests of a client. It starts
with the server's lifespan, or, where lifespan events are missing, with the first request.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from waybill.backend.application import Application
from waybill.backend.asgi import AsgiApplication, Message, Receive, Send
from waybill.backend.backend import Backend
from waybill.backend.keys import read_keys
from waybill.backend.request_limits import RequestLimit, RequestLimits
from waybill.backend.routes import routes_of
from waybill.ojs.client import Jobs
from waybill.settings.sources import BY_NAME


class BackendApp:
    """A backend as an ASGI application. It belongs to the loop of its first request."""

    def __init__(
        self,
        jobs: Jobs | None = None,
        *,
        database: str | None = None,
        keys: str | Path | None = None,
        request_limit: RequestLimit | None = None,
    ) -> None:
        """Missing arguments are read from the environment: see above. Nothing happens before the first request."""
        self._jobs = jobs
        self._database = database
        self._keys = keys
        self._request_limit = request_limit
        self._stack = AsyncExitStack()
        self._asgi: AsgiApplication | None = None
        self._starting = asyncio.Lock()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or handle the lifespan of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        asgi = self._asgi or await self.start()
        await asgi(scope, receive, send)

    async def start(self) -> AsgiApplication:
        """Connect, unless connected. Raises ClientError, InvalidKeyFile."""
        async with self._starting:
            if self._asgi is None:
                path = self._keys or os.environ.get("WAYBILL_KEYS")
                keys = None if not path else read_keys(Path(path))
                jobs = self._jobs or Jobs(results=False)
                database = self._database or os.environ.get("WAYBILL_DATABASE", ":memory:")
                backend = await self._stack.enter_async_context(Backend(jobs, database=database))
                limit = self._request_limit or _request_limit_of(os.environ)
                limits = None if limit is None else RequestLimits(limit, keys)
                self._asgi = AsgiApplication(Application(routes_of(backend), keys, limits))
            return self._asgi

    async def close(self) -> None:
        """Return leased jobs to their queues, and disconnect."""
        self._asgi = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:  # noqa: BLE001 - the server reports it
                    await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _request_limit_of(environment: Mapping[str, str]) -> RequestLimit | None:
    """Return the limit that the environment sets, None if it sets none. Raises ValueError."""
    count, window = (_value(name, environment) for name in ("http.request_limit", "http.request_window_s"))
    return (count, window) if isinstance(count, int) and isinstance(window, int) else None


def _value(name: str, environment: Mapping[str, str]) -> object:
    """Return the value of a setting, or its default. Raises ValueError with the variable."""
    setting = BY_NAME[name]
    text = environment.get(setting.variable)
    try:
        return setting.kind.parse(text, Path()) if text else setting.default
    except ValueError as error:
        raise ValueError(f"{setting.variable} {error}") from None
