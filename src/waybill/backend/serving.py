"""A backend behind a port: uvicorn, and, for conformance tests, the way to begin anew."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Final, Self

from waybill.backend.application import Application
from waybill.backend.asgi import AsgiApplication
from waybill.backend.backend import Backend
from waybill.backend.keys import KeyRing
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import ADMIN, Route
from waybill.backend.routes import routes_of
from waybill.ojs.client import Jobs

try:
    import uvicorn
except ImportError as error:
    raise ImportError("serving HTTP needs the package uvicorn: pip install 'waybill[http]'") from error

MakeJobs = Callable[[], AbstractAsyncContextManager[Jobs]]

BACKLOG: Final = 2048
KEEP_ALIVE_SECONDS: Final = 75
GRACE_SECONDS: Final = 5


class _Server(uvicorn.Server):
    """One whose signals are in other hands."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them there."""
        yield


class Serving:
    """Serves a backend: `async with Serving(make_jobs, "127.0.0.1", 8080) as serving: ...`."""

    def __init__(
        self,
        make_jobs: MakeJobs,
        host: str,
        port: int,
        *,
        database: str = ":memory:",
        keys: KeyRing | None = None,
        is_test: bool = False,
    ) -> None:
        """`make_jobs` opens a client and what it needs: once, or for each beginning in a test."""
        self._make_jobs = make_jobs
        self._host = host
        self._port = port
        self._database = database
        self._keys = keys
        self._is_test = is_test
        self._stack = AsyncExitStack()
        self._backend: Backend | None = None
        self._running: asyncio.Task[None] | None = None
        self._server: _Server | None = None
        self._resetting = asyncio.Lock()
        self.url = ""

    async def start(self) -> None:
        """Listen when the backend is ready. Raises OSError, ClientError."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listening = socket.create_server((self._host, self._port), family=family, backlog=BACKLOG)
        try:
            await self._begin()
        except BaseException:
            listening.close()
            raise
        host = f"[{self._host}]" if family == socket.AF_INET6 else self._host
        self.url = f"http://{host}:{listening.getsockname()[1]}"
        config = uvicorn.Config(
            self._answer,
            loop="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = _Server(config)
        self._running = asyncio.get_running_loop().create_task(self._server.serve([listening]))
        # The socket listens already: whoever connects now is answered in a moment.

    async def close(self) -> None:
        """Accept nothing more, answer what waits, and give back what is given out."""
        if self._server is not None and self._running is not None:
            self._server.should_exit = True
            if self._backend is not None:
                await self._backend.fetcher.close()
            await self._running
            self._server = self._running = None
        await self._stack.aclose()

    async def wait_ended(self) -> None:
        """Return when the server has ended by itself."""
        if self._running is not None:
            await asyncio.shield(self._running)

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    async def _begin(self) -> None:
        jobs = await self._stack.enter_async_context(self._make_jobs())
        backend = await self._stack.enter_async_context(Backend(jobs, database=self._database, is_test=self._is_test))
        self._backend = backend
        routes = routes_of(backend)
        if self._is_test:
            routes.append(Route("POST", "/ojs/v1/admin/reset", self._reset, ADMIN))
        self._asgi = AsgiApplication(Application(routes, self._keys))

    async def _reset(self, _request: Request) -> Response:
        """Begin anew, with an empty broker."""
        async with self._resetting:
            old, self._stack = self._stack, AsyncExitStack()
            await old.aclose()
            await self._begin()
        return answer({"reset": True})

    async def _answer(self, scope: dict[str, object], receive: object, send: object) -> None:
        await self._asgi(scope, receive, send)  # type: ignore[arg-type]
