"""Requests over connections that are kept open, with aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from waybill import __version__
from waybill.client.own_loop import has_moved
from waybill.http.address import Address, parse_url
from waybill.http.answer import ANSWER_SECONDS, Answer, read_seconds
from waybill.http.errors import NoAnswer

try:
    import aiohttp
except ImportError as error:
    raise ImportError("jobs over HTTP need the package aiohttp: pip install 'waybill-amqp[http]'") from error

MEDIA_TYPE: Final = "application/openjobspec+json"
IDLE_SECONDS: Final = 30.0
"""How long an idle connection is used again: less than servers keep it."""
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


class HttpExchange:
    """Sends requests with aiohttp. It is connected in one loop; if that is closed, the next request connects again."""

    def __init__(self, url: str) -> None:
        """Nothing is read or sent before the first request."""
        self._url = url
        self._address: Address | None = None
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

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
        address, session = self._open()
        try:
            async with session.request(
                method,
                address.base + path,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            ) as response:
                found = bytearray()
                async for piece in response.content.iter_any():
                    found += piece
                    if len(found) > MAX_ANSWER_BYTES:
                        raise NoAnswer(f"the answer of {address.base} has more than {MAX_ANSWER_BYTES} bytes")
                return Answer(response.status, bytes(found), read_seconds(response.headers.get("Retry-After")))
        except TimeoutError:
            raise NoAnswer(f"{address.base} has not answered within {timeout_seconds:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NoAnswer(f"{address.base} cannot be reached: {error or type(error).__name__}") from error

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()
        self._loop = None

    def _open(self) -> tuple[Address, aiohttp.ClientSession]:
        address = self._address = self._address or parse_url(self._url)
        if self._session is not None and has_moved(self._loop, "this Jobs object"):
            self._session.detach()
            self._session = None
        if self._session is None:
            self._loop = asyncio.get_running_loop()
            headers = {
                "Accept": f"{MEDIA_TYPE}, application/json",
                # A small answer must not become a large one.
                "Accept-Encoding": "identity",
                "Content-Type": MEDIA_TYPE,
                "OJS-Version": "1.0",
                "User-Agent": f"waybill/{__version__}",
            }
            if address.key is not None:
                headers["Authorization"] = f"Bearer {address.key}"
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS)
            # Proxies of the environment do not apply to loopback.
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=not address.is_loopback,
            )
        return address, self._session
