"""Compares a broker with a topology. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from waybill.client import AccessRefused, Connection, Inspector, ResourceLocked
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.topology.declarations import Entity, ExchangeDeclaration, QueueDeclaration
from waybill.ojs.topology.topology import Topology


class Standing(Enum):
    """The status of an entity on the broker."""

    AGREES = "agrees"
    DIFFERENT = "different"
    MISSING = "missing"
    ON_DEMAND = "on demand"
    """Missing; declared when the first job needs it, unless the topology says `never`."""
    REFUSED = "refused"
    """This user has no permission, or another connection holds it exclusively."""


@dataclass(frozen=True)
class Finding:
    """The status of an exchange or a queue; `detail` is the broker's text."""

    kind: str
    name: str
    standing: Standing
    detail: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether an action is needed."""
        return self.standing not in {Standing.AGREES, Standing.ON_DEMAND}


async def check_topology(connection: Connection, topology: Topology, queues: Sequence[str]) -> list[Finding]:
    """Check everything that some OJS queues need. AMQP cannot list bindings; declaring restores them.

    Raises InvalidJob for a bad queue name.
    """
    inspector = Inspector(connection)
    findings: dict[str, Finding] = {}
    for queue in queues:
        check_queue(queue)
        for entity, is_needed in _entities(topology, queue):
            if not isinstance(entity, ExchangeDeclaration | QueueDeclaration):
                continue
            key = f"{type(entity).__name__} {entity.name}"
            if key not in findings:
                findings[key] = await _look(inspector, entity, is_needed=is_needed)
    return list(findings.values())


def _entities(topology: Topology, queue: str) -> Iterator[tuple[Entity, bool]]:
    needed = [*topology.shared_entities(), *topology.queue_entities(queue)]
    yield from ((entity, True) for entity in needed)
    yield from ((entity, False) for entity in topology.all_entities(queue) if entity not in needed)


async def _look(inspector: Inspector, entity: ExchangeDeclaration | QueueDeclaration, *, is_needed: bool) -> Finding:
    kind = "queue" if isinstance(entity, QueueDeclaration) else "exchange"
    try:
        if isinstance(entity, QueueDeclaration):
            exists = await inspector.queue(entity.name) is not None
            difference = await inspector.queue_difference(entity.name, entity.arguments) if exists else None
        else:
            exists = await inspector.has_exchange(entity.name)
            wanted = (entity.name, entity.type, entity.arguments)
            difference = await inspector.exchange_difference(*wanted) if exists else None
    except (AccessRefused, ResourceLocked) as error:
        return Finding(kind, entity.name, Standing.REFUSED, str(error))
    if not exists:
        return Finding(kind, entity.name, Standing.MISSING if is_needed else Standing.ON_DEMAND)
    if difference is not None:
        return Finding(kind, entity.name, Standing.DIFFERENT, difference)
    return Finding(kind, entity.name, Standing.AGREES)
