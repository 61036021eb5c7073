"""Errors on the server side, each with the scope and the reply code that the protocol gives it."""

from typing import Final

from waybill.model.errors import (
    AccessRefused,
    ModelError,
    NotAllowed,
    NotFound,
    NotImplementedHere,
    PreconditionFailed,
    ResourceLocked,
    UnknownExchangeType,
)
from waybill.wire.amqp091.errors import DecodeError, UnknownMethod
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods import decode_method
from waybill.wire.amqp091.reply_codes import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    REPLY_NAMES,
    RESOURCE_LOCKED,
)

REPLY_TEXT_OCTETS_MAX: Final = 255
# Ids of classes and methods that are used outside the generated tables.
EXCHANGE: Final = 40
QUEUE: Final = 50
BASIC: Final = 60
PUBLISH: Final = 40
ACK: Final = 80

# More specific kinds first; with each whether it closes the connection.
_FAULTS: Final[tuple[tuple[type[ModelError], int, bool], ...]] = (
    (NotFound, NOT_FOUND, False),
    (AccessRefused, ACCESS_REFUSED, False),
    (ResourceLocked, RESOURCE_LOCKED, False),
    (PreconditionFailed, PRECONDITION_FAILED, False),
    (UnknownExchangeType, COMMAND_INVALID, True),
    (NotAllowed, NOT_ALLOWED, True),
    (NotImplementedHere, NOT_IMPLEMENTED, True),
)


def reply_text(text: str) -> str:
    """Return a text cut to fit a short string.

    Names in it come from peers, and their characters take 1 to 4 bytes. A character that would be cut is dropped.
    """
    octets = text.encode("utf-8", "surrogateescape")
    if len(octets) <= REPLY_TEXT_OCTETS_MAX:
        return text
    end = REPLY_TEXT_OCTETS_MAX
    # The first octet left out continues a character, of four octets at most: names need not be UTF-8.
    while octets[end] & 0xC0 == 0x80 and end > REPLY_TEXT_OCTETS_MAX - 3:
        end -= 1
    return octets[:end].decode("utf-8", "surrogateescape")


class Fault(Exception):
    """A reply code and a text for a person. `is_connection_wide` tells the scope: one channel, or the connection."""

    def __init__(
        self, code: int, text: str, *, is_connection_wide: bool, class_id: int = 0, method_id: int = 0
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = reply_text(f"{REPLY_NAMES[code]} - {text}")
        self.is_connection_wide = is_connection_wide
        self.class_id = class_id
        self.method_id = method_id


def channel_fault(code: int, text: str, class_id: int = 0, method_id: int = 0) -> Fault:
    """An error that closes one channel."""
    return Fault(code, text, is_connection_wide=False, class_id=class_id, method_id=method_id)


def connection_fault(code: int, text: str, class_id: int = 0, method_id: int = 0) -> Fault:
    """An error that closes the connection."""
    return Fault(code, text, is_connection_wide=True, class_id=class_id, method_id=method_id)


def fault_of(error: Exception, class_id: int, method_id: int) -> Fault | None:
    """Return the fault of this protocol for an error; None for an unexpected error."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, DecodeError):
        return connection_fault(error.reply_code, str(error))
    for kind, code, is_connection_wide in _FAULTS:
        if isinstance(error, kind):
            return Fault(
                code, str(error), is_connection_wide=is_connection_wide, class_id=class_id, method_id=method_id
            )
    return None


def read_method(payload: bytes) -> Method:
    """Decode the payload of a method frame. Raises a connection fault that names the method, if it is known."""
    try:
        return decode_method(payload)
    except UnknownMethod as unknown:
        raise connection_fault(unknown.reply_code, str(unknown), unknown.class_id, unknown.method_id) from None
    except DecodeError as error:
        class_id = int.from_bytes(payload[:2], "big") if len(payload) >= 4 else 0
        method_id = int.from_bytes(payload[2:4], "big") if class_id else 0
        raise connection_fault(error.reply_code, f"cannot decode a method: {error}", class_id, method_id) from None
