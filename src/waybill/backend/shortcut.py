"""Shortcuts: requests that repeat a head are answered from their bodies alone.

Clients send the same head with every job. What depends only on the head - the route, the API key, the content type - is
decided with the first of them. Later ones skip the router and the wrappers, and create no `Request`:

    connection -> head seen before -> take(body, asker) ... confirmed, known to the view -> asker.told(response)

A shortcut takes only requests in the usual form. All others go through the application, which is authoritative.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from waybill.backend.message import ACCEPTED, MEDIA_TYPE, SPEC_VERSION, Request, Response, media_type_for, request_id_of
from waybill.ojs.spec.identifiers import new_id

MAX_SHORTCUT_BYTES: Final = 64 * 1024
"""Larger bodies go through the application, which takes their size into account."""


class Asker(Protocol):
    """The recipient of an answer."""

    @property
    def address(self) -> str:
        """Where the request comes from: see `FairLine`."""

    def told(self, response: Response) -> None:
        """Take the answer."""

    def failed(self, error: Exception) -> None:
        """Take an error instead."""


Take = Callable[[bytes, Asker], bool]
"""Begins to answer a request with this body. False: the request does not have the usual form, and nothing was done.

The asker gets one answer, after the call.
"""
Shorten = Callable[[Request], "Take | None"]
"""Returns the shortcut for requests with the head of this one, which has no body; None if there is none."""


class FutureAsker:
    """Waits with a future."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def told(self, response: Response) -> None:
        """Complete the future, unless it was cancelled."""
        if not self.future.done():
            self.future.set_result(response)

    def failed(self, error: Exception) -> None:
        """Do the same with an error."""
        if not self.future.done():
            self.future.set_exception(error)


class HeadLines:
    """The status line and the header lines of successful answers to requests with one head."""

    def __init__(self, request: Request, status: int) -> None:
        self._before = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        media_type = media_type_for(request)
        self._after = f"Content-Type: {media_type}\r\nOJS-Version: {SPEC_VERSION}\r\nX-Request-ID: ".encode()
        given = request.headers.get("x-request-id", "")
        self._given = f"{request_id_of(given)}\r\n".encode() if request_id_of(given) == given else None

    def encode(self, location: str = "") -> bytes:
        """Return the lines, except those for the date and the body."""
        last = self._given or f"req_{new_id()}\r\n".encode()
        if not location:
            return b"%b%b%b" % (self._before, self._after, last)
        return b"%bLocation: %b\r\n%b%b" % (self._before, location.encode(), self._after, last)


def is_usual(request: Request) -> bool:
    """Whether a head is that of an ordinary request with a JSON body."""
    headers = request.headers
    return headers.get("content-type", MEDIA_TYPE) in ACCEPTED and "idempotency-key" not in headers
