"""Shared by all routes of the API: the broker, its history, and lookups by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar, cast

from waybill.broker import Broker
from waybill.broker.commit_loop import PumpOutput
from waybill.engine.amqp091.server.channel import Channel
from waybill.engine.amqp091.server.connection import Connection as Amqp091Connection
from waybill.engine.server_connection import ServerConnection
from waybill.management.call import Call
from waybill.management.errors import NOT_FOUND, Refused, not_found
from waybill.management.principal import Principal
from waybill.management.sampler import Sampler
from waybill.model.exchange import Exchange
from waybill.model.leveled_queue import LeveledQueue
from waybill.model.queue import Queue
from waybill.model.stream import Stream
from waybill.model.virtual_host import VirtualHost
from waybill.node.administration import Administration
from waybill.node.node import Node

T = TypeVar("T")

DEFAULT_EXCHANGE: Final = "amq.default"
"""The name of the default exchange in paths."""
CLUSTER_NAME: Final = "cluster_name"


class ApiContext:
    """The broker as the API shows it."""

    def __init__(self, broker: Broker, sampler: Sampler, listeners: Callable[[], list[dict[str, object]]]) -> None:
        """`listeners` returns the addresses of the broker and of this API."""
        self.broker = broker
        self.sampler = sampler
        self.listeners = listeners
        self.started_at = time.monotonic()

    @property
    def node(self) -> Node:
        """The node."""
        return self.broker.node

    @property
    def administration(self) -> Administration:
        """The administration of the node."""
        return self.broker.node.administration

    @property
    def node_name(self) -> str:
        """The name of the node, in RabbitMQ's form."""
        name = self.broker.node.name
        return name if "@" in name else f"rabbit@{name}"

    @property
    def cluster_name(self) -> str:
        """The cluster name, or the name of the node if none was set."""
        found = self.administration.parameters.values.get(CLUSTER_NAME)
        return found if isinstance(found, str) else self.node_name

    async def perform(self, change: Callable[[Node], T]) -> T:
        """Change the node and wait until the change is durable."""
        return await self.broker.changes.perform(change)

    # --- lookup ---

    def virtual_host(self, call: Call) -> VirtualHost:
        """Return the virtual host of a path, if the user may see it. Raises Refused."""
        host = self.node.virtual_host(call["vhost"])
        if host is None:
            raise not_found()
        call.principal.require_visible(host.name)
        return host

    def writable_virtual_host(self, call: Call) -> VirtualHost:
        """Return the virtual host of a path, if the user may change its contents. Raises Refused."""
        host = self.node.virtual_host(call["vhost"])
        if host is None:
            raise Refused(404, "vhost_not_found", NOT_FOUND)
        call.principal.require_access(host.name)
        return host

    def virtual_hosts(self, call: Call) -> list[VirtualHost]:
        """Return the virtual host of a path, or all that the user may see. Raises Refused."""
        if "vhost" in call.parameters:
            return [self.virtual_host(call)]
        return [host for host in self.node.virtual_hosts.values() if call.principal.can_see(host.name)]

    def connections(self, principal: Principal) -> list[ServerConnection]:
        """Return the open connections that a user may see."""
        return [
            engine
            for engine in self.node.connections
            if isinstance(engine, ServerConnection) and (principal.is_monitor or engine.user_name == principal.name)
        ]


def exchange_name(segment: str) -> str:
    """Return the name of the exchange that a path names."""
    return "" if segment == DEFAULT_EXCHANGE else segment


def queue_of(host: VirtualHost, name: str) -> Queue:
    """Return a queue. Raises Refused if it does not exist."""
    queue = host.queues.get(name)
    if queue is None:
        raise not_found()
    return queue


def size_of(queue: Queue) -> int:
    """Return the size in bytes of the ready messages of a queue, or of all messages of a stream."""
    if isinstance(queue, LeveledQueue):
        return int(queue.ready_bytes)
    return int(queue.log.size()) if isinstance(queue, Stream) else 0


def exchange_of(host: VirtualHost, segment: str) -> Exchange:
    """Return the exchange that a path names. Raises Refused if it does not exist."""
    exchange = host.exchanges.get(exchange_name(segment))
    if exchange is None:
        raise not_found()
    return exchange


def channels_of(engines: list[ServerConnection]) -> Iterator[Channel]:
    """Yield the AMQP 0-9-1 channels of some connections."""
    for engine in engines:
        if isinstance(engine, Amqp091Connection):
            yield from list(engine.channels.values())


def split_address(address: str) -> tuple[str, int | str]:
    """Return host and port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]") or "unknown", int(port) if port.isdecimal() else "unknown"


def local_address(engine: ServerConnection) -> str:
    """Return the `host:port` on which a connection was accepted."""
    return cast("PumpOutput", engine.transport).pump.local_address


def connection_name(engine: ServerConnection) -> str:
    """Return the name of a connection, as in paths."""
    return f"{engine.peer_address} -> {local_address(engine)}"


def channel_name(channel: Channel) -> str:
    """Return the name of a channel."""
    return f"{connection_name(channel.connection)} ({int(channel.number)})"


def connection_details(engine: ServerConnection) -> dict[str, object]:
    """Return the field `connection_details`."""
    host, port = split_address(engine.peer_address)
    return {"name": connection_name(engine), "peer_host": host, "peer_port": port}


def channel_details(engine: ServerConnection, number: int, node: str) -> dict[str, object]:
    """Return the field `channel_details`."""
    host, port = split_address(engine.peer_address)
    name = connection_name(engine)
    return {
        "connection_name": name,
        "name": f"{name} ({number})",
        "node": node,
        "number": number,
        "peer_host": host,
        "peer_port": port,
        "user": engine.user_name,
    }
