"""A consumer that survives the loss of its channel or connection."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from waybill.client.hosts import ConsumerHost
from waybill.client.ranges import check_number, check_whole
from waybill.engine.amqp091.client.delivery import Delivery

STREAM_OFFSET: Final = "x-stream-offset"


class Consumer:
    """Made by `Channel.consume`. Without a callback, iterate over it.

        async for delivery in consumer:
            delivery.ack()

    The iteration ends when the program closes the consumer or its channel, and raises ConnectionClosed if the
    connection was given up. Deliveries wait in memory, as many as the channel's prefetch count allows.
    """

    def __init__(
        self,
        channel: ConsumerHost,
        queue: str,
        callback: Callable[[Delivery], None] | None,
        consumer_tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        arguments: dict[str, object],
    ) -> None:
        self._channel = channel
        self.queue = queue
        self.consumer_tag = consumer_tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = arguments
        self.callback: Callable[[Delivery], None] = self._enqueue if callback is None else callback
        self._backlog: deque[Delivery] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self.error: Exception | None = None
        """Why it was closed, None if the program closed it."""

    @property
    def closed(self) -> bool:
        """No more deliveries will come."""
        return self._closed

    @property
    def is_registered(self) -> bool:
        """Whether it is registered now: its channel is open, and the broker has not cancelled it."""
        return self._channel.has_registered(self.consumer_tag)

    async def cancel(self) -> None:
        """End the consumer. Deliveries that were not iterated over go back to the queue."""
        self._channel.check_loop()
        if self._closed:
            return
        self.end(None)
        try:
            await self._channel.cancel_consumer(self.consumer_tag)
        finally:
            # Not earlier: the broker would deliver requeued messages to this consumer again.
            self.hand_back()

    def end(self, error: Exception | None) -> None:
        """End the iteration."""
        self._closed = True
        self.error = error
        self._wake()

    def hand_back(self) -> None:
        """Return deliveries that were not iterated over. If the channel is closed, the broker has done that."""
        backlog = self._backlog
        while backlog:
            self.return_delivery(backlog.popleft())

    def return_delivery(self, delivery: Delivery) -> None:
        """Requeue a delivery that was not used. A stream keeps its messages: there it can only be acknowledged."""
        if STREAM_OFFSET in self.arguments:
            delivery.ack()
        elif not self.no_ack:
            delivery.nack()

    def __aiter__(self) -> "Consumer":
        return self

    async def __anext__(self) -> Delivery:
        while not self._closed:
            if self._backlog:
                return self._backlog.popleft()
            if self._waiter is None or self._waiter.done():
                self._channel.check_loop()
                self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)
        if self.error is not None:
            raise self.error
        raise StopAsyncIteration

    async def batches(self, size: int, *, wait_s: float = 0.05) -> AsyncIterator[list[Delivery]]:
        """Iterate over lists of 1 to `size` deliveries: those that arrive within `wait_s` of the first.

            async for batch in consumer.batches(100):
                store(batch)
                batch[-1].ack(multiple=True)

        The channel's prefetch count must be at least `size`, or 0; otherwise no batch is ever full. Ends and raises
        like the iteration over single deliveries.
        """
        check_whole("size", size, 1, 1_000_000)
        check_number("wait_s", wait_s, 0, 86_400)
        loop = asyncio.get_running_loop()
        async for first in self:
            batch = [first]
            deadline = loop.time() + wait_s
            while len(batch) < size and not self._closed:
                if self._backlog:
                    batch.append(self._backlog.popleft())
                    continue
                try:
                    async with asyncio.timeout_at(deadline):
                        batch.append(await anext(self))
                except (TimeoutError, StopAsyncIteration):
                    break
                except Exception:  # noqa: BLE001 - the next round raises it again; the batch must not get lost
                    break
            yield batch

    def _enqueue(self, delivery: Delivery) -> None:
        self._backlog.append(delivery)
        if self._waiter is not None:
            self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        self._waiter = None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
