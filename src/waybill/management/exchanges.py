"""Exchanges: /api/exchanges, to list, show, declare and delete."""

from __future__ import annotations

from waybill.management.api_context import ApiContext, exchange_name, exchange_of
from waybill.management.call import CREATED, NO_CONTENT, Answer, Call, flag_of, table_of, text_of
from waybill.management.errors import not_authorised
from waybill.management.listing import Item, Listing, cut_to_columns, plain
from waybill.management.rates import NO_SPANS, Spans, message_stats, spans_of
from waybill.management.router import Route
from waybill.management.statistic_kinds import EXCHANGES
from waybill.model.binding import EXCHANGE
from waybill.model.exchange import Exchange
from waybill.model.permission import CONFIGURE
from waybill.model.runtime import Chore
from waybill.model.virtual_host import VirtualHost
from waybill.node.node import Node

Place = tuple[VirtualHost, Exchange]


class ExchangeRoutes:
    """The routes for exchanges."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/exchanges", self._list, is_large=True),
            Route("GET", "/exchanges/{vhost}", self._list, is_large=True),
            Route("GET", "/exchanges/{vhost}/{exchange}", self._show),
            Route("PUT", "/exchanges/{vhost}/{exchange}", self._declare),
            Route("DELETE", "/exchanges/{vhost}/{exchange}", self._delete),
        ]

    async def _list(self, call: Call) -> Answer:
        spans = spans_of(call.query)
        listing = Listing[Place](
            lambda place: self.item(place, spans),
            {
                "name": lambda place: place[1].name,
                "vhost": lambda place: place[0].name,
                "type": lambda place: place[1].type,
                "durable": lambda place: place[1].durable,
                "internal": lambda place: place[1].internal,
            },
            tie=lambda place: (place[0].name, place[1].name),
        )
        hosts = self._context.virtual_hosts(call)
        return await listing.answer(call, ((host, one) for host in hosts for one in host.exchanges.values()))

    def item(self, place: Place, spans: Spans = NO_SPANS) -> Item:
        """Return an exchange as an item of a list."""
        host, exchange = place
        sampler = self._context.sampler
        key = (host.name, exchange.name)
        row = (int(exchange.published_in), int(exchange.published_out))
        before = sampler.before(EXCHANGES, key)
        if before:
            row = (row[0] + before[0], row[1] + before[1])
        item: Item = {
            "arguments": plain(exchange.arguments),
            "auto_delete": exchange.auto_delete,
            "durable": exchange.durable,
            "internal": exchange.internal,
            "name": exchange.name,
            "type": exchange.type,
            "user_who_performed_action": "rmq-internal" if _is_predeclared(exchange.name) else "",
            "vhost": host.name,
        }
        stats = message_stats(EXCHANGES, row, sampler.series(EXCHANGES, key), sampler.now, spans.msg_rates)
        if stats:
            item["message_stats"] = stats
        policy = host.policies.policy_of("exchanges", exchange.name)
        if policy is not None:
            item["policy"] = policy.name
        return item

    async def _show(self, call: Call) -> Item:
        host = self._context.virtual_host(call)
        item = self.item((host, exchange_of(host, call["exchange"])), spans_of(call.query))
        item["incoming"] = []
        item["outgoing"] = []
        return cut_to_columns(call.query, item)

    async def _declare(self, call: Call) -> Answer:
        host = self._context.writable_virtual_host(call)
        body = call.take_body()
        name = exchange_name(call["exchange"])
        is_new = name not in host.exchanges
        durable = flag_of(body, "durable", default=True)
        arguments = table_of(body, "arguments")

        def declare(_node: Node) -> None:
            call.principal.check(host, CONFIGURE, EXCHANGE, name)
            host.declare_exchange(
                name,
                text_of(body, "type", "direct"),
                durable=durable,
                auto_delete=flag_of(body, "auto_delete"),
                internal=flag_of(body, "internal"),
                arguments=arguments,
            )

        await self._context.perform(declare)
        return Answer(CREATED if is_new else NO_CONTENT)

    async def _delete(self, call: Call) -> Answer:
        host = self._context.writable_virtual_host(call)
        name = exchange_of(host, call["exchange"]).name
        if _is_predeclared(name):
            raise not_authorised(f"ACCESS_REFUSED - exchange name '{name}' contains reserved prefix 'amq.*'")

        def delete(_node: Node) -> Chore | None:
            call.principal.check(host, CONFIGURE, EXCHANGE, name)
            return host.delete_exchange(name, if_unused=call.flag("if-unused"))

        await self._context.perform(delete)
        return Answer(NO_CONTENT)


def _is_predeclared(name: str) -> bool:
    return name == "" or name.startswith("amq.")
