"""The deliveries of one queue, for requests that wait for jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from waybill.backend.source import Source
from waybill.client import Channel, Consumer


class SlowChannel:
    """A channel whose consumers take a while to end."""

    def __init__(self) -> None:
        self.arrived: Callable[[Any], None] | None = None
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.is_ending = asyncio.Event()
        self.closed = False

    async def qos(self, _count: int) -> None:
        return

    async def consume(self, _name: str, arrived: Callable[[Any], None]) -> Consumer:
        self.arrived = arrived
        self.began.set()
        return cast("Consumer", self)

    async def cancel(self) -> None:
        self.is_ending.set()
        await self.may_end.wait()
        self.arrived = None


async def test_a_request_may_begin_to_wait_while_the_last_consumer_ends() -> None:
    channel, loop = SlowChannel(), asyncio.get_running_loop()
    source = Source("q", ["q"], cast("Channel", channel), lambda _queue, _delivery: None)
    first, second = loop.create_future(), loop.create_future()
    async with asyncio.timeout(20):
        source.wait(first)
        await channel.began.wait()
        source.leave(first)
        await channel.is_ending.wait()
        source.wait(second)
        channel.began.clear()
        channel.may_end.set()
        await channel.began.wait()
        assert channel.arrived is not None
        channel.arrived(object())
        await second
    await source.close()
