"""EXTERNAL (RFC 4422, appendix A): who it is, the TLS certificate has shown; the response only says whom to act for."""

from typing import Final

from waybill.wire.sasl.errors import MalformedResponse

NAME: Final = "EXTERNAL"


def build_response(authorization_identity: str = "") -> bytes:
    """Build the initial response, usually empty. Raises MalformedResponse for a NUL."""
    if "\0" in authorization_identity:
        raise MalformedResponse("EXTERNAL has no room for a NUL")
    return authorization_identity.encode("utf-8", "surrogateescape")


def parse_response(response: bytes) -> str:
    """The authorization identity, empty for the certificate's own. Raises MalformedResponse."""
    if b"\0" in response:
        raise MalformedResponse("an EXTERNAL response holds no NUL")
    return response.decode("utf-8", "surrogateescape")
