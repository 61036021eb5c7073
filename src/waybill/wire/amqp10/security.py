"""Bodies of SASL frames (1.0, 5.3.3). `repr` omits their octets, which may be passwords."""

from dataclasses import dataclass, field
from typing import Final

from mypy_extensions import i64

from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import Composite, composite, decode_composite
from waybill.wire.amqp10.errors import DecodeError

SASL_OK: Final = 0
SASL_AUTHENTICATION_FAILED: Final = 1
SASL_SYSTEM_ERROR: Final = 2
SASL_PERMANENT_SYSTEM_ERROR: Final = 3
SASL_TEMPORARY_SYSTEM_ERROR: Final = 4


@composite(descriptors.SASL_MECHANISMS, "sasl_server_mechanisms:symbol[]!")
@dataclass(frozen=True)
class SaslMechanisms(Composite):
    """The mechanisms that the server offers, at least one."""

    sasl_server_mechanisms: tuple[str, ...]


@composite(descriptors.SASL_INIT, "mechanism:symbol! initial_response:binary hostname:string")
@dataclass(frozen=True)
class SaslInit(Composite):
    """The mechanism that the client chooses."""

    mechanism: str
    initial_response: bytes | None = field(default=None, repr=False)
    hostname: str | None = None


@composite(descriptors.SASL_CHALLENGE, "challenge:binary!")
@dataclass(frozen=True)
class SaslChallenge(Composite):
    """Octets from the server."""

    challenge: bytes = field(repr=False)


@composite(descriptors.SASL_RESPONSE, "response:binary!")
@dataclass(frozen=True)
class SaslResponse(Composite):
    """Octets from the client."""

    response: bytes = field(repr=False)


@composite(descriptors.SASL_OUTCOME, "code:ubyte! additional_data:binary")
@dataclass(frozen=True)
class SaslOutcome(Composite):
    """The result: `code` is one of SASL_."""

    code: int
    additional_data: bytes | None = field(default=None, repr=False)


SaslBody = SaslMechanisms | SaslInit | SaslChallenge | SaslResponse | SaslOutcome

SASL_BODIES: Final = (SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome)


def decode_sasl(data: bytes, offset: i64 = 0, end: i64 = -1) -> SaslBody:
    """Decode the body of a SASL frame, all of `data[offset:end]` (-1: to the end). Raises DecodeError."""
    value, after = decode_composite(data, offset, end)
    if after != (len(data) if end == -1 else end):
        raise DecodeError("octets after the body of a SASL frame")
    if not isinstance(value, SASL_BODIES):
        raise DecodeError(f"{value.NAME} is not the body of a SASL frame")
    return value
