"""Finds what answers a path. Names of queues may have slashes, so a path is cut before it is decoded."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from waybill.management.call import Handler


class Route(NamedTuple):
    """What answers a method on a path below `/api`. A segment in braces stands for any one segment."""

    method: str
    path: str
    handler: Handler
    is_open: bool = False
    """Whether it needs nobody's name."""


class _Node:
    __slots__ = ("children", "parameter", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, tuple[Route, list[str]]] = {}


class Found(NamedTuple):
    """The routes of a path by method, with the names of their parameters, and the values of these."""

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
        """Return what answers a path, which is still encoded; None if nothing does."""
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
    """Walk on, and back where a fixed segment leads nowhere. Depth and branches are those of the routes."""
    if index == len(segments):
        return Found(node.routes, values) if node.routes else None
    segment = segments[index]
    child = node.children.get(segment)
    if child is not None:
        found = _step(child, segments, index + 1, values)
        if found is not None:
            return found
    # An empty one is the default exchange; at the end of a path it is a slash too many.
    if node.parameter is None or (not segment and index == len(segments) - 1):
        return None
    return _step(node.parameter, segments, index + 1, [*values, unquote(segment, errors="surrogateescape")])
