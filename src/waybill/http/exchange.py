"""Requests to one server and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

from waybill.http.answer import ANSWER_SECONDS, Answer


class Exchange(Protocol):
    """Sends requests."""

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """Send a request, whose path begins after the URL of the server. Raises NoAnswer, InvalidURI."""
        ...

    async def close(self) -> None:
        """Close the connections; another request opens new ones."""
        ...


def open_exchange(url: str) -> Exchange:
    """Return what sends requests to a server, or to those of a federation. Raises ImportError without the extra."""
    if url.partition(":")[0].lower() == "federation":
        # Found by its name: it imports this package.
        found: Exchange = import_module("waybill.federation.exchange").FederatedExchange(url)
        return found
    from waybill.http.connections import HttpExchange  # noqa: PLC0415 - it needs a package that few have

    return HttpExchange(url)
