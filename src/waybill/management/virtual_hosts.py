"""Virtual hosts and their limits: /api/vhosts, /api/vhost-limits."""

from __future__ import annotations

from typing import Any, Final

from waybill.management.api_context import ApiContext
from waybill.management.call import CREATED, NO_CONTENT, Answer, Call, integer_of, tags_of, text_of
from waybill.management.errors import bad_request, not_found
from waybill.management.listing import Item, Listing, cut_to_columns
from waybill.management.rates import Spans, lengths, message_stats, spans_of
from waybill.management.router import Route
from waybill.management.statistic_kinds import EXCHANGES, VIRTUAL_HOSTS
from waybill.model.virtual_host import VirtualHost
from waybill.node.administration import UNLIMITED
from waybill.node.node import Node
from waybill.node.parameters import Description

MAX_CONNECTIONS: Final = "max-connections"
MAX_QUEUES: Final = "max-queues"
LIMITS: Final = (MAX_CONNECTIONS, MAX_QUEUES)


class VirtualHostRoutes:
    """The routes for virtual hosts."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/vhosts", self._list),
            Route("GET", "/vhosts/{vhost}", self._show),
            Route("PUT", "/vhosts/{vhost}", self._put),
            Route("DELETE", "/vhosts/{vhost}", self._delete),
            Route("POST", "/vhosts/{vhost}/start/{node}", self._start),
            Route("GET", "/vhost-limits", self._all_limits),
            Route("GET", "/vhost-limits/{vhost}", self._all_limits),
            Route("PUT", "/vhost-limits/{vhost}/{limit}", self._set_limit),
            Route("DELETE", "/vhost-limits/{vhost}/{limit}", self._clear_limit),
        ]

    async def _list(self, call: Call) -> Answer:
        spans = spans_of(call.query)
        listing = Listing[VirtualHost](
            lambda host: self.item(host, spans), {"name": lambda host: host.name}, tie=lambda host: host.name
        )
        return await listing.answer(call, self._context.virtual_hosts(call))

    async def _show(self, call: Call) -> Item:
        return cut_to_columns(call.query, self.item(self._context.virtual_host(call), spans_of(call.query)))

    def item(self, host: VirtualHost, spans: Spans) -> Item:
        """Return a virtual host as JSON."""
        described = self._context.administration.parameters.descriptions.get(host.name) or Description()
        is_default = host.name == "/" and not described.text
        text = "Default virtual host" if is_default else described.text
        item: Item = {
            "cluster_state": {self._context.node_name: "stopped" if host.is_ending else "running"},
            "default_queue_type": described.default_queue_type or "undefined",
            "description": text,
            "metadata": {"description": text, "tags": list(described.tags)},
            "name": host.name,
            "tags": list(described.tags),
            "tracing": False,
        }
        sampler = self._context.sampler
        series = sampler.series(VIRTUAL_HOSTS, (host.name,))
        row = sampler.row(VIRTUAL_HOSTS, (host.name,))
        item |= lengths(VIRTUAL_HOSTS, row, series, sampler.now, spans.lengths)
        stats = message_stats(VIRTUAL_HOSTS, row, series, sampler.now, spans.msg_rates)
        if stats:
            stats["publish"] = sum(int(exchange.published_in) for exchange in host.exchanges.values())
            stats["publish_details"] = {"rate": self._published(host, sampler.now)}
            item["message_stats"] = stats
        return item

    def _published(self, host: VirtualHost, now: int) -> float:
        rate = 0.0
        for name in host.exchanges:
            series = self._context.sampler.series(EXCHANGES, (host.name, name))
            if series is not None:
                rate += series.rate((0,), now)
        return rate

    # --- changes ---

    async def _put(self, call: Call) -> Answer:
        call.principal.require_administrator()
        body = call.take_body()
        name = call["vhost"]
        is_new = name not in self._context.node.virtual_hosts
        description = _description(body)

        def put(node: Node) -> None:
            node.administration.add_virtual_host(name)
            if is_new and call.principal.name in node.administration.accounts.by_name:
                # As in RabbitMQ, the user who creates one over HTTP gets all permissions.
                node.administration.set_permission(call.principal.name, name, ".*", ".*", ".*")
            if description is not None:
                node.administration.describe_virtual_host(name, description)

        await self._context.perform(put)
        return Answer(CREATED if is_new else NO_CONTENT)

    async def _delete(self, call: Call) -> Answer:
        call.principal.require_administrator()
        if self._context.node.virtual_host(call["vhost"]) is None:
            raise not_found()
        await self._context.perform(lambda node: node.administration.delete_virtual_host(call["vhost"]))
        return Answer(NO_CONTENT)

    async def _start(self, call: Call) -> Answer:
        """Accept the request, and do nothing: all virtual hosts run."""
        call.principal.require_administrator()
        if self._context.node.virtual_host(call["vhost"]) is None:
            raise not_found()
        return Answer(NO_CONTENT)

    # --- limits ---

    async def _all_limits(self, call: Call) -> list[Item]:
        hosts = self._context.virtual_hosts(call)
        return [{"value": found, "vhost": host.name} for host in hosts if (found := limits_of(self._context, host))]

    async def _set_limit(self, call: Call) -> Answer:
        return await self._change_limit(call, integer_of(call.take_body(), "value"))

    async def _clear_limit(self, call: Call) -> Answer:
        return await self._change_limit(call, UNLIMITED)

    async def _change_limit(self, call: Call, value: int) -> Answer:
        call.principal.require_administrator()
        host = self._context.virtual_host(call)
        if call["limit"] not in LIMITS:
            raise bad_request(f"Unrecognised vhost limit: {call['limit']}")
        limits = self._context.administration.limits[host.name]
        connections, queues = limits.max_connections, limits.max_queues
        if call["limit"] == MAX_CONNECTIONS:
            connections = value
        else:
            queues = value

        def change(node: Node) -> None:
            node.administration.set_virtual_host_limits(host.name, max_connections=connections, max_queues=queues)

        await self._context.perform(change)
        return Answer(NO_CONTENT)


def limits_of(context: ApiContext, host: VirtualHost) -> dict[str, int]:
    """Return the limits that are set for a virtual host."""
    limits = context.administration.limits[host.name]
    found = {MAX_CONNECTIONS: limits.max_connections, MAX_QUEUES: limits.max_queues}
    return {name: limit for name, limit in found.items() if limit >= 0}


def _description(body: dict[str, Any]) -> Description | None:
    """Return the metadata in a body, None if there is none. Raises Refused."""
    if not body.keys() & {"description", "tags", "default_queue_type"}:
        return None
    tags = tags_of(body.get("tags") or [])
    kind = text_of(body, "default_queue_type")
    if kind not in {"", "undefined", "classic", "quorum", "stream"}:
        raise bad_request(f"unknown queue type {kind}")
    return Description(text_of(body, "description"), tags, kind.removeprefix("undefined"))
