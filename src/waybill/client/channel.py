"""A channel that reopens by itself."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, cast

from waybill.client.consumer import Consumer
from waybill.client.consumers import Consumers
from waybill.client.errors import (
    ChannelClosed,
    ConnectionClosed,
    ConnectionLost,
    MessageReturned,
    PublishTimeout,
    QueueFull,
    RequestTimeout,
    error_of,
    publish_error_of,
)
from waybill.client.hosts import ChannelHost, ChannelOwner, PublishingHost
from waybill.client.own_loop import running_loop, wrong_loop
from waybill.client.publishing import WINDOW, Confirmation, OutgoingMessage, Publish, Unpublished, bytes_of, publish_all
from waybill.client.ranges import check_whole
from waybill.client.requests import ask, ask_many, ignore, request_of
from waybill.client.service import Closing
from waybill.client.topology_methods import Arguments, TopologyMethods
from waybill.client.uri import MAX_SHORT
from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.delivery import Delivery, ReturnedMessage
from waybill.engine.amqp091.client.events import ChannelEvents, CloseReason, Initiator
from waybill.engine.amqp091.client.requests import Reply
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicGet, BasicQos, BasicRecover
from waybill.wire.amqp091.methods_channel import ChannelFlow
from waybill.wire.amqp091.methods_tx import TxCommit, TxRollback, TxSelect
from waybill.wire.amqp091.properties import BasicProperties

log: Final = logging.getLogger("waybill.client")

Token = asyncio.Future[None] | Confirmation
"""The engine's token of a publish until its confirm."""


CLOSE_TIMEOUT_S: Final = 5.0


class Channel(Closing, TopologyMethods, PublishingHost, ChannelOwner, ChannelEvents):
    """Made by `Connection.channel`. Belongs to the loop it was made in; other threads must not use it.

    Coroutines wait for the connection while it is lost. They raise ConnectionLost if it breaks while the call is in
    flight, and the error of the broker's reply code if the broker closes the channel. The next call then reopens the
    channel, with the same prefetch count and confirms; its consumers are registered again after a delay.
    """

    def __init__(self, connection: ChannelHost, *, confirms: bool, prefetch_count: int, coalesce_acks: bool) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        self._confirming = confirms
        self._coalesce_acks = coalesce_acks
        check_whole("prefetch_count", prefetch_count, 0, MAX_SHORT)
        self._prefetch: list[BasicQos] = [BasicQos(0, prefetch_count)] if prefetch_count else []
        self._consumers = Consumers(connection, self)
        self._current: ClientChannel | None = None
        self._closed = False
        self._flow_active = asyncio.Event()
        self._flow_active.set()
        # The timer for confirms that do not arrive is off: the next publish starts it.
        self._unwatched = connection.request_timeout_s is not None
        self._watch: asyncio.TimerHandle | None = None
        self._done: asyncio.Future[None] = self._new_future()
        self._done.set_result(None)
        self._on_return: Callable[[ReturnedMessage], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the channel is open at this moment."""
        return self._current is not None and self._current.usable

    @property
    def closed(self) -> bool:
        """Whether it was closed for good."""
        return self._closed

    @property
    def connection(self) -> ChannelHost:
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

        Waits first while publishing is paused, see `drain`. `properties` may be encoded already. Raises
        MessageReturned, MessageNacked (QueueFull), ConnectionLost, ChannelClosed, RequestTimeout if no confirm comes
        within once to twice the URI's `request_timeout`, or EncodeError for properties or names that AMQP has no
        encoding for.
        """
        self.check_loop()
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
        """Publish without waiting: the future is done when the broker has confirmed, or immediately without confirms.

        The future has the errors of `publish`, and ConnectionLost if the connection is lost at this moment. The message
        is written at the end of this iteration of the loop, or once the buffer is large. Nothing limits the buffer:
        await `drain` from time to time. Raises WrongEventLoop from another thread or loop.
        """
        if running_loop() is not self._loop:
            # `check_loop` inlined: every job is published here.
            raise wrong_loop("this channel")
        channel = self._current
        if channel is None or not channel.usable:
            try:
                self._connection.require_ready()
                channel = self.open_now()
            except Exception as error:  # noqa: BLE001 - any error belongs in the future
                failed = self._new_future()
                failed.set_exception(error)
                return failed
        if type(body) is not bytes:
            body = bytes_of(body)
        if not self._confirming:
            channel.publisher.publish(body, exchange, routing_key, properties, mandatory, None)
            return self._done
        future: asyncio.Future[None] = self._new_future()
        channel.publisher.publish(body, exchange, routing_key, properties, mandatory, future)
        if self._unwatched:
            self._watch_confirms(channel)
        return future

    def publish_telling(
        self,
        tell: Callable[[BaseException | None], object],
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: BasicProperties | bytes | None = None,
        mandatory: bool = False,
    ) -> None:
        """Publish as `publish_nowait`, and call `tell` once with None or with the error that its future would have.

        `tell` is called while the answer is read, not in a later turn of the loop as the callbacks of futures are: what
        it publishes is written at the end of the same read. It should be quick; what it raises is logged.
        """
        channel = self._current
        if channel is None or not channel.usable or not self._confirming:
            future = self.publish_nowait(
                body, exchange=exchange, routing_key=routing_key, properties=properties, mandatory=mandatory
            )
            future.add_done_callback(lambda done: tell(done.exception()))
            return
        self.check_loop()
        body = body if type(body) is bytes else bytes_of(body)
        channel.publisher.publish(body, exchange, routing_key, properties, mandatory, Confirmation(tell))
        if self._unwatched:
            self._watch_confirms(channel)

    def publish_run(self, exchange: str, messages: Iterable[Publish]) -> bool:
        """Publish mandatory messages at once; their confirmations are told as that of `publish_telling`.

        False if the channel is not open or has no confirms: then nothing was published.
        """
        channel = self.present()
        if channel is None or not self._confirming:
            return False
        for confirmation, body, routing_key, properties in messages:
            channel.publisher.publish(body, exchange, routing_key, properties, True, confirmation)  # noqa: FBT003
        if self._unwatched:
            self._watch_confirms(channel)
        return True

    async def publish_many(
        self,
        messages: Iterable[OutgoingMessage | bytes],
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: BasicProperties | bytes | None = None,
        mandatory: bool = False,
        window: int = WINDOW,
    ) -> list[Unpublished]:
        """Publish in order, awaiting at most `window` confirms at a time. Returns the messages that failed, in order.

        A message of type bytes is a body, published with `exchange`, `routing_key`, `properties` and `mandatory`; an
        OutgoingMessage has its own. Iterables are read lazily: they need not fit into memory. Raises ConnectionClosed,
        PublishTimeout, or EncodeError for a message that AMQP cannot express; those before it are published then.
        """
        kind = OutgoingMessage(b"", routing_key, exchange, properties, mandatory)
        return await publish_all(self, messages, kind, window)

    async def drain(self) -> None:
        """Wait until publishing may continue: the output buffer is not full, and the broker does not block.

        While the connection is lost, waits for it to come back. Raises ConnectionClosed, or PublishTimeout after the
        URI's `blocked_timeout`; without one, waits forever.
        """
        self.check_loop()
        if self._flows():
            return
        timeout_s = self._connection.blocked_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while not self._flows():
                    await self._connection.wait_flowing()
                    await self._flow_active.wait()
        except TimeoutError:
            raise PublishTimeout(f"the broker has accepted no publishes for {timeout_s} s") from None

    @property
    def unconfirmed_count(self) -> int:
        """How many publishes await their confirm."""
        channel = self._current
        return 0 if channel is None else channel.unconfirmed_count

    def on_return(self, callback: Callable[[ReturnedMessage], None] | None) -> None:
        """Call `callback` for mandatory messages that are returned. Without confirms there is no other way to know."""
        self._on_return = callback

    # Consuming

    async def qos(self, prefetch_count: int, *, global_: bool = False) -> None:
        """Limit unacknowledged deliveries, 0 for none: for each consumer started from now on, or for the channel."""
        check_whole("prefetch_count", prefetch_count, 0, MAX_SHORT)
        method = BasicQos(0, prefetch_count, global_)

        def record(_reply: Reply) -> None:
            self._prefetch = [qos for qos in self._prefetch if qos.global_ != global_]
            if prefetch_count:
                self._prefetch.append(method)

        await self.call(method, record)

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
        consumer = Consumer(
            self._consumers,
            queue,
            callback,
            consumer_tag or self._consumers.new_tag(),
            no_ack=no_ack,
            exclusive=exclusive,
            arguments=arguments or {},
        )
        await self._consumers.start(consumer)
        return consumer

    async def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        """Fetch one message, None if the queue has none ready."""

        def hand_back(reply: Reply) -> None:
            if isinstance(reply, Delivery) and not no_ack:
                reply.nack()

        method = BasicGet(self._connection.declarations.current_name(queue), no_ack)
        reply = await self.call(method, on_orphan=hand_back)
        return reply if isinstance(reply, Delivery) else None

    async def get_many(self, queue: str, count: int) -> list[Delivery]:
        """Fetch up to `count` messages that are ready, with one wait for all of them; at least one is asked for."""

        def hand_back(reply: Reply) -> None:
            if isinstance(reply, Delivery):
                reply.nack()

        method = BasicGet(self._connection.declarations.current_name(queue))
        await self._connection.wait_ready()
        return await ask_many(
            request_of(self.open_now(), method), max(count, 1), self._connection.request_timeout_s, hand_back
        )

    async def recover(self, *, requeue: bool = True) -> None:
        """Ask the broker to redeliver all unacknowledged deliveries of this channel."""
        await self.call(BasicRecover(requeue))

    async def flow(self, active: bool) -> None:  # noqa: FBT001 - the argument of channel.flow
        """Ask the broker to pause or resume deliveries. RabbitMQ refuses to pause them."""
        await self.call(ChannelFlow(active))

    # Transactions

    async def tx_select(self) -> None:
        """Make the channel transactional, until it is closed or the connection is lost.

        Raises ValueError for a channel with confirms: the protocol allows only one of them.
        """
        if self._confirming:
            raise ValueError("a channel with confirms does not support transactions: open it with confirms=False")
        await self.call(TxSelect())

    async def tx_commit(self) -> None:
        """Commit all publishes and settlements since the last commit. After ConnectionLost the outcome is unknown."""
        await self.call(TxCommit())

    async def tx_rollback(self) -> None:
        """Undo all publishes and settlements since the last commit."""
        await self.call(TxRollback())

    # The end

    async def close(self) -> None:
        """Close the channel and its consumers. Publishes in flight fail with ChannelClosed."""
        self.check_loop()
        if self._closed:
            return
        channel = self._end(None)
        if channel is not None:
            try:
                await ask(channel.close, CLOSE_TIMEOUT_S)
            except (ChannelClosed, ConnectionLost, ConnectionClosed, RequestTimeout):
                return  # It was closed in another way meanwhile, or the broker did not answer.

    def give_up(self, error: Exception) -> None:
        """The connection is closed for good."""
        self._closed = True
        self._flow_active.set()
        self._consumers.end_all(error)

    def abandon(self) -> None:
        """Close the channel without waiting: nobody uses it yet."""
        channel = self._end(None)
        if channel is not None:
            channel.close(ignore)

    # For the connection and the consumers

    async def restore(self) -> None:
        """Reopen the channel on the connection's new socket and register its consumers. Raises ClientError."""
        if not self.is_open:
            await ask(self._start, self._connection.request_timeout_s)
        await self._consumers.restore(self.open_now())

    def check_loop(self) -> None:
        if running_loop() is not self._loop:
            raise wrong_loop("this channel")

    def present(self) -> ClientChannel | None:
        channel = self._current
        return channel if channel is not None and channel.usable else None

    def open_now(self) -> ClientChannel:
        """The channel, opened if necessary. Requests may follow at once: the broker processes them in order."""
        return self.present() or self._start(ignore)

    async def call(
        self,
        method: Method,
        on_success: Callable[[Reply], None] | None = None,
        on_orphan: Callable[[Reply], None] | None = None,
    ) -> Reply:
        await self._connection.wait_ready()
        request = request_of(self.open_now(), method)
        return await ask(request, self._connection.request_timeout_s, on_success, on_orphan)

    # Events of the engine

    def confirmed(self, tokens: list[object]) -> None:
        for future in cast("list[Token]", tokens):
            if not future.done():
                future.set_result(None)

    def refused(self, tokens: list[object]) -> None:
        for future in cast("list[Token]", tokens):
            if not future.done():
                future.set_exception(QueueFull("the broker refused the message"))

    def returned(self, token: object | None, message: ReturnedMessage) -> None:
        if isinstance(token, asyncio.Future | Confirmation) and not token.done():
            token.set_exception(MessageReturned(message))
        if self._on_return is not None:
            try:
                self._on_return(message)
            except Exception:
                log.exception("the callback for returned messages failed for %r", message)

    def abandoned(self, tokens: list[object], reason: CloseReason) -> None:
        for future in cast("list[Token]", tokens):
            if not future.done():
                future.set_exception(publish_error_of(reason))

    def channel_closed(self, reason: CloseReason) -> None:
        self._current = None
        self._flow_active.set()
        if self._watch is not None:
            self._watch.cancel()
            self._unwatched = True
        self._consumers.channel_gone()
        if reason.initiator is Initiator.SERVER and reason.number:
            log.warning("channel %d closed by the broker: %s", reason.number, error_of(reason))
            if self._consumers and not self._closed:
                self._consumers.restore_later()

    def consumer_cancelled(self, consumer_tag: str) -> None:
        self._consumers.cancelled(consumer_tag)

    def flow_changed(self, active: bool) -> None:  # noqa: FBT001 - the argument of channel.flow
        if active:
            self._flow_active.set()
        else:
            self._flow_active.clear()

    def callback_failed(self, delivery: Delivery, error: Exception) -> None:
        log.error("the callback of a consumer failed for %r", delivery, exc_info=error)

    # Helpers

    def _watch_confirms(self, channel: ClientChannel) -> None:
        """Start the timer for confirms, one for all publishes: a broker may omit confirms and still answer requests."""
        timeout_s, confirms = self._connection.request_timeout_s, channel.publisher.confirms
        if timeout_s is not None and confirms is not None:
            self._unwatched = False
            self._watch = self._loop.call_later(timeout_s, self._look_at_confirms, channel, confirms.next_number)

    def _look_at_confirms(self, channel: ClientChannel, number: int) -> None:
        """Fail publishes before `number`, which have waited for a whole period, unless the broker blocks."""
        confirms = channel.publisher.confirms
        if confirms is not None and self._connection.flowing:
            text = f"the broker did not confirm within {self._connection.request_timeout_s} s"
            for future in cast("list[Token]", confirms.waiting_below(number)):
                if not future.done():
                    future.set_exception(RequestTimeout(text))
        if channel.unconfirmed_count:
            self._watch_confirms(channel)
        else:
            self._unwatched = True

    def _flows(self) -> bool:
        return self._connection.flowing and self._flow_active.is_set()

    def _end(self, error: Exception | None) -> ClientChannel | None:
        """Close for good. Returns the engine's channel if it is still to be closed."""
        channel = self.present()
        self._closed = True
        self._flow_active.set()
        self._connection.forget_channel(self)
        self._consumers.end_all(error)
        return channel

    def _start(self, reply: Callable[[Reply], None]) -> ClientChannel:
        """Open a channel on the socket and set it up, then call `reply`."""
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
