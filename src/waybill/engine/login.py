"""SASL, server side: what a peer's response claims, for the node to prove. Shared by all protocols."""

from typing import Final

from waybill.engine.host import Host, User
from waybill.wire.sasl import amqplain, plain
from waybill.wire.sasl.errors import MalformedResponse

MECHANISMS: Final = (plain.NAME, amqplain.NAME)


def log_in(host: Host, mechanism: str, response: bytes, peer_address: str) -> User | None:
    """The user whom an initial response proves. None if it proves nobody, is malformed, or of another mechanism."""
    try:
        if mechanism == plain.NAME:
            credentials = plain.parse_response(response)
        elif mechanism == amqplain.NAME:
            credentials = amqplain.parse_response(response)
        else:
            return None
    except MalformedResponse:
        return None
    return host.authenticate(credentials.user, credentials.password, peer_address)
