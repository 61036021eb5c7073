"""Reads the events of a broker from all of their streams, for programs that show what happens."""

from __future__ import annotations

import asyncio
from typing import Self

from waybill.client import Channel, Consumer, Delivery
from waybill.ojs.topology.topology import Topology


class EventDeliveries:
    """Messages of all event streams as they come: in order within a stream. Their reader acknowledges them."""

    def __init__(self, consumers: list[Consumer]) -> None:
        """Use `open`."""
        self._consumers = consumers
        self._waiting: list[asyncio.Task[Delivery]] = []

    @classmethod
    async def open(cls, channel: Channel, topology: Topology, offset: object) -> Self:
        """Read from an `x-stream-offset` on, as RabbitMQ knows them. Raises NotFound for a missing stream."""
        arguments = {"x-stream-offset": offset}
        return cls([await channel.consume(name, arguments=dict(arguments)) for name in topology.event_streams])

    def __aiter__(self) -> Self:
        """Iterate over what comes."""
        return self

    async def __anext__(self) -> Delivery:
        """Return the next message. A wait that is cancelled loses none."""
        if len(self._consumers) == 1:
            return await anext(self._consumers[0])
        if not self._waiting:
            self._waiting = [_begin(one) for one in self._consumers]
        await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
        place = next(number for number, task in enumerate(self._waiting) if task.done())
        task = self._waiting.pop(place)
        consumer = self._consumers.pop(place)
        # At the end, so that each has its turn.
        self._consumers.append(consumer)
        self._waiting.append(_begin(consumer))
        return task.result()

    async def close(self) -> None:
        """Stop reading."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        for one in self._consumers:
            await one.cancel()


def _begin(consumer: Consumer) -> asyncio.Task[Delivery]:
    task = asyncio.ensure_future(_next(consumer))
    # Nobody waits for it if the connection ends with the program.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


async def _next(consumer: Consumer) -> Delivery:
    return await anext(consumer)
