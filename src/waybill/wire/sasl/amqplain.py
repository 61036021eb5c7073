"""AMQPLAIN: a field table with LOGIN and PASSWORD, without the size that tables have elsewhere in AMQP 0-9-1."""

from typing import Final

from waybill.wire.amqp091.errors import DecodeError, EncodeError
from waybill.wire.amqp091.field_table import decode_table, encode_table
from waybill.wire.sasl.errors import MalformedResponse
from waybill.wire.sasl.plain import PlainCredentials

NAME: Final = "AMQPLAIN"
LOGIN: Final = "LOGIN"
PASSWORD: Final = "PASSWORD"  # noqa: S105 - the name of a field
SIZE_OCTETS: Final = 4


def build_response(user: str, password: str) -> bytes:
    """Build the initial response. Raises MalformedResponse for text that is not encodable."""
    try:
        return encode_table({LOGIN: user, PASSWORD: password})[SIZE_OCTETS:]
    except EncodeError as error:
        raise MalformedResponse(str(error)) from None


def parse_response(response: bytes) -> PlainCredentials:
    """Parse an initial response; fields besides the two are ignored. Raises MalformedResponse."""
    try:
        table, _ = decode_table(len(response).to_bytes(SIZE_OCTETS, "big") + response, 0)
    except DecodeError:
        raise MalformedResponse("an AMQPLAIN response is a field table") from None
    user = table.get(LOGIN)
    password = table.get(PASSWORD)
    if not isinstance(user, str) or not isinstance(password, str):
        raise MalformedResponse("an AMQPLAIN response has the strings LOGIN and PASSWORD")
    return PlainCredentials(user, password)
