"""Reads the event stream from where a store ends, and notices when the stream was replaced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from waybill.client import Channel, ClientError, Consumer, Delivery, Inspector
from waybill.client.super_streams import partition_name
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.stream_identity import StreamIdentity, StreamMark
from waybill.ojs.errors import TopologyConflict

PREFETCH: Final = 50
END_SECONDS: Final = 1.0
"""After so long without another message, the one before was the last of the stream."""

_log = logging.getLogger("waybill.ojs.coordinator")


async def require_known_partitions(broker: BrokerConnection) -> None:
    """Refuse a broker that has more partitions of events: some would never be read. Raises TopologyConflict."""
    topology = broker.declarer.topology
    name = partition_name(topology.event_stream, topology.event_partitions)
    try:
        found = await Inspector(broker.connection).queue(name)
    except ClientError as error:
        _log.debug("it is not known whether there is a stream %s: %s", name, error)
        return
    if found is not None:
        raise TopologyConflict(
            f"there is an event stream {name}, and this program knows of {topology.event_partitions} event partitions:"
            " coordinators and servers need the greatest number of event_partitions of all programs"
        )


class EventReader:
    """Passes each message of the stream to `take`, once and in order; `take` acknowledges it eventually."""

    def __init__(self, take: Callable[[StreamMark, Delivery], None], replaced: Callable[[], None]) -> None:
        """`replaced` is called when the stream turns out to be another one. Reading starts with `begin`."""
        self.malformed_count = 0
        """How many messages had unreadable properties."""
        self.is_replaced = False
        """Whether reading has stopped until `begin` is called again."""
        self.is_paused = False
        """Whether reading has stopped until `resume` is called."""
        self._take = take
        self._replaced = replaced
        self._identity = StreamIdentity()
        self._next_offset = 0
        self._broker: BrokerConnection | None = None
        self._channel: Channel | None = None
        self._queue = ""
        self._stream: Consumer | None = None
        self._looking: asyncio.Task[None] | None = None
        self._prefetch = PREFETCH
        self._folded: StreamMark | None = None
        self._cancelling: asyncio.Task[None] | None = None
        """Ends the consumer of a pause."""
        self._beginning = asyncio.Lock()

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._queue

    @property
    def is_reading(self) -> bool:
        """Whether the broker sends messages of the stream."""
        return self._stream is not None and self._stream.is_registered

    async def open(self, broker: BrokerConnection, partition: int = 0) -> None:
        """Prepare to read the stream of a broker, or one of its partitions."""
        self._broker = broker
        broker.connection.on_reconnect(self._look_for_end)
        self._channel = await broker.connection.channel(prefetch_count=PREFETCH)
        self._queue = broker.declarer.topology.event_streams[partition]

    def pause(self) -> None:
        """Stop reading. What comes until the broker knows is dropped, and read again by `resume`."""
        self.is_paused = True
        stream, self._stream = self._stream, None
        if stream is not None:
            self._cancelling = asyncio.get_running_loop().create_task(_cancel(stream))

    async def resume(self, prefetch: int) -> None:
        """Read on behind the message that was folded last, so many messages at a time."""
        if self._folded is not None and self._channel is not None:
            if prefetch != self._prefetch:
                await self._channel.qos(prefetch)
                self._prefetch = prefetch
            await self.begin(self._folded.offset + 1, self._folded)

    async def begin(self, offset: int, mark: StreamMark | None) -> None:
        """Read from `offset` on; a message before it, if known, identifies the stream."""
        async with self._beginning:
            if self._stream is not None:
                await self._stream.cancel()
            if self._cancelling is not None:
                await self._cancelling
                self._cancelling = None
            self._identity = StreamIdentity(offset, mark)
            self._next_offset = offset
            self.is_replaced = False
            if self._channel is not None:
                self.is_paused = False
                await self._consume(self._channel, offset if mark is None else mark.offset)

    async def _consume(self, channel: Channel, first: int) -> None:
        arguments: dict[str, object] = {"x-stream-offset": first or "first"}
        try:
            self._stream = await channel.consume(self._queue, self._look_at, arguments=arguments)
        except BaseException:
            self.is_paused = True
            raise
        if self.is_paused:
            # The first messages came before the answer, and there was no room for them.
            self.pause()
        else:
            self._look_for_end()

    def close(self) -> None:
        """Look for nothing more. The messages end with the channel."""
        if self._looking is not None:
            self._looking.cancel()

    def folded(self, mark: StreamMark) -> None:
        """After a lost connection, continue behind this message, which identifies the stream."""
        self._folded = mark
        if self._stream is not None:
            self._stream.arguments["x-stream-offset"] = mark.offset

    def replace(self) -> None:
        """Stop reading: the stream, or the store's copy of it, was replaced."""
        self.is_replaced = True
        self._replaced()

    def _look_for_end(self) -> None:
        self.close()
        if self._broker is not None and self._stream is not None:
            first = self._stream.arguments["x-stream-offset"]
            if isinstance(first, int):
                self._looking = asyncio.get_running_loop().create_task(self._find(self._broker, first))

    async def _find(self, broker: BrokerConnection, first: int) -> None:
        """Notice that the stream ends before the message that reading begins with.

        From an offset that does not exist yet, RabbitMQ sends nothing until it exists, so a stream that was made anew,
        and is shorter, would look as if nothing happened. "last" begins within the last messages.
        """
        try:
            async with await broker.connection.channel(prefetch_count=PREFETCH) as channel:
                found = await channel.consume(self._queue, arguments={"x-stream-offset": "last"})
                longest: float | None = None
                offset = -1
                while offset < first:
                    async with asyncio.timeout(longest):
                        delivery = await anext(found)
                    delivery.ack()
                    number = _offset_of(delivery)
                    offset = offset if number is None else number
                    longest = END_SECONDS
        except TimeoutError:
            if not self.is_replaced:
                self._was_made_anew()
        except (ClientError, StopAsyncIteration, ValueError) as error:
            _log.debug("the end of the stream %s is not known: %r", self._queue, error)

    def _was_made_anew(self) -> None:
        _log.warning(
            "the event stream was deleted and created again: rebuilding the job state from its first event;"
            " jobs without an event in it are forgotten"
        )
        self.replace()

    def _look_at(self, delivery: Delivery) -> None:
        try:
            offset = _offset_of(delivery)
        except ValueError:
            _log.warning("a message of the event stream has malformed properties and is skipped")
            self.malformed_count += 1
            offset = None
        if self.is_replaced or self.is_paused or offset is None:
            delivery.ack()
            return
        mark = self._identity.note(offset, delivery.body)
        if mark is None:
            delivery.ack()
            self._was_made_anew()
        elif offset < self._next_offset:
            delivery.ack()
        else:
            self._next_offset = offset + 1
            self._take(mark, delivery)


def _offset_of(delivery: Delivery) -> int | None:
    """Return the offset of a message. Raises ValueError for malformed properties."""
    offset = (delivery.properties.headers or {}).get("x-stream-offset")
    return offset if isinstance(offset, int) else None


async def _cancel(consumer: Consumer) -> None:
    """End a consumer; one of a lost connection has ended."""
    with contextlib.suppress(ClientError):
        await consumer.cancel()
