"""Refusals of the model, in terms of no protocol. Each engine maps them to its own codes and scopes."""


class ModelError(Exception):
    """Something that a client asked for cannot be done; `str()` is a text for that client."""


class NotFound(ModelError):
    """An entity named by the client does not exist."""


class AccessRefused(ModelError):
    """The client may not do this to that entity."""


class ResourceLocked(ModelError):
    """Another connection holds the entity for itself."""


class PreconditionFailed(ModelError):
    """The entity exists and differs, or its state does not allow what was asked."""


class NotAllowed(ModelError):
    """Forbidden by a rule that concerns the whole connection (an unknown virtual host, a limit of it)."""


class InvalidArgument(PreconditionFailed):
    """An argument has the wrong type or a value out of range."""


class UnknownExchangeType(ModelError):
    """No such exchange type."""


class NotImplementedHere(ModelError):
    """The entity cannot do what was asked, by its kind."""


class DamagedMessage(ModelError):
    """A message at rest fails its checksum. It is reported, never delivered."""


class ReadPostponed(Exception):
    """The disk cannot give something at the moment. It is to be asked again a little later, by whoever needs it."""


class ResourceRefused(PreconditionFailed):
    """The node lacks the means at present; the same may be asked again later."""


class StoreFailed(Exception):
    """Writing or syncing failed. What is durable is unknown from here on, so the store takes no more work."""


class DefinitionsLost(Exception):
    """What is declared in a data directory cannot be read. Nobody goes on without: rights and messages hang on it."""


class UnsupportedStoreVersion(Exception):
    """The data directory was written by a newer version, in a format that this one cannot read."""


def too_many_steps(limit: int) -> PreconditionFailed:
    """A message cannot be routed: exchanges and bindings are more, or more entangled, than one message may meet."""
    return PreconditionFailed(f"what a message meets on its way to its queues takes more than {limit} steps")
