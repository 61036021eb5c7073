"""Limits how many requests a client may make (ojs-http-binding section 18, ojs-rate-limiting section 10.4).

A client is an API key; without a valid key, an address. Each has a bucket with as many tokens as the limit. A request
takes a token, and the bucket fills evenly within the window. All that is kept of a bucket is when it will be full.
"""

from __future__ import annotations

import math
import time
from typing import Final

from waybill.backend.errors import RequestRefused
from waybill.backend.keys import KeyRing
from waybill.backend.message import Request, Response
from waybill.backend.peer import address_of
from waybill.backend.shortcut import Asker, Take
from waybill.ojs.bounded_dict import BoundedDict

MOST_CLIENTS: Final = 100_000
"""Beyond this many, the client that has been silent longest gets a full bucket."""
UNLIMITED: Final = frozenset({"/ojs/v1/health"})
"""A load balancer that shares an address with its clients must not take this server for dead."""
RequestLimit = tuple[int, int]
"""How many requests a client may make, and within how many seconds."""

KEY: Final = "key "
"""How the names of clients with keys begin."""
_TOLERANCE: Final = 1e-6
"""A part of a token that may be missing: times are not exact."""


class RequestLimits:
    """The buckets of all clients."""

    def __init__(self, limit: RequestLimit, keys: KeyRing | None = None) -> None:
        """`keys` are those that count as clients."""
        self._limit, self._window_seconds = limit
        self._keys = keys
        self._own = {f"{KEY}{name}": most for name, most in ({} if keys is None else keys.request_limits()).items()}
        """The limits of clients that have their own."""
        self._full_at: BoundedDict[str, float] = BoundedDict(MOST_CLIENTS)
        """By client, the client that was active last at the end. Absent ones are full."""

    def __len__(self) -> int:
        return len(self._full_at)

    def admit(self, request: Request) -> None:
        """Take a token for a request. Raises RequestRefused if there is none."""
        if request.path in UNLIMITED:
            return
        request.client = client = self._client_of(request)
        if self.has_token(client):
            self.take(client)
            return
        _, seconds = self._left(client)
        wait = max(1, math.ceil(seconds))
        limit, window = self._limit_of(client), self._window_seconds
        details: dict[str, object] = {"limit": limit, "window_seconds": window, "retry_after_seconds": wait}
        text = f"More than {limit} requests in {window} s: try again in {wait} s."
        raise RequestRefused("rate_limited", text, details=details, headers=[("Retry-After", str(wait))])

    def has_token(self, client: str) -> bool:
        """Return whether a client may make a request now."""
        return self._left(client)[0] > 0

    def take(self, client: str) -> None:
        """Take a token of a client that has one."""
        full_at = max(self._full_at.pop(client, 0.0), time.monotonic())
        self._full_at[client] = full_at + self._window_seconds / self._limit_of(client)

    def charge(self, request: Request) -> None:
        """Take a token for a request that is refused for another reason, if there is one."""
        request.client = client = self._client_of(request)
        if self.has_token(client):
            self.take(client)

    def headers_of(self, request: Request) -> list[tuple[str, str]]:
        """Return the headers of the answer to a request."""
        return self._headers(request.client or self._client_of(request))

    def shortened(self, take: Take, request: Request) -> Take:
        """Return a shortcut that takes a token for each request, for requests with the head of this one."""
        known = "" if self._keys is None else self._client_of(request)

        def limited(body: bytes, asker: Asker) -> bool:
            client = known or asker.address
            if not self.has_token(client) or not take(body, _CountedAsker(self, client, asker)):
                return False
            self.take(client)
            return True

        return limited

    def lines_of(self, client: str) -> bytes:
        """Return the headers of an answer as lines."""
        return "".join([f"{name}: {value}\r\n" for name, value in self._headers(client)]).encode()

    def _client_of(self, request: Request) -> str:
        key = None if self._keys is None else self._keys.find(request.headers)
        return address_of(request.peer) if key is None else f"{KEY}{key.name}"

    def _limit_of(self, client: str) -> int:
        return self._own.get(client, self._limit)

    def _left(self, client: str) -> tuple[int, float]:
        """Return how many tokens a client has, and in how many seconds it has one more; 0 if it has all."""
        limit = self._limit_of(client)
        interval = self._window_seconds / limit
        full_in = self._full_at.get(client, 0.0) - time.monotonic()
        used = max(0, math.ceil(full_in / interval - _TOLERANCE))
        return limit - used, full_in - (used - 1) * interval if used else 0.0

    def _headers(self, client: str) -> list[tuple[str, str]]:
        left, seconds = self._left(client)
        return [
            ("X-RateLimit-Limit", str(self._limit_of(client))),
            ("X-RateLimit-Remaining", str(max(0, left))),
            ("X-RateLimit-Reset", str(math.ceil(time.time() + seconds))),
        ]


class _CountedAsker:
    """Adds the headers of the limit to the answer of a shortcut."""

    def __init__(self, limits: RequestLimits, client: str, asker: Asker) -> None:
        self._limits = limits
        self._client = client
        self._asker = asker

    @property
    def address(self) -> str:
        return self._asker.address

    def told(self, response: Response) -> None:
        """Pass the answer on."""
        response.lines += self._limits.lines_of(self._client)
        self._asker.told(response)

    def failed(self, error: Exception) -> None:
        """Pass the error on: its answer is made by the application."""
        self._asker.failed(error)
