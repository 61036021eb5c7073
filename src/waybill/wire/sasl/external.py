"""EXTERNAL (RFC 4422, appendix A): a TLS certificate identifies the client. The response names the user to act for."""

from typing import Final

from waybill.wire.sasl.errors import MalformedResponse
from waybill.wire.sasl.plain import part_octets

NAME: Final = "EXTERNAL"


def build_response(authorization_identity: str = "") -> bytes:
    """Build the initial response, usually empty. Raises MalformedResponse for a NUL, or text that is not encodable."""
    return part_octets(authorization_identity)


def parse_response(response: bytes) -> str:
    """The authorization identity, empty for the certificate's own. Raises MalformedResponse."""
    if b"\0" in response:
        raise MalformedResponse("an EXTERNAL response must not contain a NUL")
    return response.decode("utf-8", "surrogateescape")
