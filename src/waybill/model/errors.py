"""Errors of the model. `server/faults.py` of each engine maps them to the codes and scopes of its protocol."""


class ModelError(Exception):
    """A client's request is refused. `str()` is the text that the client gets."""


class NotFound(ModelError):
    """An entity named by the client does not exist."""


class AccessRefused(ModelError):
    """The client lacks permission for this entity."""


class ResourceLocked(ModelError):
    """The entity is exclusive to another connection."""


class PreconditionFailed(ModelError):
    """The entity exists with other settings, or its state does not allow the request."""


class UsedAsAlternate(PreconditionFailed):
    """An exchange cannot be deleted: it is the alternate of others."""


class NotAllowed(ModelError):
    """The connection is not allowed: its virtual host is unknown, or a limit is reached."""


class BranchExists(NotAllowed):
    """A transaction branch with this xid exists already."""


class InvalidArgument(PreconditionFailed):
    """An argument has the wrong type or a value out of range."""


class UnknownExchangeType(ModelError):
    """No such exchange type."""


class IllegalState(ModelError):
    """The request is not possible in the current state: a transaction is still open, or has ended."""


class NotImplementedHere(ModelError):
    """This kind of entity does not support the request."""


class DamagedMessage(ModelError):
    """A stored message fails its checksum. It is reported, never delivered."""


class ReadPostponed(Exception):
    """The disk cannot serve a read now. The caller retries it a little later."""


class ResourceRefused(PreconditionFailed):
    """The node lacks resources now; the client may try again later."""


class StoreFailed(Exception):
    """A write or sync failed. It is unknown what is durable, so the store stops."""


class DefinitionsLost(Exception):
    """The definitions in a data directory cannot be read. The node does not start without them."""


class UnsupportedStoreVersion(Exception):
    """The data directory was written by a newer version, in a format that this one cannot read."""


def too_many_steps(limit: int) -> PreconditionFailed:
    """The error for a message whose route has too many exchanges and bindings."""
    return PreconditionFailed(f"routing a message to its queues takes more than {limit} steps")
