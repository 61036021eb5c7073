"""A channel that reopens by itself."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, cast

from waybill.client.consumer import Consumer
from waybill.client.errors import (
    ChannelClosed,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    MessageReturned,
    QueueFull,
    error_of,
    publish_error_of,
)
from waybill.client.own_loop import running_loop, wrong_loop
from waybill.client.pipeline import WINDOW, OutgoingMessage, Unpublished, publish_all
from waybill.client.ranges import check_whole
from waybill.client.requests import Send, ask, ignore
from waybill.client.uri import MAX_SHORT
from waybill.engine.amqp091.client.channel import ClientChannel, Reply
from waybill.engine.amqp091.client.delivery import Delivery, ReturnedMessage
from waybill.engine.amqp091.client.events import ChannelEvents, CloseReason, Initiator
from waybill.wire.amqp091.methods import (
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicQos,
    BasicRecover,
    ChannelFlow,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    TxCommit,
    TxRollback,
    TxSelect,
)
from waybill.wire.amqp091.properties import BasicProperties

if TYPE_CHECKING:
    from waybill.client.connection import Connection

log: Final = logging.getLogger("waybill.client")

Arguments = dict[str, object]


@dataclass(frozen=True)
class QueueDeclared:
    """A queue, with its ready messages and its consumers at the time of declaration."""

    name: str
    message_count: int
    consumer_count: int


class Channel(ChannelEvents):
    """Made by `Connection.channel`. Belongs to the loop it was made in; not for use from other threads.

    Calls that await wait for the connection to come back if it is away. They raise ConnectionLost if it breaks with
    the call in flight, and the error of the broker's reply code if it closes the channel over them; the next call opens
    the channel anew, with the same prefetch count and confirms, and its consumers are registered again after a delay.
    """

    def __init__(self, connection: "Connection", *, confirms: bool, prefetch_count: int, coalesce_acks: bool) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        self._confirming = confirms
        self._coalesce_acks = coalesce_acks
        check_whole("prefetch_count", prefetch_count, 0, MAX_SHORT)
        self._prefetch: list[BasicQos] = [BasicQos(0, prefetch_count)] if prefetch_count else []
        self._consumers: dict[str, Consumer] = {}
        self._registered: set[str] = set()
        self._starting: set[str] = set()
        """Consumers whose `consume` has not returned: it registers them itself, when the connection is there."""
        self._last_consumer_number = 0
        self._current: ClientChannel | None = None
        self._closed = False
        self._restoring: asyncio.Task[None] | None = None
        self._flow_active = True
        self._done: asyncio.Future[None] = self._new_future()
        self._done.set_result(None)
        self._on_return: Callable[[ReturnedMessage], None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        """Whether the channel stands at this moment."""
        return self._current is not None and self._current.usable

    @property
    def closed(self) -> bool:
        """Whether it was closed for good."""
        return self._closed

    @property
    def connection(self) -> "Connection":
        return self._connection

    # Publishing

    async def publish(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: BasicProperties | bytes | None = None,
        mandatory: bool = False,
    ) -> None:
        """Publish; on a channel with confirms, return when the broker has confirmed.

        Waits first while publishing is held back, see `drain`. `properties` may be given encoded. Raises
        MessageReturned, MessageNacked (QueueFull), ConnectionLost, ChannelClosed, or EncodeError for properties or
        names that AMQP has no encoding for.
        """
        self._check_loop()
        if not self._flows():
            await self.drain()
        if self._current is None or not self._current.usable:
            await self._connection.wait_ready()
        await self.publish_nowait(
            body, exchange=exchange, routing_key=routing_key, properties=properties, mandatory=mandatory
        )

    def publish_nowait(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: BasicProperties | bytes | None = None,
        mandatory: bool = False,
    ) -> asyncio.Future[None]:
        """Publish without waiting: the future is done when the broker has confirmed, or at once without confirms.

        What `publish` raises, the future holds; ConnectionLost also if the connection is away at this moment. It is
        written at the end of this turn of the loop, or when much has piled up. Nothing limits how much may pile up:
        await `drain` now and then. Raises WrongEventLoop from another thread or loop.
        """
        if running_loop() is not self._loop:
            # As `_check_loop`, in the place that every job comes by.
            raise wrong_loop("this channel")
        channel = self._current
        if channel is None or not channel.usable:
            try:
                self._connection.require_ready()
                channel = self._open_now()
            except Exception as error:  # noqa: BLE001 - it belongs into the future, whatever it is
                failed = self._new_future()
                failed.set_exception(error)
                return failed
        if type(body) is not bytes:
            body = _bytes_of(body)
        if not self._confirming:
            channel.publish(body, exchange, routing_key, properties, mandatory, None)
            return self._done
        future: asyncio.Future[None] = self._new_future()
        channel.publish(body, exchange, routing_key, properties, mandatory, future)
        return future

    async def publish_many(self, messages: Iterable[OutgoingMessage], *, window: int = WINDOW) -> list[Unpublished]:
        """Publish many, pipelined; those that failed, see `waybill.client.pipeline.publish_all`."""
        return await publish_all(self, messages, window=window)

    async def drain(self) -> None:
        """Return when publishing is welcome: the transport is not above its high-water mark, the broker blocks nobody.

        While the connection is away, waits for it to come back.
        """
        self._check_loop()
        while not self._flows():
            await self._connection.wait_flowing()
            if not self._flow_active:
                await asyncio.sleep(0.1)

    @property
    def unconfirmed_count(self) -> int:
        """How many publishes wait for their confirm."""
        channel = self._current
        return 0 if channel is None or channel.confirms is None else len(channel.confirms)

    def on_return(self, callback: Callable[[ReturnedMessage], None] | None) -> None:
        """Call `callback` for mandatory messages that come back; the only way to learn of it without confirms."""
        self._on_return = callback

    # Exchanges, queues, bindings

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
        """Declare, or with `passive` ask for, an exchange. Raises PreconditionFailed, NotFound, AccessRefused ..."""
        method = ExchangeDeclare(name, type, passive, durable, auto_delete, internal, arguments=arguments or {})
        await self._call(method, lambda _: self._connection.topology.exchange_declared(method))

    async def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange; one that does not exist is no error. Raises PreconditionFailed if it is in use."""
        await self._call(ExchangeDelete(name, if_unused), lambda _: self._connection.topology.exchange_deleted(name))

    async def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        """Route messages from the exchange `source` to the exchange `destination`."""
        method = ExchangeBind(destination, source, routing_key, arguments=arguments or {})
        await self._call(method, lambda _: self._connection.topology.bound(method))

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        method = ExchangeUnbind(destination, source, routing_key, arguments=arguments or {})
        bound = ExchangeBind(destination, source, routing_key, arguments=arguments or {})
        await self._call(method, lambda _: self._connection.topology.unbound(bound))

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
        """Declare, or with `passive` ask for, a queue; without a name the broker gives one.

        The name of a server-named queue stays valid on this connection after a reconnect, when the broker names it
        anew; others learn the new one from `Connection.current_queue_name`. Raises PreconditionFailed, NotFound,
        ResourceLocked, AccessRefused ...
        """
        topology = self._connection.topology
        method = QueueDeclare(
            topology.current_name(name), passive, durable, exclusive, auto_delete, arguments=arguments or {}
        )

        def record(reply: Reply) -> None:
            if isinstance(reply, QueueDeclareOk):
                topology.queue_declared(method, reply.queue)

        reply = cast("QueueDeclareOk", await self._call(method, record))
        return QueueDeclared(name or reply.queue, reply.message_count, reply.consumer_count)

    async def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue; how many messages it held. One that does not exist is no error."""
        topology = self._connection.topology
        method = QueueDelete(topology.current_name(name), if_unused, if_empty)
        reply = await self._call(method, lambda _: topology.queue_deleted(name))
        return cast("QueueDeleteOk", reply).message_count

    async def purge_queue(self, name: str) -> int:
        """Drop the ready messages of a queue; how many."""
        reply = await self._call(QueuePurge(self._connection.topology.current_name(name)))
        return cast("QueuePurgeOk", reply).message_count

    async def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        """Route messages from an exchange to a queue."""
        topology = self._connection.topology
        method = QueueBind(topology.current_name(queue), exchange, routing_key, arguments=arguments or {})
        await self._call(method, lambda _: topology.bound(method))

    async def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        topology = self._connection.topology
        name = topology.current_name(queue)
        bound = QueueBind(name, exchange, routing_key, arguments=arguments or {})
        method = QueueUnbind(name, exchange, routing_key, arguments or {})
        await self._call(method, lambda _: topology.unbound(bound))

    # Consuming

    async def qos(self, prefetch_count: int, *, global_: bool = False) -> None:
        """Limit unacknowledged deliveries, 0 for none: for each consumer started from now on, or for the channel."""
        check_whole("prefetch_count", prefetch_count, 0, MAX_SHORT)
        method = BasicQos(0, prefetch_count, global_)

        def record(_reply: Reply) -> None:
            self._prefetch = [qos for qos in self._prefetch if qos.global_ != global_]
            if prefetch_count:
                self._prefetch.append(method)

        await self._call(method, record)

    async def consume(
        self,
        queue: str,
        callback: Callable[[Delivery], None] | None = None,
        *,
        consumer_tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Arguments | None = None,
    ) -> Consumer:
        """Start a consumer.

        `callback` is a plain function, called in the loop for each delivery; it should be quick and must not raise: a
        delivery whose callback raised is logged and stays unacknowledged. Without one, iterate over the consumer.
        """
        if not consumer_tag:
            self._last_consumer_number += 1
            consumer_tag = f"ctag-{self._last_consumer_number}"
        if consumer_tag in self._consumers:
            raise ValueError(f"the channel has a consumer {consumer_tag!r}")
        consumer = Consumer(
            self, queue, callback, consumer_tag, no_ack=no_ack, exclusive=exclusive, arguments=arguments or {}
        )
        self._consumers[consumer_tag] = consumer
        self._starting.add(consumer_tag)
        try:
            await self._connection.wait_ready()
            await self._register(consumer, self._open_now())
        except BaseException:
            self._consumers.pop(consumer_tag, None)
            consumer.end(None)
            raise
        finally:
            self._starting.discard(consumer_tag)
        return consumer

    async def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        """Fetch one message, None if the queue has none ready."""

        def hand_back(reply: Reply) -> None:
            if isinstance(reply, Delivery) and not no_ack:
                reply.nack()

        method = BasicGet(self._connection.topology.current_name(queue), no_ack)
        reply = await self._call(method, on_orphan=hand_back)
        return reply if isinstance(reply, Delivery) else None

    async def recover(self, *, requeue: bool = True) -> None:
        """Have all unacknowledged deliveries of this channel delivered again."""
        await self._call(BasicRecover(requeue))

    async def flow(self, active: bool) -> None:  # noqa: FBT001 - the argument of channel.flow
        """Ask the broker to pause or resume deliveries. RabbitMQ refuses to pause them."""
        await self._call(ChannelFlow(active))

    # Transactions

    async def tx_select(self) -> None:
        """Make the channel transactional. Does not survive a reopening: a transaction never does."""
        await self._call(TxSelect())

    async def tx_commit(self) -> None:
        await self._call(TxCommit())

    async def tx_rollback(self) -> None:
        await self._call(TxRollback())

    # The end

    async def close(self) -> None:
        """Close the channel and its consumers. Publishes in flight fail with ChannelClosed."""
        self._check_loop()
        if self._closed:
            return
        self._closed = True
        self._connection.forget_channel(self)
        if self._restoring is not None:
            self._restoring.cancel()
        for consumer in list(self._consumers.values()):
            consumer.end(None)
        self._consumers.clear()
        channel = self._current
        if channel is not None and channel.usable:
            try:
                await ask(channel.close)
            except (ChannelClosed, ConnectionLost):
                return  # It ended in another way meanwhile.

    def give_up(self, error: Exception) -> None:
        """The connection is closed for good."""
        self._closed = True
        if self._restoring is not None:
            self._restoring.cancel()
        for consumer in list(self._consumers.values()):
            consumer.end(error)
        self._consumers.clear()

    # For the connection and the consumers

    async def open(self) -> None:
        """Open the channel on the connection's present incarnation. Raises ClientError."""
        if not self.is_open:
            await ask(self._start)

    async def restore(self) -> None:
        """Open the channel on the connection's new incarnation and register its consumers. Raises ClientError."""
        await self.open()
        channel = self._open_now()
        for consumer in list(self._consumers.values()):
            if self._is_missing(consumer.consumer_tag):
                await self._register(consumer, channel)

    def check_loop(self) -> None:
        """Raise WrongEventLoop unless the running loop is the channel's."""
        self._check_loop()

    def has_registered(self, consumer_tag: str) -> bool:
        """Whether the broker knows of a consumer at this moment."""
        return self.is_open and consumer_tag in self._registered

    async def cancel_consumer(self, consumer: Consumer) -> None:
        """Take a consumer off the broker."""
        self._check_loop()
        self._consumers.pop(consumer.consumer_tag, None)
        channel = self._current
        if channel is None or not channel.usable or consumer.consumer_tag not in self._registered:
            return
        self._registered.discard(consumer.consumer_tag)
        try:
            await ask(_request(channel, BasicCancel(consumer.consumer_tag)))
        except (ChannelClosed, ConnectionLost):
            return  # With its channel, the consumer is gone too.

    # Events of the engine

    def confirmed(self, tokens: list[object]) -> None:
        for future in cast("list[asyncio.Future[None]]", tokens):
            if not future.done():
                future.set_result(None)

    def refused(self, tokens: list[object]) -> None:
        for future in cast("list[asyncio.Future[None]]", tokens):
            if not future.done():
                future.set_exception(QueueFull("the broker refused the message"))

    def returned(self, token: object | None, message: ReturnedMessage) -> None:
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_exception(MessageReturned(message))
        if self._on_return is not None:
            self._on_return(message)

    def abandoned(self, tokens: list[object], reason: CloseReason) -> None:
        for future in cast("list[asyncio.Future[None]]", tokens):
            if not future.done():
                future.set_exception(publish_error_of(reason))

    def channel_closed(self, reason: CloseReason) -> None:
        self._current = None
        self._flow_active = True
        self._registered.clear()
        for consumer in self._consumers.values():
            consumer.hand_back()
        if reason.initiator is Initiator.SERVER and reason.number:
            log.warning("channel %d closed by the broker: %s", reason.number, error_of(reason))
            if self._consumers and not self._closed:
                self._restore_later()

    def consumer_cancelled(self, consumer_tag: str) -> None:
        consumer = self._consumers.get(consumer_tag)
        self._registered.discard(consumer_tag)
        if consumer is not None:
            log.warning("the broker cancelled the consumer %s of queue %s", consumer_tag, consumer.queue)
            self._connection.consumer_cancellations += 1
            self._restore_later()

    def flow_changed(self, active: bool) -> None:  # noqa: FBT001 - the argument of channel.flow
        self._flow_active = active

    def callback_failed(self, delivery: Delivery, error: Exception) -> None:
        log.error("the callback of a consumer failed for %r", delivery, exc_info=error)

    # Helpers

    def _flows(self) -> bool:
        return self._connection.flowing and self._flow_active

    async def _call(
        self,
        method: Method,
        on_success: Callable[[Reply], None] | None = None,
        on_orphan: Callable[[Reply], None] | None = None,
    ) -> Reply:
        await self._connection.wait_ready()
        return await ask(_request(self._open_now(), method), on_success, on_orphan)

    def _check_loop(self) -> None:
        if running_loop() is not self._loop:
            raise wrong_loop("this channel")

    def _open_now(self) -> ClientChannel:
        """The channel, opened if need be. Requests may follow at once: the broker works on them in order."""
        channel = self._current
        return channel if channel is not None and channel.usable else self._start(ignore)

    def _start(self, reply: Callable[[Reply], None]) -> ClientChannel:
        """Open a new incarnation and set it up; `reply` hears when that is done."""
        if self._closed:
            raise ChannelClosed("the channel is closed")
        channel = self._connection.open_engine_channel(self, coalesce_acks=self._coalesce_acks)
        self._current = channel
        steps: list[Method] = [*self._prefetch]
        if self._confirming:
            channel.open(ignore)
            channel.select_confirms(ignore if steps else reply)
        else:
            channel.open(ignore if steps else reply)
        for step in steps:
            channel.request(step, reply if step is steps[-1] else ignore)
        return channel

    async def _register(self, consumer: Consumer, channel: ClientChannel) -> None:
        queue = self._connection.topology.current_name(consumer.queue)
        method = BasicConsume(
            queue,
            consumer.consumer_tag,
            no_ack=consumer.no_ack,
            exclusive=consumer.exclusive,
            arguments=consumer.arguments,
        )
        self._registered.add(consumer.consumer_tag)

        def send(reply: Callable[[Reply], None]) -> None:
            channel.consume(method, consumer.callback, reply)

        def cancel(_reply: Reply) -> None:
            self._registered.discard(consumer.consumer_tag)
            channel.request(BasicCancel(consumer.consumer_tag), ignore)

        await ask(send, on_orphan=cancel)

    def _is_missing(self, consumer_tag: str) -> bool:
        """Whether a consumer that should be at the broker is not, and nobody is about to put it there."""
        return (
            consumer_tag in self._consumers
            and consumer_tag not in self._registered
            and consumer_tag not in self._starting
        )

    def _restore_later(self) -> None:
        if self._restoring is None or self._restoring.done():
            self._restoring = self._connection.spawn(self._restore_consumers())

    async def _restore_consumers(self) -> None:
        """Register consumers again that the broker has ended, with growing delays."""
        attempt = 0
        while any(self._is_missing(tag) for tag in self._consumers):
            attempt += 1
            await asyncio.sleep(self._connection.policy.delay_s(attempt))
            for tag, consumer in list(self._consumers.items()):
                if not self._is_missing(tag):
                    continue
                try:
                    await self._connection.wait_ready()
                    # First on a channel of its own: a queue that is missing must not cost the other consumers theirs.
                    await self._connection.restore_queue(consumer.queue)
                    if self._is_missing(tag):
                        await self._register(consumer, self._open_now())
                except ConnectionClosed:
                    return
                except ClientError as error:
                    log.warning("could not register the consumer %s of %s again: %s", tag, consumer.queue, error)


def _request(channel: ClientChannel, method: Method) -> Send:
    def send(reply: Callable[[Reply], None]) -> None:
        channel.request(method, reply)

    return send


def _bytes_of(body: object) -> bytes:
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a message body is bytes, not {type(body).__name__}")
