"""The API on its own port, or on the port of the Open Job Spec."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Final, Self

from waybill.backend.application import Application
from waybill.backend.message import Request, Response
from waybill.backend.router import OPERATE, READ
from waybill.backend.server.connections import Answering
from waybill.backend.server.limits import Limits
from waybill.backend.server.listening import listen
from waybill.backend.server.server import HttpServer
from waybill.backend.shortcut import Take
from waybill.broker import Broker
from waybill.management.api_context import ApiContext
from waybill.management.application import SAFE, is_below_api
from waybill.management.application import Application as ManagementApplication
from waybill.management.bindings import BindingRoutes
from waybill.management.connections import ConnectionRoutes
from waybill.management.consumers import ConsumerRoutes
from waybill.management.definitions import DefinitionRoutes
from waybill.management.exchanges import ExchangeRoutes
from waybill.management.health import HealthRoutes
from waybill.management.interface_routes import InterfaceRoutes
from waybill.management.messages import MessageRoutes
from waybill.management.metrics import MetricRoutes
from waybill.management.overview import OverviewRoutes
from waybill.management.policies import ParameterRoutes, PolicyRoutes
from waybill.management.principal import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER, principal_of_key
from waybill.management.queues import QueueRoutes
from waybill.management.router import Route
from waybill.management.sampler import Sampler
from waybill.management.users import PermissionRoutes, UserRoutes
from waybill.management.virtual_hosts import VirtualHostRoutes

DEFAULT_PORT: Final = 15_672
GRACE_SECONDS: Final = 2
LIMITS: Final = Limits(unread_bytes=32 << 20, crowded_bytes=16 << 20)
"""Half as much unread as at a job server: the broker in the same process also keeps messages in memory."""
SOCKET_OPTIONS: Final = {"backlog": 1024, "exit_on_close": False, "linger": [True, 0], "nodelay": True}
KEY_PREFIX: Final = "/ojs/v1/broker/"
METRICS: Final = frozenset({"/metrics/broker", "/metrics/per-object", "/metrics/detailed"})
HEALTH: Final = frozenset({"/health/live", "/health/ready"})
TAGS_OF_ROLES: Final = {
    "read": (MONITORING,),
    "operate": (MONITORING, POLICYMAKER, MANAGEMENT),
    "admin": (ADMINISTRATOR,),
}
"""The tags of API keys, by role."""


class Management:
    """The API of one broker: `async with Management(broker) as management: ...`, while the broker runs."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sampler = Sampler(broker)
        self.context = ApiContext(broker, self.sampler, self._listeners)
        self.application = ManagementApplication(broker, _routes(self.context))
        self.addresses: list[tuple[str, int, str]] = []
        """The addresses that it is served at: host, port, and "http" or "https"."""

    async def __aenter__(self) -> Self:
        await self.sampler.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.sampler.close()

    def begin_for_key(self, request: Request, path: str, name: str, role: str) -> Response | asyncio.Future[Response]:
        """Answer the holder of an API key, or a program on this machine. `path` is below `/api`, still encoded."""
        principal = principal_of_key(name, TAGS_OF_ROLES.get(role, ()), self.broker.node.virtual_hosts)
        return self.application.begin_for(request, path, principal)

    def _listeners(self) -> list[dict[str, object]]:
        broker = self.broker
        found = [_listener("amqp", broker.host, broker.port)]
        if broker.tls_port is not None:
            found.append(_listener("amqp/ssl", broker.host, broker.tls_port))
        return found + [_listener(protocol, host, port) for host, port, protocol in self.addresses]


def _listener(protocol: str, host: str, port: int) -> dict[str, object]:
    return {"ip_address": host, "port": port, "protocol": protocol, "socket_opts": SOCKET_OPTIONS}


def _routes(context: ApiContext) -> list[Route]:
    resources = (
        *(OverviewRoutes(context), ConnectionRoutes(context), ConsumerRoutes(context), ExchangeRoutes(context)),
        *(QueueRoutes(context), BindingRoutes(context), MessageRoutes(context), VirtualHostRoutes(context)),
        *(UserRoutes(context), PermissionRoutes(context), ParameterRoutes(context), DefinitionRoutes(context)),
        *(PolicyRoutes(context, is_operator=False), PolicyRoutes(context, is_operator=True)),
        *(HealthRoutes(context), InterfaceRoutes(context), MetricRoutes(context)),
    )
    return [route for resource in resources for route in resource.routes()]


class ManagementServer:
    """Serves the API of a broker on its own port: `async with ManagementServer(broker) as server: ...`."""

    def __init__(
        self,
        broker: Broker,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`port` 0 chooses a free port."""
        self.management = Management(broker)
        self.url = ""
        self._host = host
        self._port = port
        self._tls = tls
        self._limits = limits or LIMITS
        self._server: HttpServer | None = None

    async def __aenter__(self) -> Self:
        """Listen. Raises OSError."""
        listening, self.url = listen(self._host, self._port, is_secure=self._tls is not None)
        port: int = listening.getsockname()[1]
        self.management.addresses.append((self._host, port, "http" if self._tls is None else "https"))
        try:
            await self.management.__aenter__()
        except BaseException:
            listening.close()
            raise
        application = self.management.application
        self._server = HttpServer(application, (), self._limits, self._tls)
        application.large_answers.is_behind = self._server.connections.is_behind
        await self._server.start(listening)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            await self._server.close(GRACE_SECONDS)
        await self.management.__aexit__(kind, error, trace)


class CombinedApplication:
    """Two applications on one port: this API below `/api` and `/ojs/v1/broker`, and another one for all other paths.

    Below `/api` it needs a user of the broker and a password, as RabbitMQ does. Below `/ojs/v1/broker`, which the
    dashboard uses, it needs an API key, as the other application does. `/metrics` has the metrics of both.
    """

    def __init__(self, management: Management, other: Application) -> None:
        self._management = management
        self._other = other
        # What is large at one is so at the other: they take turns.
        management.application.large_answers = other.large_answers

    def shortcut(self, request: Request) -> Take | None:
        """Return the shortcut for requests with this head, None if there is none."""
        return self._other.shortcut(request) if self._application_of(request) is self._other else None

    def begin(self, request: Request) -> Response | asyncio.Future[Response]:
        """Return the answer to a request, or a future of it."""
        target = request.target
        if target.startswith(KEY_PREFIX):
            return self._begin_for_key(request, target[len(KEY_PREFIX) - 1 :])
        if target in METRICS:
            return self._begin_for_key(request, f"/{target}")
        return self._application_of(request).begin(request)

    def _begin_for_key(self, request: Request, path: str) -> Response | asyncio.Future[Response]:
        refusal = self._other.admit(request, READ if request.method in SAFE else OPERATE)
        if refusal is not None:
            return refusal
        if request.tenant:
            return self._management.application.refuse_tenant()
        return self._management.begin_for_key(request, path, request.actor or "key", request.role)

    def conclude(self, request: Request, answer: asyncio.Future[Response]) -> Response:
        """Return the result of the future that `begin` has returned. Raises CancelledError."""
        response = self._application_of(request).conclude(request, answer)
        other = self._other
        if request.target.startswith(KEY_PREFIX) and request.method not in SAFE and other.on_change is not None:
            other.on_change(request, response.status)
        return response

    def refuse(self, request: Request, code: str, message: str, details: dict[str, object] | None = None) -> Response:
        """Return the answer to a request that the server could not read."""
        return self._other.refuse(request, code, message, details)

    def _application_of(self, request: Request) -> Answering:
        target = request.target
        is_ours = is_below_api(target) or target.startswith(KEY_PREFIX) or target in METRICS or target in HEALTH
        return self._management.application if is_ours else self._other
