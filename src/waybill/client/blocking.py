"""The client for programs without an event loop.

    from waybill.client import blocking

    with blocking.connect("amqp://guest:guest@localhost:5672/%2Fojs") as connection:
        channel = connection.channel()
        channel.publish(b"hello", routing_key="greetings")
        for delivery in channel.consume("greetings", inactivity_timeout=1.0):
            delivery.ack()

The asyncio client runs on a thread of its own; any number of threads may use one connection. Every call returns when it
is done and raises what its asyncio counterpart raises. Ctrl-C interrupts a call at once.
"""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Coroutine, Iterator
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from waybill.client.channel import Channel as AsyncChannel
from waybill.client.connection import Connection as AsyncConnection
from waybill.client.connection import connect as connect_async
from waybill.client.consumer import Consumer
from waybill.client.reconnect import ReconnectPolicy
from waybill.client.topology_methods import Arguments, QueueDeclared
from waybill.engine.amqp091.client.delivery import Delivery as AsyncDelivery
from waybill.transport.loop import new_event_loop
from waybill.transport.loop import run as run  # noqa: PLC0414 - for whoever may use the client only
from waybill.wire.amqp091.properties import BasicProperties

T = TypeVar("T")

DEFAULT_PREFETCH_COUNT: Final = 100
POLL_INTERVAL_S: Final = 0.5


def connect(uri: str, *, name: str = "", reconnect: ReconnectPolicy | None = None) -> "Connection":
    """Connect. Raises InvalidURI, ConnectFailed, AuthenticationFailed or a ProtocolError."""
    return Connection(uri, name=name, reconnect=reconnect)


class LoopThread:
    """An event loop on a daemon thread."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="waybill-client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop; its result or exception. An interrupted caller cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback on the client's own thread cannot wait for the client")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except (KeyboardInterrupt, concurrent.futures.CancelledError):
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and its thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


class Connection:
    """See `waybill.client.Connection`."""

    def __init__(self, uri: str, *, name: str = "", reconnect: ReconnectPolicy | None = None) -> None:
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

    def channel(self, *, confirms: bool = True, prefetch_count: int = 0) -> "Channel":
        """A new channel; unlike the asyncio client's, it has confirms unless told otherwise."""
        channel = self._thread.call(self._connection.channel(confirms=confirms, prefetch_count=prefetch_count))
        return Channel(self._thread, channel)

    def close(self) -> None:
        """Close the connection and end its thread."""
        try:
            if not self._thread.loop.is_closed():
                self._thread.call(self._connection.close())
        finally:
            self._thread.stop()

    async def _open(self) -> None:
        await self._connection


class Delivery:
    """A message for this thread; see `waybill.client.Delivery`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, delivery: AsyncDelivery) -> None:
        self._loop = loop
        self._delivery = delivery
        self.body = delivery.body
        self.delivery_tag = delivery.delivery_tag
        self.consumer_tag = delivery.consumer_tag
        self.exchange = delivery.exchange
        self.routing_key = delivery.routing_key
        self.redelivered = delivery.redelivered
        self.message_count = delivery.message_count

    @property
    def properties(self) -> BasicProperties:
        """Decoded when first asked for. Raises DecodeError."""
        return self._delivery.properties

    def ack(self, multiple: bool = False) -> None:  # noqa: FBT001, FBT002 - the bit of basic.ack
        """Acknowledge it (`multiple`: and all before it on this channel). Written soon, on the client's thread."""
        self._loop.call_soon_threadsafe(self._delivery.ack, multiple)

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:  # noqa: FBT001, FBT002 - bits of basic.nack
        """Refuse it: back to the queue, or with `requeue=False` to the dead letter exchange."""
        self._loop.call_soon_threadsafe(self._delivery.nack, requeue, multiple)

    def reject(self, requeue: bool = True) -> None:  # noqa: FBT001, FBT002 - the bit of basic.reject
        self._loop.call_soon_threadsafe(self._delivery.reject, requeue)


class Channel:
    """See `waybill.client.Channel`; every method waits for its end."""

    def __init__(self, thread: LoopThread, channel: AsyncChannel) -> None:
        self._thread = thread
        self._channel = channel

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def publish(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: BasicProperties | bytes | None = None,
        mandatory: bool = False,
    ) -> None:
        self._thread.call(
            self._channel.publish(
                body, exchange=exchange, routing_key=routing_key, properties=properties, mandatory=mandatory
            )
        )

    def publish_many(
        self,
        bodies: list[bytes],
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: BasicProperties | bytes | None = None,
        mandatory: bool = False,
    ) -> None:
        """Publish messages of one kind in a pipeline; return when all are confirmed. Raises the first error."""
        self._thread.call(self._publish_many(bodies, exchange, routing_key, properties, mandatory=mandatory))

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
        self._thread.call(
            self._channel.declare_exchange(
                name,
                type,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                passive=passive,
                arguments=arguments,
            )
        )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._thread.call(self._channel.delete_exchange(name, if_unused=if_unused))

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
        return self._thread.call(
            self._channel.declare_queue(
                name,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                passive=passive,
                arguments=arguments,
            )
        )

    def bind_queue(self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments | None = None) -> None:
        self._thread.call(self._channel.bind_queue(queue, exchange, routing_key, arguments))

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Arguments | None = None
    ) -> None:
        self._thread.call(self._channel.unbind_queue(queue, exchange, routing_key, arguments))

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return self._thread.call(self._channel.delete_queue(name, if_unused=if_unused, if_empty=if_empty))

    def purge_queue(self, name: str) -> int:
        return self._thread.call(self._channel.purge_queue(name))

    def qos(self, prefetch_count: int, *, global_: bool = False) -> None:
        self._thread.call(self._channel.qos(prefetch_count, global_=global_))

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        delivery = self._thread.call(self._channel.get(queue, no_ack=no_ack))
        return None if delivery is None else Delivery(self._thread.loop, delivery)

    def consume(
        self,
        queue: str,
        *,
        prefetch_count: int = DEFAULT_PREFETCH_COUNT,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Arguments | None = None,
        inactivity_timeout: float | None = None,
    ) -> Iterator[Delivery]:
        """Iterate over the messages of a queue as they come; leaving the loop cancels the consumer.

        Ends after `inactivity_timeout` seconds without a message (None: never). Deliveries that were fetched but not
        iterated over go back to the queue. Raises NotFound, AccessRefused, ... at the first step, ConnectionClosed if
        the connection is given up.
        """
        deliveries: SimpleQueue[AsyncDelivery] = SimpleQueue()
        self.qos(prefetch_count)
        consumer = self._thread.call(
            self._channel.consume(queue, deliveries.put, no_ack=no_ack, exclusive=exclusive, arguments=arguments)
        )
        try:
            while True:
                delivery = _next_delivery(deliveries, consumer, inactivity_timeout)
                if delivery is None:
                    return
                yield Delivery(self._thread.loop, delivery)
        finally:
            if not self._thread.loop.is_closed():
                self._thread.call(consumer.cancel())
                self._thread.loop.call_soon_threadsafe(_hand_back, deliveries, no_ack)

    def close(self) -> None:
        self._thread.call(self._channel.close())

    async def _publish_many(
        self,
        bodies: list[bytes],
        exchange: str,
        routing_key: str,
        properties: BasicProperties | bytes | None,
        *,
        mandatory: bool,
    ) -> None:
        futures = []
        for body in bodies:
            await self._channel.drain()
            futures.append(
                self._channel.publish_nowait(
                    body, exchange=exchange, routing_key=routing_key, properties=properties, mandatory=mandatory
                )
            )
        await asyncio.gather(*futures)


def _next_delivery(
    deliveries: SimpleQueue[AsyncDelivery], consumer: Consumer, inactivity_timeout: float | None
) -> AsyncDelivery | None:
    """The next delivery, None after the timeout. Looks up now and then: the connection may have been given up."""
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


def _hand_back(deliveries: SimpleQueue[AsyncDelivery], no_ack: bool) -> None:  # noqa: FBT001 - called by the loop
    """Return what was fetched but not iterated over."""
    while not deliveries.empty():
        delivery = deliveries.get_nowait()
        if not no_ack:
            delivery.nack()
