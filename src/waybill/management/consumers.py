"""Consumers: /api/consumers, and the consumers of queues and channels."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from waybill.engine.amqp091.server.consumer import ChannelConsumer
from waybill.engine.amqp10.server.outgoing import OutgoingLink
from waybill.engine.server_connection import ServerConnection
from waybill.management.api_context import ApiContext, channel_details
from waybill.management.call import Answer, Call
from waybill.management.listing import Item, Listing
from waybill.management.router import Route
from waybill.model.consumer import Consumer
from waybill.model.queue import Queue

DETAILS_MAX: Final = 1000


class ConsumerRoutes:
    """The routes for consumers."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/consumers", self._list, is_large=True),
            Route("GET", "/consumers/{vhost}", self._list, is_large=True),
        ]

    async def _list(self, call: Call) -> Answer:
        node = self._context.node_name
        listing = Listing[tuple[str, Queue, Consumer]](
            lambda one: consumer_item(one[2], one[1], one[0], node),
            {
                "name": lambda one: one[2].tag,
                "consumer_tag": lambda one: one[2].tag,
                "queue.name": lambda one: one[1].name,
            },
            tie=lambda one: (one[0], one[1].name, one[2].tag),
        )
        found = [
            (host.name, queue, consumer)
            for host in self._context.virtual_hosts(call)
            for queue in host.queues.values()
            if queue.consumers
            for consumer in queue.consumers
        ]
        return await listing.answer(call, found)


def consumer_details(found: Iterable[tuple[Consumer, Queue]], virtual_host: str, node: str) -> list[Item]:
    """Return the consumers of one queue or channel as JSON: of very many, only the first. /api/consumers has all."""
    return [consumer_item(consumer, queue, virtual_host, node) for consumer, queue in islice(found, DETAILS_MAX)]


def consumer_item(consumer: Consumer, queue: Queue, virtual_host: str, node: str) -> Item:
    """Return a consumer as JSON."""
    engine, number = _where(consumer)
    is_single = queue.policy.single_active_consumer
    is_active = not is_single or next(iter(queue.consumers), None) is consumer
    return {
        "ack_required": not consumer.no_ack,
        "active": is_active,
        "activity_status": "single_active" if is_single and is_active else "waiting" if is_single else "up",
        "arguments": {"x-priority": int(consumer.priority)} if consumer.priority else {},
        "channel_details": {} if engine is None else channel_details(engine, number, node),
        "consumer_tag": consumer.tag,
        "exclusive": consumer.exclusive,
        "prefetch_count": int(consumer.prefetch) if isinstance(consumer, ChannelConsumer) else 0,
        "queue": {"name": queue.name, "vhost": virtual_host},
        "unacknowledged": int(consumer.unsettled_count),
    }


def _where(consumer: Consumer) -> tuple[ServerConnection | None, int]:
    """Return the connection of a consumer, and its channel or session."""
    if isinstance(consumer, ChannelConsumer):
        return consumer.connection, int(consumer.channel.number)
    if isinstance(consumer, OutgoingLink):
        return consumer.connection, int(consumer.session.channel)
    return None, 0
