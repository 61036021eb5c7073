"""Errors on the server side, each with the scope and the condition that the protocol gives it (1.0, 2.6.5, 2.8.14)."""

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
    """A condition, a text for a person, `info` for programs. `scope`: what it ends, LINK, SESSION or CONNECTION."""

    def __init__(self, scope: str, condition: str, text: str, info: dict[str, object] | None = None) -> None:
        super().__init__(text)
        self.info = info
        self.scope = scope
        self.condition = condition
        self.text = text

    @property
    def error(self) -> Error:
        """What the peer is told."""
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


def fault_of(error: ModelError) -> Fault:
    """What a refusal of the model is in this protocol: it concerns the link that asked."""
    for kind, condition in _CONDITIONS:
        if isinstance(error, kind):
            return Fault(LINK, condition, str(error))
    raise error
