"""Finds the route of a path in a tree of segments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from waybill.backend.message import Request, Response
from waybill.backend.shortcut import Shorten

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Quick = Callable[[Request], "Response | asyncio.Future[Response] | None"]
"""Answers common requests without a task: immediately, or together with others. None leaves it to the handler."""

READ: Final = "read"
OPERATE: Final = "operate"
ADMIN: Final = "admin"
OPEN: Final = ""
"""The role of routes without a key."""


class Route(NamedTuple):
    """The handler of a method on a path, and the required role."""

    method: str
    path: str
    handler: Handler
    role: str
    quick: Quick | None = None
    shorten: Shorten | None = None
    is_large: bool = False
    """Whether answers may have megabytes: see `waybill.backend.large_answers`."""


class _Node:
    """One segment: its children, and the routes of a path that ends here."""

    __slots__ = ("children", "parameter", "parameter_name", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.parameter_name = ""
        self.routes: dict[str, Route] = {}


class Router:
    """The routes of an application. A segment in braces, `{id}`, matches any one segment."""

    def __init__(self, routes: list[Route]) -> None:
        self._root = _Node()
        self._exact: dict[str, dict[str, Route]] = {}
        for route in routes:
            self._add(route)

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]] | None:
        """Return the routes of a path by method, and its parameters; None if there are none."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact, {}
        node = self._root
        parameters: dict[str, str] = {}
        for segment in path[1:].split("/"):
            child = node.children.get(segment)
            if child is None:
                child = node.parameter
                if child is None or not segment:
                    return None
                parameters[node.parameter_name] = segment
            node = child
        return (node.routes, parameters) if node.routes else None

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path[1:].split("/"):
            if segment.startswith("{"):
                if node.parameter is None:
                    node.parameter = _Node()
                    node.parameter_name = segment[1:-1]
                node = node.parameter
            else:
                node = node.children.setdefault(segment, _Node())
        node.routes[route.method] = route
        if "{" not in route.path:
            self._exact[route.path] = node.routes
