"""The client for programs without an event loop.

    from waybill.client import blocking

    with blocking.connect("amqp://guest:guest@localhost:5672/%2Fojs") as connection:
        channel = connection.channel()
        channel.publish(b"hello", routing_key="greetings")
        for delivery in channel.consume("greetings", inactivity_timeout=1.0):
            delivery.ack()

The asyncio client runs on a thread of its own; any number of threads may share a connection. Methods have the names,
arguments, defaults and errors of their asyncio counterparts, which document them, and return when they are done. Only
`consume` differs: iterate over it. Callbacks run on the client's thread, must be quick, and cannot call the client
(RuntimeError). Ctrl-C interrupts a call at once. After `close` every call raises ConnectionClosed, including those that
other threads are waiting in.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Self

from waybill.client.channel import Channel as AsyncChannel
from waybill.client.connection import Connection as AsyncConnection
from waybill.client.connection import connect as connect_async
from waybill.client.consumer import Consumer
from waybill.client.loop_thread import LoopThread
from waybill.client.publishing import WINDOW, OutgoingMessage, Unpublished
from waybill.client.reconnect import ReconnectPolicy
from waybill.client.topology_methods import Arguments, QueueDeclared
from waybill.client.uri import BrokerAddress
from waybill.engine.amqp091.client.delivery import Delivery as AsyncDelivery
from waybill.engine.amqp091.client.delivery import ReturnedMessage
from waybill.transport.loop import run as run  # noqa: PLC0414 - for whoever may use the client only
from waybill.wire.amqp091.properties import BasicProperties

DEFAULT_PREFETCH_COUNT: Final = 100
POLL_INTERVAL_S: Final = 0.5


def connect(
    uri: str | Sequence[str] | BrokerAddress, *, name: str = "", reconnect: ReconnectPolicy | None = None
) -> "Connection":
    """Connect. Raises InvalidURI, ConnectFailed, AuthenticationFailed or a ProtocolError."""
    return Connection(uri, name=name, reconnect=reconnect)


class Connection:
    """See `waybill.client.Connection`."""

    def __init__(
        self, uri: str | Sequence[str] | BrokerAddress, *, name: str = "", reconnect: ReconnectPolicy | None = None
    ) -> None:
        self._connection: AsyncConnection = connect_async(uri, name=name, reconnect=reconnect)
        self._thread = LoopThread()
        try:
            self._thread.call(self._open())
        except BaseException:
            self._thread.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def open_channel_count(self) -> int:
        return self._connection.open_channel_count

    @property
    def blocked(self) -> str | None:
        return self._connection.blocked

    @property
    def flowing(self) -> bool:
        return self._connection.flowing

    @property
    def node(self) -> BrokerAddress:
        return self._connection.node

    @property
    def server_properties(self) -> dict[str, object]:
        return self._connection.server_properties

    @property
    def product(self) -> str:
        return self._connection.product

    @property
    def is_waybill(self) -> bool:
        return self._connection.is_waybill

    @property
    def heartbeat_s(self) -> int:
        return self._connection.heartbeat_s

    @property
    def reconnections(self) -> int:
        return self._connection.reconnections

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._connection.on_reconnect(callback)

    def on_loss(self, callback: Callable[[Exception], None]) -> None:
        self._connection.on_loss(callback)

    def on_blocked(self, callback: Callable[[str | None], None]) -> None:
        self._connection.on_blocked(callback)

    def current_queue_name(self, queue: str) -> str:
        return self._connection.current_queue_name(queue)

    def channel(self, *, confirms: bool = True, prefetch_count: int = 0, coalesce_acks: bool = False) -> "Channel":
        opening = self._connection.channel(
            confirms=confirms, prefetch_count=prefetch_count, coalesce_acks=coalesce_acks
        )
        return Channel(self._thread, self, self._thread.call(opening))

    def close(self) -> None:
        """Close the connection and end its thread. A second call does nothing."""
        try:
            if not self._thread.stopped:
                self._thread.call(self._connection.close())
        finally:
            self._thread.stop()

    async def _open(self) -> None:
        await self._connection


class Delivery:
    """A message for this thread; see `waybill.client.Delivery`.

    Settlements are written soon, on the client's thread, so they return nothing. Settling a delivery twice does
    nothing, nor does settling after its channel was closed: then the broker redelivers it.
    """

    def __init__(self, thread: LoopThread, delivery: AsyncDelivery) -> None:
        self._thread = thread
        self._delivery = delivery
        self.body = delivery.body
        self.delivery_tag = delivery.delivery_tag
        self.consumer_tag = delivery.consumer_tag
        self.exchange = delivery.exchange
        self.routing_key = delivery.routing_key
        self.redelivered = delivery.redelivered
        self.message_count = delivery.message_count
        self.encoded_properties = delivery.encoded_properties

    @property
    def properties(self) -> BasicProperties:
        """The properties, decoded on first use. Raises DecodeError."""
        return self._delivery.properties

    @property
    def is_current(self) -> bool:
        return self._delivery.is_current

    def ack(self, multiple: bool = False) -> None:  # noqa: FBT001, FBT002 - the bit of basic.ack
        """Acknowledge the delivery (`multiple`: and all before it on this channel)."""
        self._thread.soon(self._delivery.ack, multiple)

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:  # noqa: FBT001, FBT002 - bits of basic.nack
        """Refuse the delivery: back to the queue, or with `requeue=False` to the dead letter exchange."""
        self._thread.soon(self._delivery.nack, requeue, multiple)

    def reject(self, requeue: bool = True) -> None:  # noqa: FBT001, FBT002 - the bit of basic.reject
        """Like `nack`, with basic.reject, which brokers without RabbitMQ's extensions know."""
        self._thread.soon(self._delivery.reject, requeue)


class Channel:
    """See `waybill.client.Channel`. Methods block until they are done."""

    def __init__(self, thread: LoopThread, connection: Connection, channel: AsyncChannel) -> None:
        self._thread = thread
        self._call = thread.call
        self._connection = connection
        self._channel = channel

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._channel.is_open

    @property
    def closed(self) -> bool:
        return self._channel.closed

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def unconfirmed_count(self) -> int:
        return self._channel.unconfirmed_count

    def publish(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: BasicProperties | bytes | None = None,
        mandatory: bool = False,
    ) -> None:
        publishing = self._channel.publish(
            body, exchange=exchange, routing_key=routing_key, properties=properties, mandatory=mandatory
        )
        self._call(publishing)

    def publish_many(
        self,
        messages: Iterable[OutgoingMessage | bytes],
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: BasicProperties | bytes | None = None,
        mandatory: bool = False,
        window: int = WINDOW,
    ) -> list[Unpublished]:
        """See `Channel.publish_many`. An iterable is read on the client's thread."""
        publishing = self._channel.publish_many(
            messages,
            exchange=exchange,
            routing_key=routing_key,
            properties=properties,
            mandatory=mandatory,
            window=window,
        )
        return self._call(publishing)

    def drain(self) -> None:
        self._call(self._channel.drain())

    def on_return(self, callback: Callable[[ReturnedMessage], None] | None) -> None:
        self._channel.on_return(callback)

    def declare_exchange(
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
        declaring = self._channel.declare_exchange(
            name,
            type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            passive=passive,
            arguments=arguments,
        )
        self._call(declaring)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._call(self._channel.delete_exchange(name, if_unused=if_unused))

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        self._call(self._channel.bind_exchange(destination, source, routing_key, arguments))

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        self._call(self._channel.unbind_exchange(destination, source, routing_key, arguments))

    def declare_queue(
        self,
        name: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        arguments: Arguments | None = None,
    ) -> QueueDeclared:
        declaring = self._channel.declare_queue(
            name, durable=durable, exclusive=exclusive, auto_delete=auto_delete, passive=passive, arguments=arguments
        )
        return self._call(declaring)

    def declare_super_stream(
        self, name: str, partitions: int, *, arguments: Arguments | None = None
    ) -> tuple[str, ...]:
        return self._call(self._channel.declare_super_stream(name, partitions, arguments=arguments))

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return self._call(self._channel.delete_queue(name, if_unused=if_unused, if_empty=if_empty))

    def purge_queue(self, name: str) -> int:
        return self._call(self._channel.purge_queue(name))

    def bind_queue(self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments | None = None) -> None:
        self._call(self._channel.bind_queue(queue, exchange, routing_key, arguments))

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        self._call(self._channel.unbind_queue(queue, exchange, routing_key, arguments))

    def qos(self, prefetch_count: int, *, global_: bool = False) -> None:
        self._call(self._channel.qos(prefetch_count, global_=global_))

    def consume(
        self,
        queue: str,
        *,
        prefetch_count: int = DEFAULT_PREFETCH_COUNT,
        consumer_tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Arguments | None = None,
        inactivity_timeout: float | None = None,
    ) -> Iterator[Delivery]:
        """Iterate over the messages of a queue as they arrive; leaving the loop cancels the consumer.

        Ends after `inactivity_timeout` seconds without a message (None: never). Deliveries that were prefetched but not
        iterated over go back to the queue. Raises NotFound, AccessRefused, ... at the first step, ConnectionClosed if
        the connection is closed or given up.
        """
        deliveries: SimpleQueue[AsyncDelivery] = SimpleQueue()
        self.qos(prefetch_count)
        starting = self._channel.consume(
            queue, deliveries.put, consumer_tag=consumer_tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments
        )
        consumer = self._call(starting)
        try:
            while True:
                delivery = _next_delivery(deliveries, consumer, inactivity_timeout)
                if delivery is None:
                    return
                yield Delivery(self._thread, delivery)
        finally:
            if not self._thread.stopped:
                self._call(consumer.cancel())
                self._thread.soon(_hand_back, deliveries, consumer)

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        delivery = self._call(self._channel.get(queue, no_ack=no_ack))
        return None if delivery is None else Delivery(self._thread, delivery)

    def get_many(self, queue: str, count: int) -> list[Delivery]:
        return [Delivery(self._thread, delivery) for delivery in self._call(self._channel.get_many(queue, count))]

    def recover(self, *, requeue: bool = True) -> None:
        self._call(self._channel.recover(requeue=requeue))

    def flow(self, active: bool) -> None:  # noqa: FBT001 - the argument of channel.flow
        self._call(self._channel.flow(active))

    def tx_select(self) -> None:
        self._call(self._channel.tx_select())

    def tx_commit(self) -> None:
        self._call(self._channel.tx_commit())

    def tx_rollback(self) -> None:
        self._call(self._channel.tx_rollback())

    def close(self) -> None:
        if not self._thread.stopped:
            self._call(self._channel.close())


def _next_delivery(
    deliveries: SimpleQueue[AsyncDelivery], consumer: Consumer, inactivity_timeout: float | None
) -> AsyncDelivery | None:
    """The next delivery, None after the timeout. Checks from time to time whether the connection was given up."""
    deadline = None if inactivity_timeout is None else time.monotonic() + inactivity_timeout
    while True:
        left = POLL_INTERVAL_S if deadline is None else min(POLL_INTERVAL_S, deadline - time.monotonic())
        try:
            return deliveries.get(timeout=max(0.0, left))
        except Empty:
            if deadline is not None and time.monotonic() >= deadline:
                return None
            if consumer.closed:
                if consumer.error is not None:
                    raise consumer.error from None
                return None


def _hand_back(deliveries: SimpleQueue[AsyncDelivery], consumer: Consumer) -> None:
    """Return deliveries that were prefetched but not iterated over."""
    while not deliveries.empty():
        consumer.return_delivery(deliveries.get_nowait())
