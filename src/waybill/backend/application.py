"""The application: a function from a request to its answer. Every request gets an answer, in JSON."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import Callable
from typing import Final

from waybill.backend.compression import ENCODING, Compression, is_concerned
from waybill.backend.errors import CODES_OF_JOB_ERRORS, RETRY_AFTER_SECONDS, RequestRefused, duplicate_of
from waybill.backend.keys import KeyRing
from waybill.backend.large_answers import LARGE_BODY_BYTES, LargeAnswers
from waybill.backend.message import SPEC_VERSION, Request, Response, answer, media_type_for, request_id_of
from waybill.backend.request_limits import RequestLimits
from waybill.backend.router import OPEN, Route, Router
from waybill.backend.shortcut import Take
from waybill.client import AccessRefused, ClientError
from waybill.ojs.errors import (
    ControlFailed,
    CronNotFound,
    DatabaseUnusable,
    DeclarationRefused,
    DuplicateJob,
    InvalidJob,
    JobTooLarge,
    PushFailed,
)

HOSTS_REMEMBERED: Final = 100
LOOPBACK: Final = frozenset({"localhost", "[::1]"})
_LOOPBACK_ADDRESS: Final = re.compile(r"127(\.[0-9]{1,3}){3}")

_log = logging.getLogger("waybill.backend")


class Application:
    """Answers requests. `keys` None allows every program on this machine: for loopback only."""

    def __init__(
        self, routes: list[Route], keys: KeyRing | None = None, request_limits: RequestLimits | None = None
    ) -> None:
        self._router = Router(routes)
        self._keys = keys
        self._request_limits = request_limits
        self._compression = Compression()
        self.large_answers = LargeAnswers()
        self.on_change: Callable[[Request, int], None] | None = None
        """Called by an application beside this one after a change, with the status of its answer."""

    async def handle(self, request: Request) -> Response:
        """Return the answer to a request. Raises CancelledError only."""
        begun = self.begin(request)
        if isinstance(begun, Response):
            return begun
        try:
            await asyncio.wait([begun])
        except asyncio.CancelledError:
            begun.cancel()
            raise
        return self.conclude(request, begun)

    def shortcut(self, request: Request) -> Take | None:
        """Return the shortcut for requests with this head, None if there is none. `request` has no body yet."""
        try:
            found = self._route(request)
        except RequestRefused:
            return None
        if isinstance(found, Response) or found.shorten is None or ENCODING in request.headers:
            return None
        take, limits = found.shorten(request), self._request_limits
        return take if take is None or limits is None else limits.shortened(take, request)

    def begin(self, request: Request) -> Response | asyncio.Future[Response]:
        """Return the answer to a request, or a future from which `conclude` makes the answer."""
        request.id = request_id_of(request.headers.get("x-request-id", ""))
        try:
            if self._request_limits is not None:
                self._request_limits.admit(request)
            found = self._route(request)
            if isinstance(found, Response):
                return self._finish(request, found)
            handler = found.handler
            if is_concerned(request):
                handler = functools.partial(self._compression.handle, handler=functools.partial(self._take_body, found))
            elif len(request.body) > LARGE_BODY_BYTES:
                handler = functools.partial(self._take_body, found)
            elif found.quick is not None:
                answer = found.quick(request)
                if answer is not None:
                    return answer if isinstance(answer, asyncio.Future) else self._finish(request, answer)
            if found.is_large:
                handler = functools.partial(self.large_answers.handle, handler=handler)
            return asyncio.get_running_loop().create_task(handler(request))
        except Exception as error:  # noqa: BLE001 - the client must get an answer
            return self._finish(request, _failure(request, error))

    async def _take_body(self, route: Route, request: Request) -> Response:
        if len(request.body) <= LARGE_BODY_BYTES:
            return await route.handler(request)
        return await self.large_answers.take_body(request, route.handler, route.quick)

    def conclude(self, request: Request, answer: asyncio.Future[Response]) -> Response:
        """Return the answer from a finished future of `begin` or of a shortcut. Raises CancelledError."""
        request.id = request.id or request_id_of(request.headers.get("x-request-id", ""))
        try:
            response = answer.result()
        except Exception as error:  # noqa: BLE001 - the client must get an answer
            response = _failure(request, error)
            # It refers to this frame and so to the answer, which has the error: a cycle with the body of the request.
            error.__traceback__ = None
        return self._finish(request, response)

    def refuse(self, request: Request, code: str, message: str, details: dict[str, object] | None = None) -> Response:
        """Return the answer to a request that the server could not read."""
        request.id = request_id_of(request.headers.get("x-request-id", ""))
        if self._request_limits is not None:
            self._request_limits.charge(request)
        return self._finish(request, _refusal(request, RequestRefused(code, message, details=details)))

    def admit(self, request: Request, role: str) -> Response | None:
        """Check the role for a request that is answered elsewhere. Return None, or an error."""
        request.id = request_id_of(request.headers.get("x-request-id", ""))
        try:
            self._check(request, role)
        except RequestRefused as error:
            return self._finish(request, _refusal(request, error))
        return None

    def _finish(self, request: Request, response: Response) -> Response:
        """Add the headers of every answer."""
        if response.stream is None and "Content-Type" not in dict(response.headers):
            response.headers.append(("Content-Type", media_type_for(request)))
        response.headers += (("OJS-Version", SPEC_VERSION), ("X-Request-ID", request.id))
        if self._request_limits is not None:
            response.headers += self._request_limits.headers_of(request)
        return response

    def _route(self, request: Request) -> Response | Route:
        """Return the route of an allowed request, or the answer. Raises RequestRefused."""
        found = self._router.find(request.path)
        if found is None:
            details: dict[str, object] = {"resource_type": "path", "resource_id": request.path[:300]}
            text = f"The path {request.path[:300]!r} does not exist."
            raise RequestRefused("not_found", text, details=details, hint="Check the path. Most begin with /ojs/v1/.")
        routes, request.parameters = found
        method = "GET" if request.method == "HEAD" else request.method
        route = routes.get(method)
        if route is None:
            allowed = [("Allow", ", ".join(sorted({*routes, "OPTIONS"} | ({"HEAD"} if "GET" in routes else set()))))]
            if method == "OPTIONS":
                return Response(204, headers=allowed)
            text = f"This path does not support the method {request.method[:40]}."
            raise RequestRefused("method_not_allowed", text, headers=allowed)
        self._check(request, route.role)
        return route

    def _check(self, request: Request, role: str) -> None:
        """Authenticate the client. Raises RequestRefused."""
        if self._keys is None:
            _check_origin(request)
        elif role != OPEN:
            key = self._keys.check(request.headers, role)
            request.actor, request.role, request.tenant = key.name, key.role, key.tenant


def _check_origin(request: Request) -> None:
    """Refuse requests that a page of another origin makes a local browser send. Raises RequestRefused.

    Such a request names another origin. With DNS rebinding, its host is not a loopback name.
    """
    headers = request.headers
    if not _is_local(headers.get("host", "localhost"), headers.get("origin")):
        text = "A server without API keys only answers requests from this machine, and none from other web pages."
        raise RequestRefused(
            "permission_denied", text, hint="Use localhost or 127.0.0.1 in the URL, or start the server with API keys."
        )


@functools.lru_cache(HOSTS_REMEMBERED)
def _is_local(host: str, origin: str | None) -> bool:
    host = host.lower()
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    # Only addresses count: a host name such as 127.0.0.1.example.com may begin with 127, too.
    is_here = name in LOOPBACK or _LOOPBACK_ADDRESS.fullmatch(name) is not None
    return is_here and (origin is None or origin.partition("://")[2] == host)


def _refusal(request: Request, error: RequestRefused) -> Response:
    headers = list(error.headers)
    status = error.kind.status
    if status in {429, 503} and "Retry-After" not in dict(headers):
        headers.append(("Retry-After", str(RETRY_AFTER_SECONDS)))
    if status == 401:
        headers.append(("WWW-Authenticate", 'Bearer realm="ojs"'))
    return answer(error.body(request.id), status, headers)


def _failure(request: Request, error: Exception) -> Response:
    return _refusal(request, error if isinstance(error, RequestRefused) else _explained(error, request))


def _explained(error: Exception, request: Request) -> RequestRefused:
    """Convert an error of the jobs package to one of the HTTP binding."""
    match error:
        case InvalidJob():
            details: dict[str, object] = {"field": error.field}
            if isinstance(error, JobTooLarge):
                details |= {"actual_bytes": error.actual_bytes, "max_bytes": error.max_bytes}
            return RequestRefused(CODES_OF_JOB_ERRORS.get(error.code, "invalid_request"), f"{error}.", details=details)
        case DuplicateJob():
            return duplicate_of(error)
        case PushFailed():
            return RequestRefused(CODES_OF_JOB_ERRORS.get(error.code, "backend_error"), f"{error}.")
        case CronNotFound():
            return RequestRefused("not_found", f"{error}.")
        case DatabaseUnusable():
            _log.warning("%s %s: %s", request.method, request.path[:300], error)
            return RequestRefused("backend_unavailable", "The job database cannot be reached.")
        case DeclarationRefused():
            _log.warning("%s %s: %s", request.method, request.path[:300], error)
            hint = "Delete queues, or give the broker more memory or disk."
            return RequestRefused("overloaded", f"{error}.", hint=hint)
        case ClientError() | ControlFailed():
            _log.warning("%s %s: %s", request.method, request.path[:300], error)
            is_refused = isinstance(error, AccessRefused)
            text = "The server lacks permissions at the broker." if is_refused else "The broker cannot be reached."
            return RequestRefused("backend_unavailable", text)
        case TimeoutError():
            return RequestRefused("backend_timeout", "The broker did not answer in time.")
    _log.error("%s %s failed (request %s)", request.method, request.path[:300], request.id, exc_info=error)
    return RequestRefused("backend_error", "The server failed to process this request.")
