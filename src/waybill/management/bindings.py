"""Bindings: /api/bindings, and the bindings of an exchange."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote, quote_plus

from waybill.management.api_context import ApiContext, exchange_name, exchange_of, queue_of
from waybill.management.call import CREATED, NO_CONTENT, Answer, Call, table_of, text_of
from waybill.management.errors import not_authorised, not_found
from waybill.management.listing import BATCH, Item, Listing, plain
from waybill.management.router import Route
from waybill.model.binding import EXCHANGE, QUEUE, Binding
from waybill.model.permission import READ, WRITE
from waybill.model.queue import Queue
from waybill.model.virtual_host import VirtualHost
from waybill.node.node import Node

KINDS: Final = {"q": QUEUE, "e": EXCHANGE}
ALL: Final = "~"


class BindingRoutes:
    """The routes for bindings."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """Return the routes."""
        ends = "/bindings/{vhost}/e/{source}/{kind}/{destination}"
        return [
            Route("GET", "/bindings", self._list, is_large=True),
            Route("GET", "/bindings/{vhost}", self._list, is_large=True),
            Route("GET", ends, self._between),
            Route("POST", ends, self._bind),
            Route("GET", ends + "/{properties}", self._show),
            Route("DELETE", ends + "/{properties}", self._unbind),
            Route("GET", "/exchanges/{vhost}/{exchange}/bindings/source", self._from_exchange),
            Route("GET", "/exchanges/{vhost}/{exchange}/bindings/destination", self._to_exchange),
        ]

    async def _list(self, call: Call) -> Answer:
        return await _listed(call, (one for host in self._context.virtual_hosts(call) for one in _all_of(host)))

    async def _from_exchange(self, call: Call) -> Answer:
        host = self._context.virtual_host(call)
        # As in RabbitMQ, a missing queue or exchange has no bindings: clients ask before they declare it.
        exchange = host.exchanges.get(exchange_name(call["exchange"]))
        if exchange is None:
            return Answer(200, [])
        if exchange is host.default_exchange:
            return await list_bindings(call, host, list(host.queues.values()))
        return await list_bindings(call, host, list(exchange.bindings.values()))

    async def _to_exchange(self, call: Call) -> Answer:
        host = self._context.virtual_host(call)
        exchange = host.exchanges.get(exchange_name(call["exchange"]))
        return await list_bindings(call, host, [] if exchange is None else list(exchange.incoming.values()))

    # --- between one source and one destination ---

    def _found(self, call: Call, host: VirtualHost) -> Sequence[Binding | Queue]:
        """Return the bindings from a source to a destination. Raises Refused if either is missing."""
        kind, destination = self._ends(call, host)
        source = exchange_of(host, call["source"])
        if source is host.default_exchange:
            queue = host.queues.get(destination) if kind == QUEUE else None
            return [] if queue is None else [queue]
        bindings = host.queues[destination].bindings if kind == QUEUE else host.exchanges[destination].incoming
        return [one for one in bindings.values() if one.source == source.name]

    async def _named(self, call: Call, host: VirtualHost) -> tuple[Item, Binding | Queue]:
        """Return the binding that the path names, and as JSON. Raises Refused."""
        for count, one in enumerate(self._found(call, host), 1):
            item = _item((host, one))
            if is_named(item, call["properties"]):
                return item, one
            if count % BATCH == 0:
                await call.long_answers.step()
        raise not_found()

    @staticmethod
    def _ends(call: Call, host: VirtualHost) -> tuple[str, str]:
        kind = KINDS.get(call["kind"])
        if kind is None:
            raise not_found()
        if kind == QUEUE:
            return kind, queue_of(host, call["destination"]).name
        return kind, exchange_of(host, call["destination"]).name

    async def _between(self, call: Call) -> Answer:
        host = self._context.virtual_host(call)
        kind = KINDS.get(call["kind"])
        if kind is None:
            raise not_found()
        destination = call["destination"]
        has_end = destination in host.queues if kind == QUEUE else exchange_name(destination) in host.exchanges
        found = self._found(call, host) if has_end and exchange_name(call["source"]) in host.exchanges else []
        return await list_bindings(call, host, found)

    async def _show(self, call: Call) -> Item:
        host = self._context.virtual_host(call)
        item, _ = await self._named(call, host)
        return item

    async def _bind(self, call: Call) -> Answer:
        host = self._context.writable_virtual_host(call)
        kind, destination = KINDS.get(call["kind"], ""), call["destination"]
        if not kind:
            raise not_found()
        source = host.exchange(exchange_name(call["source"]))
        destination = (host.queue(destination, None) if kind == QUEUE else host.exchange(destination)).name
        body = call.take_body()
        key = text_of(body, "routing_key")
        arguments = table_of(body, "arguments")

        def bind(_node: Node) -> None:
            call.principal.check(host, WRITE, kind, destination)
            call.principal.check(host, READ, EXCHANGE, source.name)
            if kind == QUEUE:
                host.bind_queue(host.queue(destination, None), source.name, key, arguments)
            else:
                host.bind_exchange(destination, source.name, key, arguments)

        await self._context.perform(bind)
        # Relative to the request path, as in RabbitMQ.
        location = "/".join(quote(one, safe="~") for one in (destination, properties_key(key, arguments)))
        return Answer(CREATED, headers=[("Location", location)])

    async def _unbind(self, call: Call) -> Answer:
        host = self._context.writable_virtual_host(call)
        kind, destination = self._ends(call, host)
        source = exchange_name(call["source"])
        _, binding = await self._named(call, host)
        if isinstance(binding, Queue):
            raise not_authorised("ACCESS_REFUSED - operation not permitted on the default exchange")

        def unbind(_node: Node) -> None:
            call.principal.check(host, WRITE, kind, destination)
            call.principal.check(host, READ, EXCHANGE, source)
            host.unbind(kind, destination, source, binding.routing_key, binding.arguments)

        await self._context.perform(unbind)
        return Answer(NO_CONTENT)


async def list_bindings(call: Call, host: VirtualHost, found: Sequence[Binding | Queue]) -> Answer:
    """List bindings of one virtual host; a queue stands for its default binding."""
    return await _listed(call, ((host, one) for one in found))


async def _listed(call: Call, found: Iterator[tuple[VirtualHost, Binding | Queue]]) -> Answer:
    listing = Listing[tuple[VirtualHost, Binding | Queue]](
        _item,
        {
            "name": lambda one: one[1].name if isinstance(one[1], Queue) else one[1].destination,
            "source": lambda one: "" if isinstance(one[1], Queue) else one[1].source,
            "destination": lambda one: one[1].name if isinstance(one[1], Queue) else one[1].destination,
            "vhost": lambda one: one[0].name,
        },
        tie=_place,
    )
    return await listing.answer(call, found)


def _all_of(host: VirtualHost) -> Iterator[tuple[VirtualHost, Binding | Queue]]:
    """Yield the bindings of a virtual host; a queue stands for its default binding."""
    for queue in list(host.queues.values()):
        yield host, queue
    for exchange in list(host.exchanges.values()):
        for binding in exchange.bindings.values():
            yield host, binding


def _item(one: tuple[VirtualHost, Binding | Queue]) -> Item:
    host, thing = one
    return default_binding(host, thing) if isinstance(thing, Queue) else binding_item(host, thing)


def _place(one: tuple[VirtualHost, Binding | Queue]) -> tuple[str, ...]:
    host, thing = one
    if isinstance(thing, Queue):
        return host.name, "", thing.name, ""
    return host.name, thing.source, thing.destination, thing.routing_key


def binding_item(host: VirtualHost, binding: Binding) -> Item:
    """Return a binding as JSON."""
    return {
        "arguments": plain(binding.arguments),
        "destination": binding.destination,
        "destination_type": binding.destination_kind,
        "properties_key": properties_key(binding.routing_key, binding.arguments),
        "routing_key": binding.routing_key,
        "source": binding.source,
        "vhost": host.name,
    }


def default_binding(host: VirtualHost, queue: Queue) -> Item:
    """Return the binding that every queue has to the exchange without a name."""
    return {
        "arguments": {},
        "destination": queue.name,
        "destination_type": QUEUE,
        "properties_key": properties_key(queue.name, {}),
        "routing_key": queue.name,
        "source": "",
        "vhost": host.name,
    }


def properties_key(routing_key: str, arguments: dict[str, object]) -> str:
    """Return RabbitMQ's `properties_key`, which identifies a binding among those between two ends."""
    if not routing_key and not arguments:
        return ALL
    quoted = quote_plus(routing_key, errors="surrogateescape").replace("~", "%7E")
    if not arguments:
        return quoted
    text = json.dumps(plain(arguments), sort_keys=True)
    digest = hashlib.md5(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()
    return f"{quoted}~{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def is_named(item: Item, name: str) -> bool:
    """Whether a path names this binding; some clients encode the key once, not twice."""
    key = item["properties_key"]
    return bool(name == key or (not item["arguments"] and name == item["routing_key"] and name != ALL))
