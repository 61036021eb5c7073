"""The rules for versions of handlers (ojs-job-versioning section 11.3)."""

from __future__ import annotations

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import not_found
from waybill.backend.message import Request, Response, answer
from waybill.backend.pages import page_of
from waybill.backend.router import ADMIN, READ, Route
from waybill.backend.settings import SettingTable
from waybill.backend.version_routes import VersionRules, read_rules
from waybill.ojs.spec.envelope import check_type


class VersionRouteRoutes:
    """The routes for rules."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def _rules(self) -> SettingTable[VersionRules]:
        # The backend may not have started when its routes are made.
        return self._backend.extensions.version_routes.table

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/ojs/v1/admin/routing", self._list, READ),
            Route("GET", "/ojs/v1/admin/routing/{type}", self._get, READ),
            Route("PUT", "/ojs/v1/admin/routing/{type}", self._put, ADMIN),
            Route("DELETE", "/ojs/v1/admin/routing/{type}", self._delete, ADMIN),
        ]

    async def _list(self, request: Request) -> Response:
        names, pagination = page_of(request, sorted(self._rules.known), lambda name: name)
        items = [{"type": name, **msgspec.to_builtins(self._rules.known[name])} for name in names]
        return answer({"items": items, "count": len(items), "pagination": pagination})

    async def _get(self, request: Request) -> Response:
        return self._answer(request.parameters["type"])

    async def _put(self, request: Request) -> Response:
        name = request.parameters["type"]
        check_type(name)
        await self._rules.put(name, read_rules(request.json(required=True)))
        return self._answer(name)

    async def _delete(self, request: Request) -> Response:
        name = request.parameters["type"]
        if not await self._rules.remove(name):
            raise not_found("routing", name)
        return answer({"type": name, "deleted": True})

    def _answer(self, name: str) -> Response:
        found = self._rules.get(name)
        if found is None:
            raise not_found("routing", name)
        return answer({"type": name, **msgspec.to_builtins(found), "updated_at": self._rules.updated_at(name)})
