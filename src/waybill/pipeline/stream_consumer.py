"""A blocking consumer of one stream, which returns deliveries in lists.

The client runs in its own thread, so heartbeats continue while a list is processed. All deliveries of one read of the
socket are passed on together, because a thread switch per message would cost more than the message.
"""

import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Self

from waybill.client import (
    Channel,
    Connection,
    ConnectionLost,
    Consumer,
    Delivery,
    ProtocolError,
    ReconnectPolicy,
    connect,
)
from waybill.client.loop_thread import LoopThread
from waybill.pipeline.message import OFFSET_HEADER

_POLL_S: Final = 0.5
# So many bytes may wait; then nothing is read from the broker until half of them are taken.
_WAITING_BYTES: Final = 64 << 20
# The replies of brokers to a basic.get from a stream: not-implemented, and precondition-failed.
_NOT_FOR_STREAMS: Final = frozenset({540, 406})
# Reading must continue after the last received message, which the client does not know, so it must not reconnect.
# The client also registers a cancelled consumer again, with the delays of this policy, until that is noticed here.
_NO_RECONNECT: Final = ReconnectPolicy(first_delay_s=_POLL_S, jitter=0.0, max_attempts=1)


class StreamConsumer:
    """A connection with one channel. Raises the client's errors: InvalidURI, ConnectFailed, NotFound ..."""

    def __init__(self, uri: str, *, prefetch: int) -> None:
        self._connection: Connection = connect(uri, name="waybill-pipeline", reconnect=_NO_RECONNECT)
        self._prefetch = prefetch
        self._lists: SimpleQueue[list[Delivery]] = SimpleQueue()
        self._arrived: list[Delivery] = []
        self._waiting_bytes = 0
        self._paused = False
        self._thread = LoopThread()

    def __enter__(self) -> Self:
        try:
            self._channel: Channel = self._thread.call(self._open())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.call(self._connection.close())
        finally:
            self._thread.stop()

    def message_count(self, stream: str) -> int:
        """The broker's message count of `stream`. RabbitMQ's may be seconds old."""
        declared = self._thread.call(self._channel.declare_queue(stream, durable=True, passive=True))
        return declared.message_count

    def can_get(self, queue: str) -> bool:
        """Whether basic.get works, as on all queues except streams. The connection is unusable afterwards."""
        try:
            self._thread.call(self._channel.get(queue))
        except ProtocolError as problem:
            if problem.code in _NOT_FOR_STREAMS:
                return False
            raise
        return True

    def deliveries(self, stream: str, place: object, silence: float) -> Iterator[list[Delivery]]:
        """Deliveries from `place` (`first`, `last`, an offset, a datetime) on, until none came for `silence` seconds.

        They are acknowledged by halves of the prefetch window when the next list is requested: a stream keeps them, and
        sends more.
        """
        threshold = max(1, self._prefetch // 2)
        consumer = self._thread.call(self._channel.consume(stream, self._take, arguments={OFFSET_HEADER: place}))
        unacknowledged = 0
        while (arrived := self._next(consumer, silence)) is not None:
            yield arrived
            self._thread.loop.call_soon_threadsafe(self._taken, sum(len(one.body) for one in arrived))
            unacknowledged += len(arrived)
            if unacknowledged >= threshold:
                self._thread.loop.call_soon_threadsafe(arrived[-1].ack, True)  # noqa: FBT003 - the bit of basic.ack
                unacknowledged = 0

    async def _open(self) -> Channel:
        await self._connection
        return await self._connection.channel(prefetch_count=self._prefetch)

    def _take(self, delivery: Delivery) -> None:
        """Called in the client's thread for each delivery of a read."""
        if not self._arrived:
            self._thread.loop.call_soon(self._hand_over)
        self._arrived.append(delivery)
        self._waiting_bytes += len(delivery.body)
        if self._waiting_bytes > _WAITING_BYTES and not self._paused:
            self._paused = True
            self._connection.pause_reading()

    def _taken(self, size: int) -> None:
        """Called in the client's thread after a list was processed."""
        self._waiting_bytes -= size
        if self._paused and self._waiting_bytes <= _WAITING_BYTES // 2:
            self._paused = False
            self._connection.resume_reading()

    def _hand_over(self) -> None:
        self._lists.put(self._arrived)
        self._arrived = []

    def _next(self, consumer: Consumer, silence: float) -> list[Delivery] | None:
        """The next deliveries, None after the silence. Checks periodically whether the connection is lost."""
        deadline = time.monotonic() + silence
        while True:
            left = deadline - time.monotonic()
            try:
                return self._lists.get(timeout=max(0.0, min(_POLL_S, left)))
            except Empty:
                if consumer.closed and consumer.error is not None:
                    raise consumer.error from None
                if self._connection.consumer_cancellations:
                    raise ConnectionLost(
                        "the broker cancelled the consumer, perhaps as the stream was deleted"
                    ) from None
                if left <= 0 or consumer.closed:
                    return None
