"""`waybill.backend:app`, an ASGI application of its own: for uvicorn, granian, or to be mounted.

    uvicorn waybill.backend:app
    fastapi_app.mount("/jobs", waybill.backend.app)

The environment says what it serves: WAYBILL_URL the broker, WAYBILL_DATABASE where the state of jobs is kept, and
WAYBILL_KEYS the file of API keys. It begins with the server's lifespan, or, mounted where nobody tells it of that, with
the first request.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

from waybill.backend.application import Application
from waybill.backend.asgi import AsgiApplication, Message, Receive, Send
from waybill.backend.backend import Backend
from waybill.backend.keys import read_keys
from waybill.backend.routes import routes_of
from waybill.ojs.client import Jobs


class BackendApp:
    """A backend as an ASGI application. It belongs to the loop of its first request."""

    def __init__(
        self, jobs: Jobs | None = None, *, database: str | None = None, keys: str | Path | None = None
    ) -> None:
        """What is not given, the environment says: see above. Nothing happens before the first request."""
        self._jobs = jobs
        self._database = database
        self._keys = keys
        self._stack = AsyncExitStack()
        self._asgi: AsgiApplication | None = None
        self._starting = asyncio.Lock()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or follow the lifespan of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        asgi = self._asgi or await self.start()
        await asgi(scope, receive, send)

    async def start(self) -> AsgiApplication:
        """Connect, unless that was done. Raises ClientError, InvalidKeyFile."""
        async with self._starting:
            if self._asgi is None:
                path = self._keys or os.environ.get("WAYBILL_KEYS")
                keys = None if not path else read_keys(Path(path))
                jobs = self._jobs or Jobs(results=False)
                database = self._database or os.environ.get("WAYBILL_DATABASE", ":memory:")
                backend = await self._stack.enter_async_context(Backend(jobs, database=database))
                self._asgi = AsgiApplication(Application(routes_of(backend), keys))
            return self._asgi

    async def close(self) -> None:
        """Give back what is given out, and disconnect."""
        self._asgi = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:  # noqa: BLE001 - the server tells its operator
                    await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
