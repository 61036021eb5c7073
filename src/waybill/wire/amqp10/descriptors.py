"""Descriptors of the types of the specification (1.0, 1.5). Numeric and symbolic ones are equivalent.

    00 53 14             smallulong, the usual form
    00 80 00..00 14      ulong
    00 A3 12 "amqp:..."  symbol

Codes are in domain 0; symbols are `amqp:<name>:<source type>`.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be
from mypy_extensions import i64

from waybill.wire.amqp10 import codes
from waybill.wire.amqp10.encode import write_ulong
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.skip import skip_value
from waybill.wire.amqp10.types import Symbol, ULong

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
ERROR: Final = 0x1D

RECEIVED: Final = 0x23
ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
SOURCE: Final = 0x28
TARGET: Final = 0x29
DELETE_ON_CLOSE: Final = 0x2B
DELETE_ON_NO_LINKS: Final = 0x2C
DELETE_ON_NO_MESSAGES: Final = 0x2D
DELETE_ON_NO_LINKS_OR_MESSAGES: Final = 0x2E

COORDINATOR: Final = 0x30
DECLARE: Final = 0x31
DISCHARGE: Final = 0x32
DECLARED: Final = 0x33
TRANSACTIONAL_STATE: Final = 0x34

SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_CHALLENGE: Final = 0x42
SASL_RESPONSE: Final = 0x43
SASL_OUTCOME: Final = 0x44

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
AMQP_SEQUENCE: Final = 0x76
AMQP_VALUE: Final = 0x77
FOOTER: Final = 0x78

UNKNOWN: Final = -1

NAMES: Final[dict[int, str]] = {
    OPEN: "amqp:open:list",
    BEGIN: "amqp:begin:list",
    ATTACH: "amqp:attach:list",
    FLOW: "amqp:flow:list",
    TRANSFER: "amqp:transfer:list",
    DISPOSITION: "amqp:disposition:list",
    DETACH: "amqp:detach:list",
    END: "amqp:end:list",
    CLOSE: "amqp:close:list",
    ERROR: "amqp:error:list",
    RECEIVED: "amqp:received:list",
    ACCEPTED: "amqp:accepted:list",
    REJECTED: "amqp:rejected:list",
    RELEASED: "amqp:released:list",
    MODIFIED: "amqp:modified:list",
    SOURCE: "amqp:source:list",
    TARGET: "amqp:target:list",
    DELETE_ON_CLOSE: "amqp:delete-on-close:list",
    DELETE_ON_NO_LINKS: "amqp:delete-on-no-links:list",
    DELETE_ON_NO_MESSAGES: "amqp:delete-on-no-messages:list",
    DELETE_ON_NO_LINKS_OR_MESSAGES: "amqp:delete-on-no-links-or-messages:list",
    COORDINATOR: "amqp:coordinator:list",
    DECLARE: "amqp:declare:list",
    DISCHARGE: "amqp:discharge:list",
    DECLARED: "amqp:declared:list",
    TRANSACTIONAL_STATE: "amqp:transactional-state:list",
    SASL_MECHANISMS: "amqp:sasl-mechanisms:list",
    SASL_INIT: "amqp:sasl-init:list",
    SASL_CHALLENGE: "amqp:sasl-challenge:list",
    SASL_RESPONSE: "amqp:sasl-response:list",
    SASL_OUTCOME: "amqp:sasl-outcome:list",
    HEADER: "amqp:header:list",
    DELIVERY_ANNOTATIONS: "amqp:delivery-annotations:map",
    MESSAGE_ANNOTATIONS: "amqp:message-annotations:map",
    PROPERTIES: "amqp:properties:list",
    APPLICATION_PROPERTIES: "amqp:application-properties:map",
    DATA: "amqp:data:binary",
    AMQP_SEQUENCE: "amqp:amqp-sequence:list",
    AMQP_VALUE: "amqp:amqp-value:*",
    FOOTER: "amqp:footer:map",
}

CODES: Final[dict[str, int]] = {name: code for code, name in NAMES.items()}


def code_of(descriptor: object) -> int:
    """The numeric code of a decoded descriptor, UNKNOWN if the specification does not define it."""
    if isinstance(descriptor, ULong):
        return int(descriptor) if descriptor in NAMES else UNKNOWN
    if isinstance(descriptor, Symbol):
        return CODES.get(descriptor, UNKNOWN)
    return UNKNOWN


def write_descriptor(out: BytesWriter, code: int) -> None:
    """Write the 00 of a described type and a numeric descriptor."""
    out.append(codes.DESCRIBED)
    write_ulong(out, code)


def read_descriptor(data: bytes, offset: i64, end: i64) -> tuple[i64, i64]:
    """The code of the described value at `offset`, and the offset of its value.

    A number below 2^63 is its own code, known or not. Other descriptors are UNKNOWN unless they are symbols of the
    specification. Raises DecodeError if there is no described value.
    """
    if end - offset >= 3 and data[offset] == codes.DESCRIBED and data[offset + 1] == codes.SMALL_ULONG:
        return data[offset + 2], offset + 3
    if offset >= end or data[offset] != codes.DESCRIBED:
        raise DecodeError(f"a described value is needed at {offset}")
    start = offset + 1
    after = skip_value(data, start, end)
    form: i64 = data[start]
    code: i64 = UNKNOWN
    if form == codes.ULONG:
        code = read_i64_be(data, start + 1)
    elif form == codes.ULONG_0:
        code = 0
    elif form == codes.SYMBOL_8:
        code = _symbolic_code(data[start + 2 : after])
    elif form == codes.SYMBOL_32:
        code = _symbolic_code(data[start + 5 : after])
    return (code if code >= 0 else UNKNOWN), after


def _symbolic_code(octets: bytes) -> i64:
    return CODES.get(octets.decode("latin-1"), UNKNOWN)


def read_list(data: bytes, offset: i64, end: i64) -> tuple[i64, i64, i64]:
    """Read the head of the list at `offset`. Returns the number of its values, their offset, and the end of the list.

    Raises DecodeError if there is no list, or if it announces more values than it has octets.
    """
    return _read_compound(data, offset, end, codes.LIST_8, codes.LIST_0)


def read_map(data: bytes, offset: i64, end: i64) -> tuple[i64, i64, i64]:
    """As `read_list` for a map: returns the number of its keys and values together, their offset, and its end."""
    return _read_compound(data, offset, end, codes.MAP_8, UNKNOWN)


def _read_compound(data: bytes, offset: i64, end: i64, small_code: i64, empty_code: i64) -> tuple[i64, i64, i64]:
    available = end - offset
    if available < 1:
        raise DecodeError(f"a value is cut off at {offset}")
    form: i64 = data[offset]
    if form == small_code and available >= 3:
        count: i64 = data[offset + 2]
        size: i64 = data[offset + 1]
        start = offset + 3
        after = offset + 2 + size
    elif form == small_code + 0x10 and available >= 9:
        size = i64(read_i32_be(data, offset + 1)) & 0xFFFFFFFF
        count = i64(read_i32_be(data, offset + 5)) & 0xFFFFFFFF
        start = offset + 9
        after = offset + 5 + size
    elif form == empty_code:
        return 0, offset + 1, offset + 1
    else:
        raise DecodeError(f"a list or map is needed at {offset}")
    if after > end or after < start or count > after - start:
        raise DecodeError(f"a list or map at {offset} of {count} values in {size} octets")
    return count, start, after
