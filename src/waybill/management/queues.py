"""Queues: /api/queues, to list, show, declare, purge and delete."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from waybill.engine.server_connection import ServerConnection
from waybill.management.api_context import ApiContext, connection_details, queue_of, size_of
from waybill.management.bindings import list_bindings
from waybill.management.call import CREATED, NO_CONTENT, Answer, Call, flag_of, table_of, text_of
from waybill.management.connections import GARBAGE_COLLECTION
from waybill.management.consumers import consumer_details
from waybill.management.errors import bad_request, not_authorised
from waybill.management.history import Indexes
from waybill.management.listing import Item, Listing, cut_to_columns, plain
from waybill.management.rates import MESSAGE_STATS, NO_SPANS, Spans, lengths, message_stats, spans_of
from waybill.management.router import Route
from waybill.management.statistic_kinds import QUEUES
from waybill.model.binding import QUEUE
from waybill.model.permission import CONFIGURE, READ
from waybill.model.policy import Policy
from waybill.model.queue import Queue
from waybill.model.queue_arguments import CLASSIC
from waybill.model.runtime import Chore
from waybill.model.stream import Stream
from waybill.model.virtual_host import VirtualHost
from waybill.node.node import Node

Place = tuple[VirtualHost, Queue]
ACTIONS: Final = frozenset({"sync", "cancel_sync"})


class QueueRoutes:
    """The routes for queues."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/queues", self._list, is_large=True),
            Route("GET", "/queues/detailed", self._list, is_large=True),
            Route("GET", "/queues/{vhost}", self._list, is_large=True),
            Route("GET", "/queues/{vhost}/{queue}", self._show),
            Route("PUT", "/queues/{vhost}/{queue}", self._declare),
            Route("DELETE", "/queues/{vhost}/{queue}", self._delete),
            Route("GET", "/queues/{vhost}/{queue}/bindings", self._bindings),
            Route("DELETE", "/queues/{vhost}/{queue}/contents", self._purge),
            Route("POST", "/queues/{vhost}/{queue}/actions", self._act),
            Route("POST", "/rebalance/queues", self._rebalance),
        ]

    async def _list(self, call: Call) -> Answer:
        spans = spans_of(call.query)
        is_short = call.flag("disable_stats")
        listing = Listing[Place](
            lambda place: self._short(place) if is_short else self.item(place, spans),
            {
                "name": lambda place: place[1].name,
                "vhost": lambda place: place[0].name,
                "type": lambda place: place[1].policy.type,
                "durable": lambda place: place[1].durable,
                "auto_delete": lambda place: place[1].auto_delete,
                "consumers": lambda place: len(place[1].consumers),
                "messages": lambda place: place[1].message_count + int(place[1].unsettled_count),
                "messages_ready": lambda place: place[1].message_count,
                "messages_unacknowledged": lambda place: int(place[1].unsettled_count),
                "state": lambda _place: "running",
                **self._rates(),
            },
            tie=lambda place: (place[0].name, place[1].name),
        )
        hosts = self._context.virtual_hosts(call)
        return await listing.answer(call, ((host, queue) for host in hosts for queue in host.queues.values()))

    def _rates(self) -> dict[str, Callable[[Place], object]]:
        """Return the rates, to sort by them without making whole items."""
        return {
            f"message_stats.{name}_details.rate": partial(self._rate, indexes)
            for name, indexes in MESSAGE_STATS[QUEUES.name]
        }

    def _rate(self, indexes: Indexes, place: Place) -> float:
        sampler = self._context.sampler
        series = sampler.series(QUEUES, (place[0].name, place[1].name))
        return 0.0 if series is None else series.rate(indexes, sampler.now)

    @staticmethod
    def _short(place: Place) -> Item:
        host, queue = place
        return {
            "arguments": plain(queue.arguments),
            "auto_delete": queue.auto_delete,
            "durable": queue.durable,
            "exclusive": queue.owner is not None,
            "messages": queue.message_count + int(queue.unsettled_count),
            "messages_ready": queue.message_count,
            "messages_unacknowledged": int(queue.unsettled_count),
            "name": queue.name,
            "type": queue.policy.type,
            "vhost": host.name,
        }

    def item(self, place: Place, spans: Spans = NO_SPANS) -> Item:
        """Return a queue as an item of a list."""
        host, queue = place
        sampler = self._context.sampler
        key = (host.name, queue.name)
        row = (*queue.counts(), queue.message_count, int(queue.unsettled_count))
        before = sampler.before(QUEUES, key)
        if before:
            row = tuple(map(int.__add__, row, before))
        series = sampler.series(QUEUES, key)
        size = size_of(queue)
        single = queue.policy.single_active_consumer and next(iter(queue.consumers), None)
        item: Item = {
            **self._short(place),
            "consumer_capacity": 0.0 if not queue.consumers else 1.0 if not row[-2] else 0.0,
            "consumer_utilisation": 0.0 if not queue.consumers else 1.0 if not row[-2] else 0.0,
            "consumers": len(queue.consumers),
            "exclusive_consumer_tag": None if queue.exclusive_consumer is None else queue.exclusive_consumer.tag,
            "garbage_collection": GARBAGE_COLLECTION,
            "head_message_timestamp": None,
            "memory": int(queue.footprint),
            "message_bytes": size,
            "message_bytes_paged_out": 0,
            "message_bytes_persistent": size if queue.is_persistent else 0,
            "message_bytes_ram": 0,
            "message_bytes_ready": size,
            "message_bytes_unacknowledged": 0,
            "messages_paged_out": 0,
            "messages_persistent": row[-2] + row[-1] if queue.is_persistent else 0,
            "messages_ram": row[-2] + row[-1],
            "messages_ready_ram": row[-2],
            "messages_unacknowledged_ram": row[-1],
            "node": self._context.node_name,
            "recoverable_slaves": None,
            "reductions": 0,
            "reductions_details": {"rate": 0.0},
            "single_active_consumer_tag": single.tag if single else None,
            "state": "running",
            **_policies(host, queue),
            **lengths(QUEUES, row, series, sampler.now, spans.lengths),
        }
        stats = message_stats(QUEUES, row, series, sampler.now, spans.msg_rates)
        if stats:
            item["message_stats"] = stats
        return item | self._of_kind(queue)

    def _of_kind(self, queue: Queue) -> Item:
        """Return the fields of the queue's type."""
        item: Item = {}
        if isinstance(queue.owner, ServerConnection):
            item["owner_pid_details"] = connection_details(queue.owner)
        if queue.policy.type != CLASSIC:
            name = self._context.node_name
            item |= {"leader": name, "members": [name], "online": [name], "open_files": {name: 0}}
        if isinstance(queue, Stream):
            item |= {"first_offset": int(queue.log.first_offset), "next_offset": int(queue.log.next_offset)}
        return item

    async def _show(self, call: Call) -> Item:
        host = self._context.virtual_host(call)
        queue = queue_of(host, call["queue"])
        item = self.item((host, queue), spans_of(call.query))
        consumers = ((consumer, queue) for consumer in queue.consumers)
        item["consumer_details"] = consumer_details(consumers, host.name, self._context.node_name)
        item["deliveries"] = []
        item["incoming"] = []
        return cut_to_columns(call.query, item)

    async def _bindings(self, call: Call) -> Answer:
        host = self._context.virtual_host(call)
        queue = host.queues.get(call["queue"])
        if queue is None:
            return Answer(200, [])
        return await list_bindings(call, host, [queue, *queue.bindings.values()])

    # --- changes ---

    async def _declare(self, call: Call) -> Answer:
        host = self._context.writable_virtual_host(call)
        body = call.take_body()
        name = call["queue"]
        durable = flag_of(body, "durable", default=True)
        auto_delete = flag_of(body, "auto_delete")
        arguments = table_of(body, "arguments")
        is_new = name not in host.queues
        if is_new and name.startswith("amq."):
            raise not_authorised(f"ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'")

        def declare(_node: Node) -> None:
            call.principal.check(host, CONFIGURE, QUEUE, name)
            host.declare_queue(
                name,
                durable=durable,
                auto_delete=auto_delete,
                exclusive_to=None,
                connection=None,
                arguments=arguments,
            )

        await self._context.perform(declare)
        return Answer(CREATED if is_new else NO_CONTENT)

    async def _delete(self, call: Call) -> Answer:
        host = self._context.writable_virtual_host(call)
        queue = queue_of(host, call["queue"])

        def delete(_node: Node) -> Chore | None:
            call.principal.check(host, CONFIGURE, QUEUE, queue.name)
            return host.delete_queue(
                queue.name,
                # An operator may delete exclusive queues, as in RabbitMQ.
                queue.owner,
                if_unused=call.flag("if-unused"),
                if_empty=call.flag("if-empty"),
            )

        await self._context.perform(delete)
        return Answer(NO_CONTENT)

    async def _purge(self, call: Call) -> Answer:
        host = self._context.writable_virtual_host(call)
        queue = queue_of(host, call["queue"])

        def purge(_node: Node) -> Chore:
            call.principal.check(host, READ, QUEUE, queue.name)
            return host.queue(queue.name, None).begin_purge()

        await self._context.perform(purge)
        return Answer(NO_CONTENT)

    async def _act(self, call: Call) -> Answer:
        """Accept the actions for RabbitMQ's mirrored queues, and do nothing."""
        queue_of(self._context.writable_virtual_host(call), call["queue"])
        call.principal.require_administrator()
        action = text_of(call.take_body(), "action")
        if action not in ACTIONS:
            raise bad_request(f"unknown_action {action}")
        return Answer(NO_CONTENT)

    async def _rebalance(self, call: Call) -> Answer:
        """Accept the request, and do nothing: there is one node."""
        call.principal.require_administrator()
        return Answer(NO_CONTENT)


def _policies(host: VirtualHost, queue: Queue) -> Item:
    kind = queue.policy.type
    policy = host.policies.policy_of(kind, queue.name)
    operator = host.policies.operator_policy_of(kind, queue.name)
    return {
        "effective_policy_definition": _effective(policy, operator),
        "operator_policy": None if operator is None else operator.name,
        "policy": None if policy is None else policy.name,
    }


def _effective(*policies: Policy | None) -> dict[str, object]:
    """Return the policy in force: operator policies override limits."""
    found: dict[str, object] = {}
    for policy in policies:
        if policy is not None:
            for name, value in policy.definition.items():
                present = found.get(name)
                if isinstance(present, int) and isinstance(value, int):
                    found[name] = min(present, value)
                else:
                    found[name] = value
    return found
