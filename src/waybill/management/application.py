"""The management API as an application of the HTTP server: authentication, routing and errors."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from typing import Final

from waybill.backend.errors import KINDS, RequestRefused
from waybill.backend.large_answers import LARGE_BYTES, LargeAnswers
from waybill.backend.message import Request, Response
from waybill.broker import Broker
from waybill.broker.changes import Stopped
from waybill.engine.host import User
from waybill.management.call import Answer, Call, Handler
from waybill.management.errors import Refused, not_authorised, not_found, refused_by_model
from waybill.management.listing import encode
from waybill.management.long_answers import LongAnswers
from waybill.management.principal import Principal
from waybill.management.router import Route, Router
from waybill.model.errors import ModelError

PREFIX: Final = "/api"
REALM: Final = ("WWW-Authenticate", 'Basic realm="RabbitMQ Management"')
JSON: Final = ("Content-Type", "application/json")
HEADERS: Final = (
    ("Cache-Control", "no-cache"),
    ("Vary", "accept, accept-encoding, origin"),
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'none'"),
)
NOBODY: Final = Principal(User("", {}))
PROTOCOL: Final = "http"
"""The protocol under which logins are counted."""
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_log = logging.getLogger("waybill.management")


class Application:
    """Answers requests below `/api`, and others that need no login."""

    def __init__(self, broker: Broker, routes: list[Route]) -> None:
        self._broker = broker
        self._router = Router(routes)
        self._logins = asyncio.Lock()
        self._long_answers = LongAnswers()
        self.large_answers = LargeAnswers()

    # --- called by the server ---

    def begin(self, request: Request) -> Response | asyncio.Future[Response]:
        """Return the answer to a request, or a future of it."""
        target = request.target
        return self.begin_for(request, target[len(PREFIX) :] if is_below_api(target) else f"/{target}", None)

    def begin_for(
        self, request: Request, path: str, principal: Principal | None
    ) -> Response | asyncio.Future[Response]:
        """Answer for an authenticated principal; None has to log in. `path` is below `/api`."""
        try:
            route, parameters = self._route(request.method, path)
            if principal is None:
                _check_origin(request)
                if not route.is_open:
                    return self._begin_with_login(request, route, parameters)
                principal = NOBODY
            if not route.is_open:
                principal.require_management()
            call = Call(request, parameters, principal, self._long_answers)
        except Refused as error:
            return _refusal(error)
        return asyncio.get_running_loop().create_task(self._answer(route, call))

    async def _answer(self, route: Route, call: Call) -> Response:
        """Return the answer of a route, or an error. Large requests and answers take turns."""
        if not route.is_large and len(call.request.body) < LARGE_BYTES:
            return await _answered(route.handler, call)
        try:
            return await self.large_answers.handle(call.request, lambda _request: _answered(route.handler, call))
        except RequestRefused as error:
            return self.refuse(call.request, error.code, error.message)

    def _begin_with_login(
        self, request: Request, route: Route, parameters: dict[str, str]
    ) -> Response | asyncio.Future[Response]:
        """Answer a request with a password. Raises Refused if it has none."""
        name, password = _login_of(request)
        node, changes = self._broker.node, self._broker.changes
        if node.administration.accounts.has_proved(name, password):
            changes.update_time()
            principal = self._principal(node.authenticate(name, password, request.peer))
            principal.require_management()
            answering = self._answer(route, Call(request, parameters, principal, self._long_answers))
        else:
            answering = self._log_in_and_answer(name, password, request, route, parameters)
        return asyncio.get_running_loop().create_task(answering)

    async def _log_in_and_answer(
        self, name: str, password: str, request: Request, route: Route, parameters: dict[str, str]
    ) -> Response:
        """Check the password first. Hashing is slow: logins take turns, and other requests go between."""
        try:
            async with self._logins:
                try:
                    principal = self._principal(
                        self._broker.changes.begin(lambda node: node.authenticate(name, password, request.peer))
                    )
                finally:
                    await asyncio.sleep(0)
            principal.require_management()
        except Refused as error:
            return _refusal(error)
        return await self._answer(route, Call(request, parameters, principal, self._long_answers))

    @staticmethod
    def refuse_tenant() -> Response:
        """Refuse the key of a tenant: all tenants share the broker."""
        return _refusal(Refused(403, "keys of tenants have no access to the broker", "forbidden"))

    @staticmethod
    def conclude(_request: Request, answer: asyncio.Future[Response]) -> Response:
        """Return the result of the future that `begin` has returned. Raises CancelledError."""
        return answer.result()

    @staticmethod
    def shortcut(_request: Request) -> None:
        """Return None: no request is frequent enough."""

    @staticmethod
    def refuse(_request: Request, code: str, message: str, _details: dict[str, object] | None = None) -> Response:
        """Return the answer to a request that the server could not read."""
        status = KINDS[code].status
        return _refusal(Refused(status, message, "bad_request" if status < 500 else code))

    # --- routing and authentication ---

    def _route(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route of a request, and the parameters in its path. Raises Refused."""
        found = self._router.find(path)
        if found is None:
            raise not_found()
        chosen = found.routes.get("GET" if method == "HEAD" else method)
        if chosen is None:
            allowed = sorted({*found.routes, "OPTIONS"} | ({"HEAD"} if "GET" in found.routes else set()))
            headers = (("Allow", ", ".join(allowed)),)
            if method == "OPTIONS":
                return Route("OPTIONS", path, _options(headers), is_open=True), {}
            raise Refused(405, "Method Not Allowed", headers=headers)
        route, names = chosen
        return route, dict(zip(names, found.values, strict=True))

    def _principal(self, user: User | None) -> Principal:
        """Return the user whose password the request has. Raises Refused if it has none.

        Wrong passwords count toward the login limit of the client's address, as over AMQP.
        """
        self._broker.node.runtime.counters.login_ended(PROTOCOL, user is not None)
        if user is None:
            raise _login_failed()
        return Principal(user)


def is_below_api(target: str) -> bool:
    """Whether a request target is `/api` or below it."""
    return target.startswith(PREFIX) and target[len(PREFIX) :][:1] in {"", "/"}


def _login_of(request: Request) -> tuple[str, str]:
    """Return the user name and the password. Raises Refused."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        raise Refused(401, "Login failed", headers=(REALM,))
    try:
        name, separator, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise _login_failed() from None
    if not separator:
        raise _login_failed()
    return name, password


def _login_failed() -> Refused:
    # RabbitMQ uses both spellings.
    return Refused(401, "Login failed", "not_authorized", (REALM,))


def _check_origin(request: Request) -> None:
    """Refuse changes from pages of other origins: browsers send them with the stored password."""
    origin = request.headers.get("origin")
    if origin is None or request.method in SAFE:
        return
    if origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
        raise not_authorised("requests from pages of other origins are refused")


async def _answered(handler: Handler, call: Call) -> Response:
    """Return the answer of a handler, or an error. Raises CancelledError only."""
    try:
        found = await handler(call)
        answer = found if isinstance(found, Answer) else Answer(200, found)
        octets = answer.octets
        if octets is None:
            octets = b"" if answer.body is None else encode(answer.body)
        headers = [*answer.headers, *HEADERS]
        if not any(name == "Content-Type" for name, _ in answer.headers):
            headers.append(JSON)
        return Response(answer.status, octets, headers, answer.stream)
    except Refused as error:
        return _refusal(error)
    except ModelError as error:
        return _refusal(refused_by_model(error))
    except Stopped:
        return _refusal(Refused(503, "the broker is stopping", "unavailable"))
    except Exception:  # noqa: BLE001 - the client must get an answer
        request = call.request
        _log.exception("%s %s failed", request.method, request.path[:300])
        return _refusal(Refused(500, "an error in the broker; see its log", "internal_error"))


def _options(headers: tuple[tuple[str, str], ...]) -> Handler:
    async def answer(_call: Call) -> Answer:
        return Answer(200, headers=list(headers))

    return answer


def _refusal(error: Refused) -> Response:
    headers = [*error.headers, *HEADERS, JSON]
    return Response(error.status, encode({"error": error.error, "reason": error.reason}), headers)
