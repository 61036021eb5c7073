"""Finds the route of a path. Names may have slashes, so a path is split before it is decoded."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from waybill.management.call import Handler


class Route(NamedTuple):
    """The handler of a method and a path below `/api`. A segment in braces matches any one segment."""

    method: str
    path: str
    handler: Handler
    is_open: bool = False
    """Whether it needs no login."""
    is_large: bool = False
    """Whether requests or answers may have megabytes: see `waybill.backend.large_answers`."""


class _Node:
    __slots__ = ("children", "parameter", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, tuple[Route, list[str]]] = {}


class Found(NamedTuple):
    """The routes of a path by method, with the names and values of their parameters."""

    routes: dict[str, tuple[Route, list[str]]]
    values: list[str]


class Router:
    """The routes of the API."""

    def __init__(self, routes: list[Route]) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            names: list[str] = []
            for segment in route.path.split("/"):
                if segment.startswith("{"):
                    names.append(segment[1:-1])
                    node.parameter = node = node.parameter or _Node()
                else:
                    node = node.children.setdefault(segment, _Node())
            node.routes[route.method] = (route, names)

    def find(self, path: str) -> Found | None:
        """Return the routes of an encoded path; None if there are none."""
        segments = path.split("/")
        found = self._walk(segments)
        while found is None and len(segments) > 1 and not segments[-1]:
            # Some clients end a collection's path with slashes: Flower asks for `queues//`.
            segments.pop()
            found = self._walk(segments)
        return found

    def _walk(self, segments: list[str]) -> Found | None:
        return _step(self._root, segments, 0, [])


def _step(node: _Node, segments: list[str], index: int, values: list[str]) -> Found | None:
    """Match segment by segment, with backtracking from fixed segments to parameters."""
    if index == len(segments):
        return Found(node.routes, values) if node.routes else None
    segment = segments[index]
    child = node.children.get(segment)
    if child is not None:
        found = _step(child, segments, index + 1, values)
        if found is not None:
            return found
    # An empty segment is the default exchange, except at the end of a path.
    if node.parameter is None or (not segment and index == len(segments) - 1):
        return None
    return _step(node.parameter, segments, index + 1, [*values, unquote(segment, errors="surrogateescape")])
