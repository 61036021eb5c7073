"""Serves a backend on a port. For conformance tests, it can be reset."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Final

from waybill.backend.application import Application
from waybill.backend.asgi import WAITING_PATHS
from waybill.backend.audit import record_change
from waybill.backend.backend import Backend
from waybill.backend.keys import KeyRing
from waybill.backend.leases import LEASED_MEMORY
from waybill.backend.message import Request, Response, answer
from waybill.backend.redaction import Redaction
from waybill.backend.request_limits import RequestLimit, RequestLimits
from waybill.backend.router import ADMIN, Route
from waybill.backend.routes import routes_of
from waybill.backend.server.connections import Answering
from waybill.backend.server.limits import Limits
from waybill.backend.server.listening import listen
from waybill.backend.server.server import HttpServer
from waybill.client.service import Service
from waybill.ojs.client import Jobs

if TYPE_CHECKING:
    from waybill.backend.codec import Codec

MakeJobs = Callable[[], AbstractAsyncContextManager[Jobs]]

GRACE_SECONDS: Final = 5


class Serving(Service):
    """Serves a backend: `async with Serving(make_jobs, "127.0.0.1", 8080) as serving: ...`."""

    def __init__(  # noqa: PLR0913 - settings, all by keyword
        self,
        make_jobs: MakeJobs,
        host: str,
        port: int,
        *,
        database: str = ":memory:",
        keep_days: int | None = None,
        keys: KeyRing | None = None,
        request_limit: RequestLimit | None = None,
        leased_memory: int = LEASED_MEMORY,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        is_test: bool = False,
        allows_private: bool = False,
        codec: Codec | None = None,
        redacts: Sequence[str] = (),
        trace_url: str | None = None,
        region: str | None = None,
        beside: Callable[[Application], Answering] | None = None,
    ) -> None:
        """`make_jobs` opens a client: once, or after each reset in a test.

        `redacts` are names of arguments to hide: see `Redaction`. `trace_url` is the URL of a trace, with `{trace_id}`.
        `region` is the region of this server in a federation. `beside` wraps the application in one that also answers
        other paths. `request_limit` is for each client. `leased_memory`: see `Leases`.
        """
        self._make_jobs = make_jobs
        self._host = host
        self._port = port
        self._database = database
        self._keep_days = keep_days
        self._keys = keys
        # The buckets outlive a reset.
        self._request_limits = None if request_limit is None else RequestLimits(request_limit, keys)
        self._leased_memory = leased_memory
        self._is_test = is_test
        self._codec = codec
        self._allows_private = allows_private or is_test
        self._redaction = Redaction(redacts)
        self._trace_url = trace_url
        self._region = region
        self._beside = beside
        self._stack = AsyncExitStack()
        self._backend: Backend | None = None
        self._tls = tls
        self._limits = limits
        self._server: HttpServer | None = None
        self._resetting = asyncio.Lock()
        self.url = ""

    async def start(self) -> None:
        """Start the backend, then listen. Raises OSError, ClientError."""
        listening, url = listen(self._host, self._port, is_secure=self._tls is not None)
        try:
            await self._begin()
        except BaseException:
            listening.close()
            await self._stack.aclose()
            raise
        self.url = url
        self._server = HttpServer(self._application, WAITING_PATHS, self._limits, self._tls)
        await self._server.start(listening)

    async def close(self) -> None:
        """Stop accepting, answer open requests, and requeue leased jobs."""
        server, self._server = self._server, None
        if server is not None:
            if self._backend is not None:
                self._backend.coordinator.end_soon()
                self._backend.events.listeners.end()
                await self._backend.fetcher.close()
            await server.close(GRACE_SECONDS)
        await self._stack.aclose()

    async def _begin(self) -> None:
        jobs = await self._stack.enter_async_context(self._make_jobs())
        backend = await self._stack.enter_async_context(
            Backend(
                jobs,
                database=self._database,
                keep_days=self._keep_days,
                is_test=self._is_test,
                allows_private=self._allows_private,
                leased_memory=self._leased_memory,
            )
        )
        self._backend = backend
        backend.codec = self._codec
        backend.trace_url = self._trace_url
        backend.region = backend.extensions.push_checks.region = self._region
        backend.has_broker = self._beside is not None
        routes = [self._redaction.wrapped(route) for route in routes_of(backend)]
        if self._is_test:
            routes.append(Route("POST", "/ojs/v1/admin/reset", self._reset, ADMIN))
        application = Application(routes, self._keys, self._request_limits)
        application.on_change = lambda request, status: record_change(backend.extensions.records, request, status)
        application.large_answers = backend.large_answers
        backend.large_answers.is_behind = self._is_behind
        self._application: Answering = application if self._beside is None else self._beside(application)
        if self._server is not None:
            self._server.connections.application = self._application

    def _is_behind(self) -> bool:
        return self._server is not None and self._server.connections.is_behind()

    async def _reset(self, _request: Request) -> Response:
        """Start again with an empty broker."""
        async with self._resetting:
            old, self._stack = self._stack, AsyncExitStack()
            await old.aclose()
            await self._begin()
        return answer({"reset": True})
