"""Kill both brokers, ours, while `waybill move` carries jobs from one to the other, and count messages."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

from tests.broker.process import BrokerProcess
from tests.soak.move.one_way import (
    NAMES,
    QUEUE,
    STILL_SECONDS,
    Mover,
    Place,
    Taker,
    WrongError,
    check,
    check_events,
    push,
)
from waybill.client import ConnectFailed, Inspector, connect


async def soak_brokers(directory: Path, kills: int, jobs: int, chance: random.Random, log: Path) -> None:
    """Kill the source and the target in turn, `kills` times together. Raises WrongError."""
    rooms = [directory / name for name in ("source", "target")]
    for room in rooms:
        room.mkdir()
    with BrokerProcess(rooms[0]) as source, BrokerProcess(rooms[1]) as target:
        uris = [f"amqp://guest:guest@127.0.0.1:{one.port}/%2Fojs" for one in (source, target)]
        # While brokers are killed, a producer or a consumer would make copies of its own.
        await push(Place(uris[0]), 0, jobs)
        mover = Mover(Place(uris[0]), Place(uris[1]), log)
        try:
            for kill in range(kills):
                await until_arrived(uris[1], jobs * (kill + 1) // (kills + 2), mover)
                await asyncio.sleep(chance.uniform(0, 0.2))
                victim = (source, target)[kill % 2]
                victim.kill()
                victim.start()
            # An empty source is not enough: the rest may be in transit while a broker is away.
            await until_arrived(uris[1], jobs, mover)
            await mover.end()
        finally:
            mover.close()
        async with connect(uris[1]) as connection:
            taker = Taker()
            async with taker.taking(connection), asyncio.timeout(60):
                while taker.count < jobs:
                    await asyncio.sleep(0.05)
            check(taker, range(jobs))
            await check_events(connection, range(jobs))


async def ready(uri: str, queue: str) -> int:
    """Return how many messages wait, -1 while there is no queue or no broker."""
    try:
        async with connect(uri) as connection:
            found = await Inspector(connection).queue(queue)
    except ConnectFailed:
        return -1
    return -1 if found is None else found.message_count


async def until_arrived(uri: str, count: int, mover: Mover) -> None:
    """Wait for so many jobs in the queue of the target."""
    queue = NAMES.job_queue(QUEUE)
    seen, deadline = -2, 0.0
    while (found := await ready(uri, queue)) < count:
        if found > seen:
            seen, deadline = found, time.monotonic() + STILL_SECONDS
        if time.monotonic() > deadline:
            raise WrongError(f"{found} of {count} messages have arrived in {queue}, and none for {STILL_SECONDS:.0f} s")
        if mover.process.poll() is not None:
            raise WrongError(f"waybill move has ended with {mover.process.returncode}")
        await asyncio.sleep(0.05)
