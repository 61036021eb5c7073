"""PLAIN (RFC 4616): `[authorization identity] NUL user NUL password`, all UTF-8."""

from dataclasses import dataclass, field
from typing import Final

from waybill.wire.sasl.errors import MalformedResponse

NAME: Final = "PLAIN"
SEPARATOR: Final = "\0"
PARTS: Final = 3


@dataclass(frozen=True)
class PlainCredentials:
    """Who logs in. `authorization_identity` is whom to act for, empty for the user itself."""

    user: str
    password: str = field(repr=False)
    authorization_identity: str = ""


def build_response(user: str, password: str, authorization_identity: str = "") -> bytes:
    """Build the initial response. Raises MalformedResponse for a NUL in any part."""
    parts = (authorization_identity, user, password)
    if any(SEPARATOR in part for part in parts):
        raise MalformedResponse("PLAIN has no room for a NUL")
    return SEPARATOR.join(parts).encode("utf-8", "surrogateescape")


def parse_response(response: bytes) -> PlainCredentials:
    """Parse an initial response. Raises MalformedResponse."""
    parts = response.decode("utf-8", "surrogateescape").split(SEPARATOR)
    if len(parts) != PARTS:
        raise MalformedResponse(f"a PLAIN response has {PARTS} parts, not {len(parts)}")
    return PlainCredentials(parts[1], parts[2], parts[0])
