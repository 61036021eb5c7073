"""Exchanges, queues and bindings: the methods of a channel that declare, bind and delete."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from waybill.client.hosts import ChannelHost
from waybill.client.ranges import check_whole
from waybill.client.super_streams import PARTITIONS_MAX, partition_name
from waybill.engine.amqp091.client.requests import Reply
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_exchange import ExchangeBind, ExchangeDeclare, ExchangeDelete, ExchangeUnbind
from waybill.wire.amqp091.methods_queue import (
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
)

Arguments = dict[str, object]


@dataclass(frozen=True)
class QueueDeclared:
    """A queue, with its ready messages and its consumers at the time of declaration."""

    name: str
    message_count: int
    consumer_count: int


class TopologyMethods:
    """The base of a channel. Declarations that succeed are recorded, and repeated after a reconnect."""

    _connection: ChannelHost

    async def call(
        self,
        method: Method,
        on_success: Callable[[Reply], None] | None = None,
        on_orphan: Callable[[Reply], None] | None = None,
    ) -> Reply:
        """Send a request and wait for its reply, see `waybill.client.requests.ask`."""
        raise NotImplementedError

    async def declare_exchange(
        self,
        name: str,
        type: str = "direct",  # noqa: A002 - the protocol's word
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        passive: bool = False,
        arguments: Arguments | None = None,
    ) -> None:
        """Declare an exchange, or with `passive` check it. Raises PreconditionFailed, NotFound, AccessRefused ..."""
        method = ExchangeDeclare(name, type, passive, durable, auto_delete, internal, arguments=arguments or {})
        await self.call(method, lambda _: self._connection.declarations.exchange_declared(method))

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange. A missing exchange is no error. Raises PreconditionFailed if it is in use."""
        await self.call(ExchangeDelete(name, if_unused), lambda _: self._connection.declarations.exchange_deleted(name))

    async def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        """Route messages from the exchange `source` to the exchange `destination`."""
        method = ExchangeBind(destination, source, routing_key, arguments=arguments or {})
        await self.call(method, lambda _: self._connection.declarations.bound(method))

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        method = ExchangeUnbind(destination, source, routing_key, arguments=arguments or {})
        bound = ExchangeBind(destination, source, routing_key, arguments=arguments or {})
        await self.call(method, lambda _: self._connection.declarations.unbound(bound))

    async def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        arguments: Arguments | None = None,
    ) -> QueueDeclared:
        """Declare a queue, or with `passive` check that it exists. Without a name the broker chooses one.

        After a reconnect the broker chooses another. The first name stays valid on this connection;
        `Connection.current_queue_name` has the new one, for others. Raises PreconditionFailed, NotFound,
        ResourceLocked, AccessRefused ...
        """
        declarations = self._connection.declarations
        method = QueueDeclare(
            declarations.current_name(name), passive, durable, exclusive, auto_delete, arguments=arguments or {}
        )

        def record(reply: Reply) -> None:
            if isinstance(reply, QueueDeclareOk):
                declarations.queue_declared(method, reply.queue)

        reply = cast("QueueDeclareOk", await self.call(method, record))
        return QueueDeclared(name or reply.queue, reply.message_count, reply.consumer_count)

    async def declare_super_stream(
        self, name: str, partitions: int, *, arguments: Arguments | None = None
    ) -> tuple[str, ...]:
        """Declare a stream in partitions, and return the names of its streams: `name-0`, `name-1` and so on.

        Repeating it changes nothing; more `partitions` than before are added. `arguments` are those of each stream,
        such as `x-max-length-bytes`. To publish, choose the exchange `name`, and the number of a partition as routing
        key. Raises ValueError unless `partitions` is 1 to 1000, PreconditionFailed if one of these names is taken by
        something else, AccessRefused ...
        """
        check_whole("partitions", partitions, 1, PARTITIONS_MAX)
        await self.declare_exchange(name, durable=True, arguments={"x-super-stream": True})
        streams = tuple(partition_name(name, number) for number in range(partitions))
        for number, stream in enumerate(streams):
            await self.declare_queue(stream, durable=True, arguments={**(arguments or {}), "x-queue-type": "stream"})
            # Stream clients sort partitions by this number.
            await self.bind_queue(stream, name, str(number), {"x-stream-partition-order": number})
        return streams

    async def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue. Returns how many messages it held. A missing queue is no error."""
        declarations = self._connection.declarations
        method = QueueDelete(declarations.current_name(name), if_unused, if_empty)
        reply = await self.call(method, lambda _: declarations.queue_deleted(name))
        return cast("QueueDeleteOk", reply).message_count

    async def purge_queue(self, name: str) -> int:
        """Drop the ready messages of a queue. Returns how many."""
        reply = await self.call(QueuePurge(self._connection.declarations.current_name(name)))
        return cast("QueuePurgeOk", reply).message_count

    async def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        """Route messages from an exchange to a queue."""
        declarations = self._connection.declarations
        method = QueueBind(declarations.current_name(queue), exchange, routing_key, arguments=arguments or {})
        await self.call(method, lambda _: declarations.bound(method))

    async def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        declarations = self._connection.declarations
        name = declarations.current_name(queue)
        bound = QueueBind(name, exchange, routing_key, arguments=arguments or {})
        method = QueueUnbind(name, exchange, routing_key, arguments or {})
        await self.call(method, lambda _: declarations.unbound(bound))
