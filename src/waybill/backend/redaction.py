"""Hides arguments in responses; workers get all arguments, and a pushing client sees what it sent."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from waybill.backend.message import Request, Response
from waybill.backend.router import Route

HIDDEN: Final = "[redacted]"
EVERYTHING: Final = "*"

_UNREDACTED: Final = ("/ojs/v1/workers/", "/ojs/v1/openapi.json", "/ojs/v1/schemas")
_PUSHES: Final = frozenset({"/ojs/v1/jobs", "/ojs/v1/jobs/batch", "/ojs/v1/jobs/bulk"})


class Redaction:
    """Which fields of arguments are hidden: patterns of names, whatever their case; `*` hides all arguments."""

    def __init__(self, names: Sequence[str]) -> None:
        self._patterns = [name.strip().lower() for name in names if name.strip()]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def wrapped(self, route: Route) -> Route:
        """Return a route whose answers are redacted."""
        is_push = route.method == "POST" and route.path in _PUSHES
        if not self or is_push or route.path.startswith(_UNREDACTED) or not route.path.startswith("/ojs/"):
            return route
        handler = route.handler

        async def handle(request: Request) -> Response:
            response = await handler(request)
            if response.stream is None and b'"args' in response.body:
                response.body = msgspec.json.encode(self.shown(msgspec.json.decode(response.body)))
            return response

        def begin(request: Request) -> Coroutine[Any, Any, Response]:
            return handle(request)

        return route._replace(handler=begin, quick=None, shorten=None)

    def shown(self, value: object) -> object:
        """Return a response with arguments hidden. Jobs with hidden arguments have `args_redacted`."""
        if isinstance(value, list):
            return [self.shown(one) for one in value]
        if not isinstance(value, dict):
            return value
        found = {name: self.shown(one) for name, one in value.items() if name not in {"args", "args_preview"}}
        if "args" in value:
            found["args"] = args = self.hidden(value["args"])
            if args != value["args"]:
                found["args_redacted"] = True
        if "args_preview" in value:
            found["args_preview"] = HIDDEN
        return found

    def hidden(self, args: object) -> object:
        """Return arguments with the values of fields hidden, at any depth."""
        if EVERYTHING in self._patterns:
            return [HIDDEN] * len(args) if isinstance(args, list) else HIDDEN
        if isinstance(args, list):
            return [self.hidden(one) for one in args]
        if isinstance(args, dict):
            return {name: HIDDEN if self._is_hidden(name) else self.hidden(one) for name, one in args.items()}
        return args

    def _is_hidden(self, name: str) -> bool:
        return any(fnmatchcase(name.lower(), pattern) for pattern in self._patterns)
