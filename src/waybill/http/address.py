"""Which server a URL names, and the API key in it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from waybill.client import InvalidURI

KEY_VARIABLE: Final = "WAYBILL_API_KEY"
SCHEMES: Final = frozenset({"http", "https"})

# A host name may begin with 127, too, and resolve to any address.
_LOOPBACK: Final = re.compile(r"127(\.[0-9]{1,3}){3}")


@dataclass(frozen=True)
class Address:
    """A server: `base` precedes the paths of the binding."""

    base: str
    key: str | None = field(default=None, repr=False)

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        return is_loopback_host(urlsplit(self.base).hostname or "")


def is_loopback_host(host: str) -> bool:
    """Whether a host of a URL is this machine."""
    return host in {"localhost", "::1"} or _LOOPBACK.fullmatch(host) is not None


def parse_url(url: str) -> Address:
    """Read `https://KEY@host:port/prefix`; without a key, WAYBILL_API_KEY counts.

    Raises InvalidURI, which never repeats the key.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidURI(f"the URL of the server cannot be read: {error}") from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise InvalidURI("the URL of a server is http://host:port or https://host:port")
    if parts.query or parts.fragment:
        raise InvalidURI("the URL of a server has no query and no fragment")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    location = host if port is None else f"{host}:{port}"
    key = unquote(parts.password or parts.username or "") or os.environ.get(KEY_VARIABLE) or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise InvalidURI("an API key is printable ASCII")
    return Address(f"{parts.scheme}://{location}{parts.path.rstrip('/')}", key)
