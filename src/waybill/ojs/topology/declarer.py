"""Declares a topology on a broker, each entity once (binding section 7.3)."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Final

from waybill.client import Channel, ChannelClosed, ClientError, CommandInvalid, PreconditionFailed
from waybill.ojs.errors import DeclarationRefused, TopologyConflict
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.topology.declarations import BindingDeclaration, Entity, ExchangeDeclaration, QueueDeclaration
from waybill.ojs.topology.topology import Declaration, Topology

KEEPS_NO_MORE: Final = "PRECONDITION_FAILED - cannot "
"""How the error of a broker begins that has reached a limit, Waybill's or RabbitMQ's; others are about properties."""

_log = logging.getLogger("waybill.ojs.topology")


class TopologyDeclarer:
    """Declares what is needed, according to the topology's strategy.

    An entity that exists with other properties is logged, never declared again, and raised as TopologyConflict.
    """

    def __init__(self, channel: Channel, topology: Topology) -> None:
        """`channel` is used for declarations only: an error closes it, and it reopens by itself."""
        self.topology = topology
        self._channel = channel
        self._done: set[str] = set()
        self._told: set[str] = set()
        self._lock = asyncio.Lock()
        self._knows_queue_type = topology.queue_type == "classic"

    async def ensure_shared(self) -> None:
        """Declare the exchanges and the event streams."""
        if "shared" not in self._done:
            await self._declare("shared", self.topology.shared_entities)
            if self.topology.event_partitions > 1 and self.topology.declaration is not Declaration.NEVER:
                # After the other way is there, so that nothing is lost. A program without partitions may restore it:
                # the first stream then has copies, which change nothing.
                whole = self.topology.whole_events()
                await self._channel.unbind_queue(whole.destination, whole.exchange, whole.routing_key)

    async def ensure_queue(self, queue: str, *, as_found: bool = False) -> None:
        """Declare what a push to `queue` or its worker needs; with the eager strategy, all that it can ever need.

        `as_found`: existing queues are used as they are, for coordinators, which do not know the application's
        settings.
        """
        key = f"queue {queue}"
        if key in self._done:
            return
        await self.ensure_shared()
        if self.topology.declaration is Declaration.EAGER:
            await self._declare(key, lambda: self.topology.all_entities(queue), as_found=as_found)
        else:
            await self._declare(key, lambda: self.topology.queue_entities(queue), as_found=as_found)

    def has_declared(self, queue: str) -> bool:
        """Whether `ensure_queue` has nothing to do."""
        return f"queue {queue}" in self._done

    async def ensure_retry(self, queue: str, delay_ms: int) -> None:
        """Declare the queue in which failed jobs of `queue` wait for `delay_ms`."""
        key = f"retry {queue} {delay_ms}"
        if key not in self._done:
            await self._declare(key, lambda: self.topology.retry_entities(queue, delay_ms))

    async def ensure_schedule(self, queue: str, *, as_found: bool = False) -> None:
        """Declare the queues in which scheduled jobs wait, and their route to `queue`; see `ensure_queue`."""
        if "ladder" not in self._done:
            await self._declare("ladder", self.topology.schedule_entities, as_found=as_found)
        key = f"release {queue}"
        if key not in self._done:
            await self._declare(key, lambda: self.topology.release_entities(queue), as_found=as_found)

    async def ensure_relay(self) -> None:
        """Declare the route from coordinators to workers."""
        if "relay" not in self._done:
            await self._declare("relay", self.topology.relay_entities)

    async def ensure_control(self, queue: str) -> None:
        """Declare the control queue of `queue`."""
        key = f"control {queue}"
        if key not in self._done:
            await self.ensure_shared()
            await self._declare(key, lambda: self.topology.control_entities(queue))

    async def ensure_requests(self) -> None:
        """Declare the queue of requests that name no queue."""
        if "requests" not in self._done:
            await self.ensure_shared()
            await self._declare("requests", self.topology.request_entities)

    async def ensure_leader(self) -> None:
        """Declare the queue of the coordinators' heartbeats."""
        if "leader" not in self._done:
            await self._declare("leader", self.topology.leader_entities)

    def forget_leader(self) -> None:
        """Declare the queue of the heartbeats again when it is next needed, because it is missing."""
        self._done.discard("leader")

    def forget_shared(self) -> None:
        """Declare the exchanges and the stream again when they are next needed, because something is missing."""
        self._done.discard("shared")

    def forget_queue(self, queue: str) -> None:
        """Declare all that belongs to `queue` again when it is next needed, because something is missing."""
        of_others = {key for key in self._done if key.split(" ")[1:2] != [queue]}
        self._done = of_others - {"shared", "ladder", "relay", "requests"}

    async def _declare(self, key: str, entities: Callable[[], list[Entity]], *, as_found: bool = False) -> None:
        if self.topology.declaration is Declaration.NEVER:
            self._done.add(key)
            return
        async with self._lock:
            if key in self._done:
                return
            await self._settle_queue_type()
            for entity in entities():
                await self._declare_entity(entity, as_found=as_found)
            self._done.add(key)

    async def _declare_entity(self, entity: Entity, *, as_found: bool) -> None:
        try:
            match entity:
                case ExchangeDeclaration():
                    await self._channel.declare_exchange(
                        entity.name, entity.type, durable=True, arguments=entity.arguments or None
                    )
                case QueueDeclaration():
                    await self._declare_queue(entity)
                case BindingDeclaration(to_exchange=True):
                    await self._channel.bind_exchange(entity.destination, entity.exchange, entity.routing_key)
                case BindingDeclaration():
                    await self._channel.bind_queue(
                        entity.destination, entity.exchange, entity.routing_key, entity.arguments or None
                    )
        except PreconditionFailed as error:
            if KEEPS_NO_MORE in error.text:
                self._tell("the broker refuses %s: %s", entity, error)
                raise DeclarationRefused(f"the broker keeps no more: {error}") from error
            if as_found and isinstance(entity, QueueDeclaration) and not entity.is_exact:
                _log.debug("%s exists with other properties; using it unchanged: %s", entity, error)
                return
            self._tell("%s exists with other properties; leaving it unchanged: %s", entity, error)
            text = f"{entity} exists with other properties: {error}"
            if isinstance(entity, QueueDeclaration) and "x-max-length" in error.text:
                # The placeholder of a queue with partitions, or a queue that is to get some.
                text += "; all programs need the same limits and partitions of a queue"
            raise TopologyConflict(text) from error
        except CommandInvalid as error:
            way_out = "use Topology(schedule_by='ladder')"
            if isinstance(entity, ExchangeDeclaration) and entity.type == "x-consistent-hash":
                way_out = "partitions need RabbitMQ's plugin rabbitmq_consistent_hash_exchange, which comes with it"
            raise TopologyConflict(f"this broker does not support the exchange type of {entity}: {way_out}") from error

    def _tell(self, text: str, entity: Entity, error: ClientError) -> None:
        """Log an error the first time: workers try again every minute."""
        level = logging.DEBUG if str(entity) in self._told else logging.ERROR
        self._told.add(str(entity))
        _log.log(level, text, entity, error)

    async def _declare_queue(self, entity: QueueDeclaration) -> None:
        """Declare a queue, or use it as a program with the other naming profile has declared it.

        Messages that leave such a queue come back over the exchanges of the other profile, to the same job queue.
        """
        try:
            await self._channel.declare_queue(entity.name, durable=True, arguments=entity.arguments or None)
        except PreconditionFailed:
            other = self.topology.under_other_names(entity)
            if other is None:
                raise
            try:
                await self._channel.declare_queue(other.name, durable=True, arguments=other.arguments)
            except PreconditionFailed:
                # Further differences do not matter to the caller.
                await self._channel.declare_queue(entity.name, durable=True, arguments=entity.arguments or None)
            _log.info("%s was declared with another naming profile; using it unchanged", entity.name)

    async def _settle_queue_type(self) -> None:
        """Find out once whether the broker supports quorum queues, with a queue that nobody else declares."""
        if self._knows_queue_type:
            return
        name = f"{self.topology.prefix}ojs.probe.{new_id()}"
        try:
            await self._channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
            await self._channel.delete_queue(name)
        except ChannelClosed as error:
            _log.warning("this broker has no quorum queues; declaring classic job queues: %s", error)
            self.topology = dataclasses.replace(self.topology, queue_type="classic", replicas=None, leader_locator=None)
        self._knows_queue_type = True
