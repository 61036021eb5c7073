"""The OpenAPI document, and the page that shows it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from waybill.backend.message import Request, Response
from waybill.backend.openapi.document import document_of
from waybill.backend.openapi.page import POLICY, page_of
from waybill.backend.router import OPEN, Route


class OpenApiRoutes:
    """The routes for the document, which describes all routes. It is made on first use."""

    def __init__(self, others: Sequence[Route]) -> None:
        self._others = others
        self._document = b""
        self._page = b""

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/ojs/v1/openapi.json", self._get, OPEN),
            Route("GET", "/ojs/v1/docs", self._show, OPEN),
        ]

    async def _get(self, _request: Request) -> Response:
        self._make()
        return Response(200, self._document, [("Content-Type", "application/json")])

    async def _show(self, _request: Request) -> Response:
        self._make()
        headers = [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", POLICY)]
        return Response(200, self._page, [*headers, ("X-Content-Type-Options", "nosniff")])

    def _make(self) -> None:
        if not self._document:
            document = document_of([*self._others, *self.routes()])
            self._document = msgspec.json.encode(document)
            self._page = page_of(document).encode()
