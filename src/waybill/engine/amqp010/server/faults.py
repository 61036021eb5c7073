"""Errors on the server side, each with its scope: an exception ends the session, a close-code the connection."""

from typing import Final

from waybill.model.errors import (
    AccessRefused,
    BranchExists,
    IllegalState,
    InvalidArgument,
    ModelError,
    NotAllowed,
    NotFound,
    NotImplementedHere,
    PreconditionFailed,
    ResourceLocked,
    ResourceRefused,
    UnknownExchangeType,
    UsedAsAlternate,
)
from waybill.wire.amqp010.constants import (
    CLOSE_FRAMING_ERROR,
    ERROR_ILLEGAL_STATE,
    ERROR_INVALID_ARGUMENT,
    ERROR_NOT_ALLOWED,
    ERROR_NOT_FOUND,
    ERROR_NOT_IMPLEMENTED,
    ERROR_PRECONDITION_FAILED,
    ERROR_RESOURCE_LIMIT_EXCEEDED,
    ERROR_RESOURCE_LOCKED,
    ERROR_UNAUTHORIZED_ACCESS,
)
from waybill.wire.amqp010.errors import DecodeError, FrameError

CLOSE_TEXT_OCTETS_MAX: Final = 255
DESCRIPTION_OCTETS_MAX: Final = 4096

# More specific kinds first.
_CODES: Final[tuple[tuple[type[ModelError], int], ...]] = (
    (NotFound, ERROR_NOT_FOUND),
    (UnknownExchangeType, ERROR_NOT_FOUND),
    (AccessRefused, ERROR_UNAUTHORIZED_ACCESS),
    (ResourceLocked, ERROR_RESOURCE_LOCKED),
    (UsedAsAlternate, ERROR_NOT_ALLOWED),
    (BranchExists, ERROR_NOT_ALLOWED),
    (ResourceRefused, ERROR_RESOURCE_LIMIT_EXCEEDED),
    (InvalidArgument, ERROR_INVALID_ARGUMENT),
    (PreconditionFailed, ERROR_PRECONDITION_FAILED),
    (NotAllowed, ERROR_NOT_ALLOWED),
    (IllegalState, ERROR_ILLEGAL_STATE),
    (NotImplementedHere, ERROR_NOT_IMPLEMENTED),
)


class Fault(Exception):
    """A code and a text for a person. `is_connection_wide`: the code is a close-code, not an error-code."""

    def __init__(self, code: int, text: str, *, is_connection_wide: bool) -> None:
        super().__init__(text)
        self.code = code
        self.text = cut(text, CLOSE_TEXT_OCTETS_MAX if is_connection_wide else DESCRIPTION_OCTETS_MAX)
        self.is_connection_wide = is_connection_wide


def session_fault(code: int, text: str) -> Fault:
    """An error that ends one session."""
    return Fault(code, text, is_connection_wide=False)


def connection_fault(code: int, text: str) -> Fault:
    """An error that closes the connection."""
    return Fault(code, text, is_connection_wide=True)


def fault_of(error: Exception) -> Fault | None:
    """Return the fault of this protocol for an error; None for an unexpected error."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, FrameError):
        return connection_fault(CLOSE_FRAMING_ERROR, str(error))
    if isinstance(error, DecodeError):
        return session_fault(error.error_code, str(error))
    for kind, code in _CODES:
        if isinstance(error, kind):
            return session_fault(code, str(error))
    return None


def cut(text: str, octets_max: int) -> str:
    """As much of a text as fits, as UTF-8. Names in it come from peers of any protocol, and need not be text."""
    octets = text.encode("utf-8", "replace")
    return octets[:octets_max].decode("utf-8", "ignore")
