"""Requests to one region. Answers must be JSON, and are limited in size and time."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from waybill import __version__
from waybill.federation.configuration import InvalidFederation, RegionEntry
from waybill.http.answer import Answer, read_seconds
from waybill.ojs.spec.nesting import MAX_CARRIED_NESTING, clean_text, is_nested_deeper, is_too_heavy
from waybill.transport.tls import client_context

try:
    import aiohttp
except ImportError as error:
    raise ImportError("a federation needs the package aiohttp: pip install 'waybill-amqp[http]'") from error

MEDIA_TYPE: Final = "application/openjobspec+json"
CONNECT_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 30.0
MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
MAX_ANSWER_WEIGHT: Final = 4_000_000
"""See `nesting.MAX_WEIGHT`: lists of jobs may have many values."""
MAX_KEY_BYTES: Final = 4096

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_error: Final = msgspec.json.Decoder(dict[str, object])
NOT_TAKEN: Final = frozenset({"overloaded"})
"""The status codes of servers that have not processed the request."""


class RegionFailed(Exception):
    """A region did not answer, or its answer cannot be used. `may_have_arrived`: it may have processed the request."""

    def __init__(self, reason: str, *, may_have_arrived: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.may_have_arrived = may_have_arrived


class RegionConnection:
    """Sends requests over connections that are kept open."""

    def __init__(self, entry: RegionEntry, field: str) -> None:
        """`field` is the region's place in the file. Raises InvalidFederation for keys that cannot be read."""
        self._entry = entry
        self._tls = _tls_of(entry, field)
        self._key = _key_of(entry, field)
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_seconds: float,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> Answer:
        """Send a request, and return a useful answer: 2xx or 4xx, with JSON. Raises RegionFailed."""
        try:
            async with self._open().request(
                method,
                self._entry.base + path,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=timeout_seconds, sock_connect=min(CONNECT_SECONDS, timeout_seconds), connect=timeout_seconds
                ),
            ) as response:
                found = bytearray()
                async for piece in response.content.iter_any():
                    found += piece
                    if len(found) > max_bytes:
                        raise RegionFailed(f"its answer has more than {max_bytes} bytes", may_have_arrived=True)
                retry_after = read_seconds(response.headers.get("Retry-After"))
                return _useful(Answer(response.status, bytes(found), retry_after))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise RegionFailed(f"it cannot be reached: {_named(error)}", may_have_arrived=False) from None
        except TimeoutError:
            raise RegionFailed(f"it has not answered within {timeout_seconds:g} s", may_have_arrived=True) from None
        except aiohttp.ClientResponseError:
            # The text of this error contains data from the region.
            raise RegionFailed("its answer is not HTTP", may_have_arrived=True) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RegionFailed(f"the connection failed: {_named(error)}", may_have_arrived=True) from None

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {
                "Accept": f"{MEDIA_TYPE}, application/json",
                # A small answer must not become a large one.
                "Accept-Encoding": "identity",
                "Content-Type": MEDIA_TYPE,
                "OJS-Version": "1.0",
                "User-Agent": f"waybill/{__version__}",
            }
            if self._key is not None:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ssl=self._tls or True),
                headers=headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=not self._entry.is_loopback,
            )
        return self._session


def _useful(answer: Answer) -> Answer:
    """Return an answer that can be passed to clients. Raises RegionFailed."""
    status = answer.status
    if 300 <= status < 400 or status < 200:
        raise RegionFailed(f"it answers {status}, which leads elsewhere", may_have_arrived=False)
    if status == 401:
        raise RegionFailed("it refuses the key of the federation", may_have_arrived=False)
    if status >= 500:
        code = _code_of(answer.body)
        raise RegionFailed(f"it answers {status} {code}".rstrip(), may_have_arrived=code not in NOT_TAKEN)
    if status == 204:
        return answer._replace(body=b"{}")
    if is_too_heavy(answer.body, MAX_ANSWER_WEIGHT) or is_nested_deeper(answer.body, MAX_CARRIED_NESTING):
        raise RegionFailed("its answer has too many values, or is nested too deeply", may_have_arrived=True)
    try:
        _object.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RegionFailed("it answers something that is no JSON object", may_have_arrived=True) from None
    return answer


def _code_of(body: bytes) -> str:
    try:
        error = _error.decode(body).get("error")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    code = error.get("code") if isinstance(error, dict) else None
    return code[:64] if isinstance(code, str) and code.isprintable() else ""


def _named(error: BaseException) -> str:
    return clean_text(" ".join(str(error).split()) or type(error).__name__, 300)


def _tls_of(entry: RegionEntry, field: str) -> ssl.SSLContext | None:
    if entry.url.startswith("http:"):
        return None
    given = (entry.ca_file, entry.client_certificate, entry.client_key)
    authority, certificate, key = (None if one is None else Path(one) for one in given)
    try:
        return client_context(authority=authority, certificate=certificate, key=key)
    except (OSError, ssl.SSLError) as error:
        name = "client_certificate" if authority is None or authority.is_file() else "ca_file"
        raise InvalidFederation(f"{field}.{name}", f"cannot be used: {error}") from None


def _key_of(entry: RegionEntry, field: str) -> str | None:
    """Return the key of a region. Raises InvalidFederation, which never contains the key."""
    if entry.key_env is not None:
        field, key = f"{field}.key_env", os.environ.get(entry.key_env, "")
        if not key:
            raise InvalidFederation(field, f"the environment has no {entry.key_env}")
    elif entry.key_file is not None:
        field = f"{field}.key_file"
        try:
            with Path(entry.key_file).open("rb") as file:
                key = file.read(MAX_KEY_BYTES).decode("latin-1").strip()
        except OSError as error:
            raise InvalidFederation(field, f"cannot read {entry.key_file}: {error.strerror}") from None
    else:
        return None
    if not key or not (key.isascii() and key.isprintable()):
        raise InvalidFederation(field, "a key is printable ASCII, in one line")
    return key
