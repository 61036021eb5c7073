"""The dashboard's files and their paths."""

from __future__ import annotations

from typing import Final

from waybill.backend.dashboard import INDEX, POLICY, Page, read_files
from waybill.backend.errors import not_found
from waybill.backend.message import Request, Response
from waybill.backend.router import OPEN, Route

_GZIP: Final = frozenset({"gzip", "*"})
"""Values of Accept-Encoding for compressed files; others, such as those with `;q=`, get uncompressed files."""
_HEADERS: Final = (
    ("Cache-Control", "no-cache"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Content-Security-Policy", POLICY),
)


class DashboardRoutes:
    """The routes for files. They need no key, because they contain no data; the requests of the page do."""

    def __init__(self) -> None:
        self._files: dict[str, Page] = {}

    def routes(self) -> list[Route]:
        """Return the routes. URLs are relative, because a server may be mounted anywhere."""
        return [
            Route("GET", "/", self._redirect, OPEN),
            Route("GET", "/ui", self._redirect, OPEN),
            Route("GET", "/ui/", self._index, OPEN),
            Route("GET", "/ui/{file}", self._file, OPEN),
        ]

    async def _redirect(self, _request: Request) -> Response:
        return Response(302, headers=[("Location", "ui/"), ("Content-Type", "text/plain")])

    async def _index(self, request: Request) -> Response:
        return self._sent(INDEX, request)

    async def _file(self, request: Request) -> Response:
        return self._sent(request.parameters["file"], request)

    def _sent(self, name: str, request: Request) -> Response:
        if not self._files:
            self._files = read_files()
        page = self._files.get(name)
        if page is None:
            raise not_found("file", name)
        headers = [*_HEADERS, ("Content-Type", page.media_type), ("ETag", page.tag), ("Vary", "Accept-Encoding")]
        if request.headers.get("if-none-match") == page.tag:
            return Response(304, headers=headers)
        accepted = request.headers.get("accept-encoding", "")
        if any(one.strip() in _GZIP for one in accepted.lower().split(",")):
            return Response(200, page.compressed, [*headers, ("Content-Encoding", "gzip")])
        return Response(200, page.content, headers)
