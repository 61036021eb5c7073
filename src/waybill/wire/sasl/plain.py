"""PLAIN (RFC 4616): `[authorization identity] NUL user NUL password`, all UTF-8."""

from dataclasses import dataclass, field
from typing import Final

from waybill.wire.sasl.errors import MalformedResponse

NAME: Final = "PLAIN"
SEPARATOR: Final = b"\0"
PARTS: Final = 3


@dataclass(frozen=True)
class PlainCredentials:
    """The credentials of a login. `authorization_identity` is the user to act for, empty for the same user."""

    user: str
    password: str = field(repr=False)
    authorization_identity: str = ""


def build_response(user: str, password: str, authorization_identity: str = "") -> bytes:
    """Build the initial response. Raises MalformedResponse for a NUL in any part, or text that is not encodable."""
    return SEPARATOR.join(part_octets(part) for part in (authorization_identity, user, password))


def parse_response(response: bytes) -> PlainCredentials:
    """Parse an initial response. Raises MalformedResponse."""
    parts = [part.decode("utf-8", "surrogateescape") for part in response.split(SEPARATOR)]
    if len(parts) != PARTS:
        raise MalformedResponse(f"a PLAIN response has {PARTS} parts, not {len(parts)}")
    return PlainCredentials(parts[1], parts[2], parts[0])


def part_octets(part: str) -> bytes:
    """One part of a response. Raises MalformedResponse for a NUL in it, or text that is not encodable."""
    if "\0" in part:
        raise MalformedResponse("a SASL response must not contain a NUL")
    try:
        return part.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise MalformedResponse("not encodable as UTF-8") from None
