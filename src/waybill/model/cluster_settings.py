"""Settings of RabbitMQ's policies that place queues in a cluster: checked, stored and shown, but without effect.

A single node has no mirrors and no leaders to place, and decides itself which queues to page out. Clients and
definitions of RabbitMQ have these settings nevertheless, and a single RabbitMQ node accepts them, too.
"""

from typing import Final

from waybill.model.errors import InvalidArgument

HA_MODE: Final = "ha-mode"
HA_PARAMS: Final = "ha-params"
SYNC_MODES: Final = frozenset({"manual", "automatic"})
PROMOTIONS: Final = frozenset({"always", "when-synced"})
_CHOICES: Final[dict[str, frozenset[str]]] = {
    HA_MODE: frozenset({"all", "exactly", "nodes"}),
    "ha-sync-mode": SYNC_MODES,
    "ha-promote-on-shutdown": PROMOTIONS,
    "ha-promote-on-failure": PROMOTIONS,
    "queue-mode": frozenset({"default", "lazy"}),
    "queue-master-locator": frozenset({"min-masters", "client-local", "random"}),
    "queue-leader-locator": frozenset({"client-local", "balanced", "random", "least-leaders"}),
    "dead-letter-strategy": frozenset({"at-most-once", "at-least-once"}),
}
_LEAST: Final[dict[str, int]] = {
    "ha-sync-batch-size": 1,
    "initial-cluster-size": 1,
    "max-in-memory-bytes": 0,
    "max-in-memory-length": 0,
    "queue-version": 1,
}
OPERATORS: Final = frozenset({"max-in-memory-bytes", "max-in-memory-length"})
"""Those that an operator policy may have."""
CLUSTER_SETTINGS: Final = frozenset(_CHOICES) | frozenset(_LEAST) | {HA_PARAMS}


def check_cluster_settings(definition: dict[str, object]) -> None:
    """Raise `InvalidArgument` for a value that RabbitMQ refuses, or for settings of mirrors without `ha-mode`."""
    for name, value in definition.items():
        choices = _CHOICES.get(name)
        if choices is not None and not (isinstance(value, str) and value in choices):
            raise InvalidArgument(f"'{name}' must be one of {', '.join(sorted(choices))}, not {value!r}")
        least = _LEAST.get(name)
        if least is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise InvalidArgument(f"'{name}' must be an integer of at least {least}, not {value!r}")
    mode = definition.get(HA_MODE)
    if mode is None:
        mirrors = sorted(name for name in definition if name.startswith("ha-"))
        if mirrors:
            raise InvalidArgument(f"'{mirrors[0]}' requires '{HA_MODE}'")
    elif not _fits(mode, definition.get(HA_PARAMS)):
        raise InvalidArgument(f"'{HA_PARAMS}' does not fit '{HA_MODE}' {mode!r}")


def _fits(mode: object, parameters: object) -> bool:
    """Whether the parameters are of the kind that a mode of mirrors takes: how many, or the names of nodes."""
    if mode == "exactly":
        return isinstance(parameters, int) and not isinstance(parameters, bool) and parameters > 0
    if mode == "nodes":
        return isinstance(parameters, list) and bool(parameters) and all(isinstance(one, str) for one in parameters)
    return True
