"""The client of a federation: `Jobs` and `Worker` with a URL like `federation:regions.toml`.

Requests go to the layer in this process instead of a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from waybill.backend.application import Application
from waybill.backend.message import Request, read_query
from waybill.client import InvalidURI
from waybill.client.own_loop import has_moved
from waybill.federation.configuration import InvalidFederation, read_file
from waybill.federation.layer import Layer
from waybill.http.answer import ANSWER_SECONDS, Answer
from waybill.http.errors import NoAnswer

SCHEME: Final = "federation"


class FederatedExchange:
    """Sends requests to the regions of a file. It belongs to one loop; if that is closed, it starts anew."""

    def __init__(self, url: str) -> None:
        """Nothing is read or sent before the first request."""
        self._url = url
        self._layer: Layer | None = None
        self._application: Application | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """Send a request. Raises NoAnswer, InvalidURI."""
        application = await self._open()
        target, _, query = path.partition("?")
        fields = {name.lower(): value for name, value in (headers or {}).items()}
        request = Request(method, unquote(target), read_query(query.encode()), fields, body or b"", target=target)
        try:
            async with asyncio.timeout(timeout_seconds):
                response = await application.handle(request)
        except TimeoutError:
            raise NoAnswer(f"the federation has not answered within {timeout_seconds:g} s") from None
        retry_after = dict(response.headers).get("Retry-After")
        return Answer(response.status, response.body, None if retry_after is None else float(retry_after))

    async def close(self) -> None:
        """Close the connections."""
        layer, self._layer, self._application = self._layer, None, None
        if layer is not None and self._loop is asyncio.get_running_loop():
            await layer.close()
        self._loop = None

    async def _open(self) -> Application:
        if self._loop is None or has_moved(self._loop, "this Jobs object"):
            self._loop, self._layer, self._application = asyncio.get_running_loop(), None, None
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._application is None:
                try:
                    layer = Layer(read_file(path_of(self._url)))
                except InvalidFederation as error:
                    raise InvalidURI(str(error)) from None
                await layer.start()
                self._layer, self._application = layer, Application(layer.routes())
        return self._application


def path_of(url: str) -> Path:
    """Return the file that `federation:regions.toml` or `federation:///etc/regions.toml` names. Raises InvalidURI."""
    parts = urlsplit(url)
    if parts.scheme != SCHEME or parts.netloc or not parts.path or parts.query or parts.fragment:
        raise InvalidURI("the URL of a federation is federation:FILE, the path of its TOML or JSON file")
    return Path(unquote(parts.path))
