"""Changes the number of partitions of a job queue: a step of a migration.

    bind holding, unbind old entrance -> move all old AMQP queues to holding -> delete them
    -> declare new ones and their entrance -> unbind holding -> move holding to the new ones -> delete holding

As in the rest of a migration, each run reads from the broker what has to be done, and repeating it is harmless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from waybill.client import Inspector
from waybill.ojs.topology.broker_changes import BrokerChanges
from waybill.ojs.topology.declarations import BindingDeclaration, QueueDeclaration
from waybill.ojs.topology.mover import Destination, Mover
from waybill.ojs.topology.topology import Topology

HOLDING: Final = "{queue}.migrating"


@dataclass(frozen=True)
class Division:
    """An OJS queue whose number of AMQP queues changes."""

    old: Topology
    new: Topology
    queue: str

    @property
    def sources(self) -> list[str]:
        """The AMQP queues before the change."""
        return self.old.job_queues(self.queue)

    @property
    def holding(self) -> str:
        """The queue in which jobs wait meanwhile."""
        return HOLDING.format(queue=self.old.job_queue(self.queue))

    @property
    def in_place(self) -> bool:
        """Whether the names stay the same."""
        return self.old.job_queue(self.queue) == self.new.job_queue(self.queue)

    @property
    def exit(self) -> Destination:
        """The exchange that jobs are published to afterwards."""
        if self.new.is_partitioned(self.queue):
            return self.new.partitions_exchange(self.queue), self.queue
        return "", self.new.job_queue(self.queue)

    @property
    def target(self) -> str:
        """The destination of the jobs, as text."""
        exchange, key = self.exit
        return exchange or key

    async def pending(self, inspector: Inspector) -> dict[str, int] | None:
        """Return how many messages wait in each existing queue; None if there is nothing to do."""
        names = [*self.sources, self.holding]
        looked_at = [(name, await inspector.queue(name)) for name in names]
        counts = {name: found.message_count for name, found in looked_at if found is not None}
        if self.holding in counts:
            return counts
        if not self.in_place:
            return counts if sum(counts.values()) else None
        is_there = await inspector.queue(self.old.job_queue(self.queue)) is not None
        return None if not is_there or await self._is_divided(inspector) else counts

    async def run(self, changes: BrokerChanges, mover: Mover, inspector: Inspector, *, delete: bool) -> None:
        """Change the partitions. `delete` removes old queues with another name."""
        if not self.in_place:
            await changes.declare(self.new.job_queue_entities(self.queue))
            for source in self.sources:
                await mover.move(source, lambda _: self.exit)
            if delete:
                for source in self.sources:
                    await changes.delete(self._declaration(source))
                await self._delete_division(changes)
            return
        if not await self._is_divided(inspector):
            await changes.declare([QueueDeclaration(self.holding), *self._ways_to_holding()])
            await changes.unbind(self._entrances(self.old))
            await self._empty(changes, mover)
        await changes.declare([*self.new.job_queue_entities(self.queue), *self._entrances(self.new)])
        if await inspector.queue(self.holding) is not None:
            await changes.unbind(self._ways_to_holding())
            while True:
                await mover.move(self.holding, lambda _: self.exit, drops_copies=True)
                if await changes.delete(QueueDeclaration(self.holding)):
                    break

    async def _is_divided(self, inspector: Inspector) -> bool:
        """Return whether exactly the new AMQP queues exist."""
        new = [one for one in self.new.job_queue_entities(self.queue) if isinstance(one, QueueDeclaration)]
        for queue in new:
            if await inspector.queue(queue.name) is None:
                return False
            if await inspector.queue_difference(queue.name, queue.arguments) is not None:
                return False
        left = set(self.sources) - {queue.name for queue in new}
        return not any([await inspector.queue(name) is not None for name in left])

    async def _empty(self, changes: BrokerChanges, mover: Mover) -> None:
        """Move everything to the holding queue, and delete the emptied queues."""
        for source in self.sources:
            while True:
                await mover.move(source, lambda _: ("", self.holding), arrives=False)
                if await changes.delete(self._declaration(source)):
                    break
        await self._delete_division(changes)

    async def _delete_division(self, changes: BrokerChanges) -> None:
        """Delete what divided the queue before, except its AMQP queues."""
        if self.old.is_partitioned(self.queue):
            await changes.delete(QueueDeclaration(self.old.job_queue(self.queue), self.old.control_arguments()))
            await changes.delete_exchange(self.old.partitions_exchange(self.queue))

    def _declaration(self, name: str) -> QueueDeclaration:
        return QueueDeclaration(name, self.old.job_queue_arguments(self.queue))

    def _ways_to_holding(self) -> list[BindingDeclaration]:
        return [BindingDeclaration(self.holding, one, self.queue) for one in self._exchanges()]

    def _entrances(self, topology: Topology) -> list[BindingDeclaration]:
        """Return the bindings by which jobs arrive; producers of either topology must reach the queue."""
        bindings = [one for one in topology.job_queue_entities(self.queue) if isinstance(one, BindingDeclaration)]
        entrance = bindings[-1]
        return [msgspec.structs.replace(entrance, exchange=exchange) for exchange in self._exchanges()]

    def _exchanges(self) -> list[str]:
        """The exchanges that jobs come from, also those that have waited for their time."""
        topologies = (self.old, self.new)
        delayed = [one.delayed for one in topologies if one.schedule_by == "exchange"]
        return list(dict.fromkeys([*(one.direct for one in topologies), *delayed]))
