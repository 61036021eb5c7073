"""The deliveries of one queue, for requests that wait for jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from waybill.backend.source import BYTES_AT_A_TIME, Source
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
        channel.arrived(SimpleNamespace(body=b"", is_current=True))
        await second
    await source.close()


async def test_a_consumer_of_large_jobs_ends_until_requests_have_taken_them() -> None:
    """A hundred requests that waited were sent a hundred jobs of any size."""
    channel, loop = SlowChannel(), asyncio.get_running_loop()
    channel.may_end.set()
    returned: list[Any] = []
    source = Source("q", ["q"], cast("Channel", channel), lambda _queue, delivery: returned.append(delivery))
    requests = [loop.create_future() for _ in range(100)]
    large = SimpleNamespace(body=bytes(BYTES_AT_A_TIME // 2 + 1), is_current=True)
    async with asyncio.timeout(20):
        for one in requests:
            source.wait(one)
        await channel.began.wait()
        channel.began.clear()
        assert channel.arrived is not None
        for _ in range(2):
            channel.arrived(large)
        await channel.is_ending.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert channel.arrived is None
        assert not channel.began.is_set()
        assert await source.take(2) == [large, large]
        await channel.began.wait()
    for one in requests:
        source.leave(one)
    await source.close()
    assert not returned


async def test_few_jobs_are_taken_together_after_a_large_one() -> None:
    """After one small job, fifty of any size were taken at once; of the first ones, nine."""
    sizes = [1000, 1000, BYTES_AT_A_TIME, *[1000] * 200]
    asked: list[int] = []

    class Gets:
        async def get_many(self, _name: str, count: int) -> list[Any]:
            asked.append(count)
            found = [SimpleNamespace(body=bytes(size), is_current=True) for size in sizes[:count]]
            del sizes[:count]
            return found

    source = Source("q", ["q"], cast("Channel", Gets()), lambda _queue, _delivery: None)
    assert source.is_large
    for _ in range(12):
        await source.take(50)
    assert asked[:6] == [2, 3, 2, 3, 5, 9]
    assert max(asked) == 50
    assert not source.is_large
