"""Which broker is meant: for a program that does not say, and for the commands.

The first of these counts: a URI that is given, a context that is named, WAYBILL_URL (or WAYBILL_URI), WAYBILL_CONTEXT,
the context in use, the broker of this machine.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from waybill.ojs.connection import contexts
from waybill.ojs.connection.contexts import Context
from waybill.ojs.errors import UnknownContext
from waybill.ojs.topology.names import SPEC, WEB
from waybill.ojs.topology.topology import LeaderLocator, QueueType, Topology

DEFAULT_URI: Final = "amqp://guest:guest@localhost:5672/%2Fojs"


@dataclass(frozen=True)
class BrokerTarget:
    """A broker, and how things are named there. `context` is the name of the context that it came from."""

    uri: str = dataclasses.field(repr=False)
    context: str | None = None
    management: str | None = dataclasses.field(default=None, repr=False)
    names: str = "spec"
    prefix: str = ""
    queue_type: QueueType = "classic"
    replicas: int | None = None
    leader_locator: LeaderLocator | None = None
    partitions: Mapping[str, int] = dataclasses.field(default_factory=dict, hash=False)
    event_partitions: int = 1

    def topology(self) -> Topology:
        """What is declared on this broker."""
        return Topology(
            names=WEB if self.names == "web" else SPEC,
            prefix=self.prefix,
            queue_type=self.queue_type,
            replicas=self.replicas,
            leader_locator=self.leader_locator,
            partitions=self.partitions,
            event_partitions=self.event_partitions,
        )


def chosen(uri: str | None = None, context_name: str | None = None) -> BrokerTarget:
    """Find the broker that is meant. Raises UnknownContext, UnusableContexts."""
    if uri is None and context_name is None:
        uri = os.environ.get("WAYBILL_URL") or os.environ.get("WAYBILL_URI")
    if uri is not None:
        return BrokerTarget(uri)
    known = contexts.load()
    name = context_name or os.environ.get("WAYBILL_CONTEXT") or known.current
    if name is None:
        return BrokerTarget(DEFAULT_URI)
    if name not in known.contexts:
        there = ", ".join(sorted(known.contexts)) or "no contexts yet: `waybill context add NAME URI`"
        raise UnknownContext(f"there is no context {name!r}; there is {there}")
    return broker_of(name, known.contexts[name])


def broker_of(name: str, context: Context) -> BrokerTarget:
    """Return the broker of a context."""
    return BrokerTarget(**{**msgspec.structs.asdict(context), "context": name})
