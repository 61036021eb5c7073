"""Wrappers around the handlers of routes; routes that do not need one do not pay for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from waybill.backend.audit import record_change
from waybill.backend.backend import Backend
from waybill.backend.capabilities import REQUIRED, require
from waybill.backend.idempotency import HEADER, METHODS, UNKEYED, key_in_body
from waybill.backend.message import Request, Response
from waybill.backend.push_checks import PUSHES
from waybill.backend.router import OPEN, Route
from waybill.backend.shortcut import Asker, Take
from waybill.backend.tenancy import Tenancy

UNAUDITED: Final = ("/ojs/v1/workers/", "/ojs/v1/jobs/results", "/ojs/v1/jobs/{id}/")
"""Routes that are not audited, because job events record them."""
_PUSHES: Final = frozenset({"/ojs/v1/jobs", "/ojs/v1/jobs/batch", "/ojs/v1/jobs/bulk", "/ojs/v1/workflows"})
_BULK: Final = "/jobs/bulk"


def wrapped(route: Route, backend: Backend, tenancy: Tenancy) -> Route:
    """Return a route with the wrappers around its handler."""
    return route if route.role == OPEN else _restricted(_changing(route, backend), backend, tenancy)


def _changing(route: Route, backend: Backend) -> Route:
    if route.method not in METHODS:
        return route
    if route.method == "POST" and route.path in PUSHES:
        route = _checked(route, backend)
    is_push = route.method == "POST" and route.path in _PUSHES
    if not is_push and not route.path.startswith(UNAUDITED):
        route = _audited(route, backend)
    return route if route.path in UNKEYED else _idempotent(route, backend)


def _restricted(route: Route, backend: Backend, tenancy: Tenancy) -> Route:
    """Restrict tenants to their own jobs, and refuse requests that require an extension that is missing."""
    handler, quick, shorten = route.handler, route.quick, route.shorten

    def handle(request: Request) -> Coroutine[Any, Any, Response]:
        if REQUIRED in request.headers:
            require(request.headers[REQUIRED], backend.region)
        return tenancy.handle(request, route, handler) if request.tenant else handler(request)

    def answer_quickly(request: Request) -> Response | asyncio.Future[Response] | None:
        return None if request.tenant or REQUIRED in request.headers or quick is None else quick(request)

    def shortcut(request: Request) -> Take | None:
        return None if request.tenant or REQUIRED in request.headers or shorten is None else shorten(request)

    return route._replace(handler=handle, quick=None if quick is None else answer_quickly, shorten=shortcut)


def _idempotent(route: Route, backend: Backend) -> Route:
    """Make a change once for each idempotency key."""
    handler, quick, shorten = route.handler, route.quick, route.shorten
    is_bulk = _BULK in route.path

    def handle(request: Request) -> Coroutine[Any, Any, Response]:
        key = request.headers.get(HEADER)
        if key is None and is_bulk:
            key = key_in_body(request)
        return handler(request) if key is None else backend.extensions.idempotency.handle(request, key, handler)

    def answer_quickly(request: Request) -> Response | asyncio.Future[Response] | None:
        return None if HEADER in request.headers or quick is None else quick(request)

    def shortcut(request: Request) -> Take | None:
        return None if HEADER in request.headers or shorten is None else shorten(request)

    return route._replace(handler=handle, quick=None if quick is None else answer_quickly, shorten=shortcut)


def _checked(route: Route, backend: Backend) -> Route:
    """Check pushes, if there are settings for them."""
    handler, quick, shorten = route.handler, route.quick, route.shorten

    def handle(request: Request) -> Coroutine[Any, Any, Response]:
        push_checks = backend.extensions.push_checks
        return handler(request) if push_checks.lets_pass(request) else push_checks.handle(request, handler)

    def answer_quickly(request: Request) -> Response | asyncio.Future[Response] | None:
        return quick(request) if quick is not None and backend.extensions.push_checks.lets_pass(request) else None

    def shortcut(request: Request) -> Take | None:
        push_checks = backend.extensions.push_checks
        take = None if shorten is None or push_checks.concerns(request) else shorten(request)
        if take is None:
            return None

        def take_unchecked(body: bytes, asker: Asker) -> bool:
            return push_checks.is_idle and take(body, asker)

        return take_unchecked

    return route._replace(handler=handle, quick=None if quick is None else answer_quickly, shorten=shortcut)


def _audited(route: Route, backend: Backend) -> Route:
    """Record each change in the audit log."""
    handler = route.handler

    async def handle(request: Request) -> Response:
        response = await handler(request)
        record_change(backend.extensions.records, request, response.status)
        return response

    return route._replace(handler=handle, quick=None, shorten=None)
