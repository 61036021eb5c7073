"""Errors of a peer, each with its scope and its condition (1.0, 2.6.5, 2.8.14)."""

from typing import Final

from waybill.model.errors import (
    AccessRefused,
    InvalidArgument,
    ModelError,
    NotAllowed,
    NotFound,
    NotImplementedHere,
    PreconditionFailed,
    ResourceLocked,
    ResourceRefused,
    UnknownExchangeType,
)
from waybill.wire.amqp10 import error as conditions
from waybill.wire.amqp10.error import Error

LINK: Final = "link"
SESSION: Final = "session"
CONNECTION: Final = "connection"

# More specific kinds first.
_CONDITIONS: Final[tuple[tuple[type[ModelError], str], ...]] = (
    (NotFound, conditions.NOT_FOUND),
    (AccessRefused, conditions.UNAUTHORIZED_ACCESS),
    (ResourceLocked, conditions.RESOURCE_LOCKED),
    (InvalidArgument, conditions.INVALID_FIELD),
    (ResourceRefused, conditions.RESOURCE_LIMIT_EXCEEDED),
    (PreconditionFailed, conditions.PRECONDITION_FAILED),
    (UnknownExchangeType, conditions.INVALID_FIELD),
    (NotAllowed, conditions.NOT_ALLOWED),
    (NotImplementedHere, conditions.NOT_IMPLEMENTED),
)


class Fault(Exception):
    """An error with its condition, a text for people and `info` for programs.

    `scope`: what it ends, LINK, SESSION or CONNECTION.
    """

    def __init__(self, scope: str, condition: str, text: str, info: dict[str, object] | None = None) -> None:
        super().__init__(text)
        self.info = info
        self.scope = scope
        self.condition = condition
        self.text = text

    @property
    def error(self) -> Error:
        """The error as the peer gets it."""
        return Error(self.condition, self.text, self.info)


def link_fault(condition: str, text: str) -> Fault:
    """An error that detaches one link, or refuses it."""
    return Fault(LINK, condition, text)


def session_fault(condition: str, text: str) -> Fault:
    """An error that ends one session."""
    return Fault(SESSION, condition, text)


def connection_fault(condition: str, text: str) -> Fault:
    """An error that closes the connection."""
    return Fault(CONNECTION, condition, text)


def link_error(error: Exception) -> Error:
    """The error to detach a link with. Raises the error if it concerns more than the link, or was not caused by a peer.

    This is the one guard between what a peer sends by a link and the link's session.
    """
    fault = fault_of(error) if isinstance(error, ModelError) else error
    if not isinstance(fault, Fault) or fault.scope != LINK:
        raise fault
    return fault.error


def fault_of(error: ModelError) -> Fault:
    """The link fault of an error of the model."""
    for kind, condition in _CONDITIONS:
        if isinstance(error, kind):
            return Fault(LINK, condition, str(error))
    raise error
