"""Sends one webhook: over HTTP/1.1, to public addresses only unless an operator allows others.

A name is resolved once, all its addresses are checked, and the connection uses a checked address, so DNS rebinding has
no effect. The target of a redirect is checked in the same way.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import ipaddress
import re
import ssl
import time
from typing import Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.host_names import HostNames

TIMEOUT_SECONDS: Final = 30.0
MAX_REDIRECTS: Final = 3
MAX_HEAD_BYTES: Final = 32 * 1024
MAX_INTERIM_ANSWERS: Final = 10
MAX_ANSWER_BYTES: Final = 4 * 1024
"""The maximum size of a response that is read."""
MAX_URL: Final = 2000
USER_AGENT: Final = "OJS-Webhook/1.0 waybill"
_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class AddressRefused(Exception):
    """The target of a webhook is not allowed."""


class Answer(NamedTuple):
    """The response of an endpoint. A `status` of 0 means no response; `error` says why."""

    status: int
    body: str = ""
    error: str = ""
    retry_after: float | None = None
    seconds: float = 0.0


def check_url(url: object, *, allows_private: bool) -> str:
    """Return a URL if it is allowed, as far as that can be checked without DNS.

    Raises RequestRefused.
    """
    if not isinstance(url, str) or len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise invalid("url", f"must be a URL of at most {MAX_URL} printable ASCII characters")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise invalid("url", "is not a URL") from None
    if parts.scheme not in _PORTS or not host or parts.username is not None or parts.password is not None:
        raise invalid("url", "must be an http or https URL with a host, and without a password")
    if parts.scheme == "http" and not allows_private:
        raise invalid("url", "must use https")
    if not allows_private:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            if host == "localhost" or host.endswith((".localhost", ".internal", ".local")):
                raise invalid("url", "must not point to this machine or a private network") from None
        else:
            if not is_public(address):
                raise invalid("url", "must not point to this machine or a private network")
    return url


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is public, also if it embeds another one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and address not in _PROTOCOL_ASSIGNMENTS
    wrapped = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if wrapped is not None:
        return is_public(wrapped)
    if address in _NAT64:
        return is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return address.is_global and address in _GLOBAL_UNICAST


_PROTOCOL_ASSIGNMENTS: Final = ipaddress.IPv4Network("192.0.0.0/24")
"""Clouds have their metadata at 192.0.0.192, which `is_global` takes for public."""
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""All that was ever given out. Outside of it are other forms of IPv4 addresses and of private networks."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def signature_of(secrets: list[str], timestamp: str, body: bytes) -> str:
    """Return the value of X-OJS-Signature: one signature for each secret (section 8.1, 8.3)."""
    signed = timestamp.encode() + b"." + body
    return ",".join(f"sha256={hmac.new(one.encode(), signed, hashlib.sha256).hexdigest()}" for one in secrets)


async def send(url: str, headers: dict[str, str], body: bytes, names: HostNames, *, allows_private: bool) -> Answer:
    """Send a POST and return the outcome. Raises nothing except cancellation."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            for _ in range(MAX_REDIRECTS + 1):
                answer, location = await _send_once(url, headers, body, names, allows_private=allows_private)
                if answer.status not in _REDIRECTS or not location:
                    return answer._replace(seconds=time.monotonic() - began)
                url = check_url(urljoin(url, location), allows_private=allows_private)
            return Answer(0, error="too many redirects", seconds=time.monotonic() - began)
    except TimeoutError:
        error = f"no answer within {TIMEOUT_SECONDS:g} s"
    except (AddressRefused, RequestRefused) as refused:
        error = str(refused)
    except (OSError, ssl.SSLError, ValueError, EOFError, asyncio.LimitOverrunError) as failed:
        error = f"{type(failed).__name__}: {failed}"[:300]
    return Answer(0, error=error, seconds=time.monotonic() - began)


async def _send_once(
    url: str, headers: dict[str, str], body: bytes, names: HostNames, *, allows_private: bool
) -> tuple[Answer, str]:
    """Send one request; returns the response and the target of a redirect."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or _PORTS[parts.scheme]
    address = await _resolve(host, names, allows_private=allows_private)
    is_secure = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        address,
        port,
        limit=MAX_HEAD_BYTES,
        ssl=await asyncio.to_thread(_tls) if is_secure else None,
        server_hostname=host if is_secure else None,
    )
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        named = parts.netloc.rpartition("@")[2]
        head = [f"POST {target} HTTP/1.1", f"Host: {named}", f"Content-Length: {len(body)}", "Connection: close"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)
        await writer.drain()
        return await _read(reader)
    finally:
        writer.transport.abort()


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return the settings of TLS: reading the certificates of all authorities takes 60 ms."""
    return ssl.create_default_context()


async def _resolve(host: str, names: HostNames, *, allows_private: bool) -> str:
    """Return an address of a host. Raises AddressRefused if any of its addresses is not allowed, OSError."""
    addresses = await names.addresses(host)
    if not allows_private:
        for one in addresses:
            if not is_public(ipaddress.ip_address(one.partition("%")[0])):
                raise AddressRefused(f"{host} points to this machine or a private network")
    return addresses[0]


async def _read(reader: asyncio.StreamReader) -> tuple[Answer, str]:
    status, fields = await _read_head(reader)
    length = fields.get("content-length", "")
    wanted = min(int(length), MAX_ANSWER_BYTES) if length.isdecimal() and len(length) < 12 else MAX_ANSWER_BYTES
    body = b""
    while len(body) < wanted and status not in {204, 304}:
        piece = await reader.read(wanted - len(body))
        if not piece:
            break
        body += piece
    after = fields.get("retry-after", "")
    retry_after = float(after) if after.isdecimal() and len(after) < 7 else None
    return Answer(status, body.decode("utf-8", "replace"), retry_after=retry_after), fields.get("location", "")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Return the status and the known headers of a response, after interim responses. Raises ValueError if invalid."""
    size = 0
    for _ in range(MAX_INTERIM_ANSWERS + 1):
        head = await reader.readuntil(b"\r\n\r\n")
        size += len(head)
        found = _STATUS_LINE.match(head)
        if found is None or size > MAX_HEAD_BYTES:
            raise ValueError("this is not an HTTP response")
        if not found[1].startswith(b"1"):
            fields = ((name.decode().lower(), value.decode("latin-1").strip()) for name, value in _FIELD.findall(head))
            return int(found[1]), dict(fields)
    raise ValueError(f"more than {MAX_INTERIM_ANSWERS} interim responses")


_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[^ ]* (\d{3})[ \r]")
_FIELD: Final = re.compile(rb"\r\n(content-length|location|retry-after)[ \t]*:([^\r\n]*)", re.IGNORECASE)
