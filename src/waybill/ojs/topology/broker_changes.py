"""The changes that a migration makes on a broker."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from waybill.client import Channel, Connection, Inspector, NotFound, PreconditionFailed
from waybill.ojs.errors import JobsError
from waybill.ojs.topology.declarations import BindingDeclaration, Entity, ExchangeDeclaration, QueueDeclaration


class MigrationBlocked(JobsError):
    """A queue that is to be moved has consumers: pause it, or stop its workers."""


class BrokerChanges:
    """Makes changes over one connection, each on a separate channel. Methods raise the client's errors."""

    def __init__(self, connection: Connection) -> None:
        self._open = connection

    async def require_no_consumers(self, names: Sequence[str]) -> None:
        inspector = Inspector(self._open)
        for name in names:
            queue = await inspector.queue(name)
            if queue is not None and queue.consumer_count:
                raise MigrationBlocked(f"{name} has {queue.consumer_count} consumers")

    async def declare(self, entities: Sequence[Entity]) -> None:
        async with await self._open.channel() as channel:
            for entity in {repr(entity): entity for entity in entities}.values():
                await declare_one(channel, entity)

    async def unbind(self, bindings: Sequence[BindingDeclaration]) -> None:
        for binding in bindings:
            with contextlib.suppress(NotFound):
                async with await self._open.channel() as channel:
                    unbind = channel.unbind_exchange if binding.to_exchange else channel.unbind_queue
                    await unbind(binding.destination, binding.exchange, binding.routing_key)

    async def delete(self, queue: QueueDeclaration) -> bool:
        """Delete an empty queue without consumers; False if it is not empty any more."""
        await self.require_no_consumers([queue.name])
        # RabbitMQ supports no conditions for quorum queues. This queue has no bindings any more, so it stays empty.
        is_quorum = queue.arguments.get("x-queue-type") == "quorum"
        if is_quorum:
            found = await Inspector(self._open).queue(queue.name)
            if found is not None and found.message_count:
                return False
        try:
            async with await self._open.channel() as channel:
                await channel.delete_queue(queue.name, if_unused=not is_quorum, if_empty=not is_quorum)
        except PreconditionFailed:
            await self.require_no_consumers([queue.name])
            return False
        return True

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange with its bindings; a missing one is not an error."""
        async with await self._open.channel() as channel:
            await channel.delete_exchange(name)


async def declare_one(channel: Channel, entity: Entity) -> None:
    match entity:
        case ExchangeDeclaration():
            await channel.declare_exchange(entity.name, entity.type, durable=True, arguments=entity.arguments or None)
        case QueueDeclaration():
            await channel.declare_queue(entity.name, durable=True, arguments=entity.arguments)
        case BindingDeclaration(to_exchange=True):
            await channel.bind_exchange(entity.destination, entity.exchange, entity.routing_key)
        case BindingDeclaration():
            await channel.bind_queue(entity.destination, entity.exchange, entity.routing_key, entity.arguments or None)
