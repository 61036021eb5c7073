"""Connections cut at random under producers and workers: every job ends, and the stream knows how."""

import asyncio
import random
from collections import Counter
from typing import Any

from tests.ojs.eye import Eye, until
from tests.ojs.proxy import Proxy
from waybill.client import ReconnectPolicy, connect
from waybill.ojs import Jobs, Retry, Worker
from waybill.ojs.spec.events import decode_events

FAST = ReconnectPolicy(first_delay_s=0.02, max_delay_s=0.1)
JOBS = 600
CUTS = 12


async def test_every_job_ends_completed_or_discarded(broker_uri: str, eye: Eye, queue_name: str) -> None:
    random.seed(queue_name)
    ends: dict[str, list[str]] = {}
    runs: Counter[int] = Counter()

    def fold(delivery: Any) -> None:
        for event in decode_events(delivery.body):
            if event.type in {"job.completed", "job.discarded"} and event.data.get("queue") == queue_name:
                ends.setdefault(event.subject, []).append(event.type)
        delivery.ack()

    async with Proxy(broker_uri) as proxy, connect(broker_uri) as connection:
        jobs = Jobs(proxy.uri, reconnect=FAST)

        @jobs.handler("loss.some", queue=queue_name, retry=Retry(max_attempts=4, jitter=False))
        async def some(number: int) -> None:
            runs[number] += 1
            await asyncio.sleep(random.random() * 0.02)
            if number % 50 == 0:
                raise RuntimeError("always")

        async with jobs:
            await some.push(-1)
            channel = await connection.channel(prefetch_count=200)
            await channel.consume("ojs.events", fold, arguments={"x-stream-offset": "next"})
            async with Worker(jobs, concurrency=10, prefetch=30), Worker(jobs, concurrency=10, prefetch=30):
                pushing = asyncio.get_running_loop().create_task(push_all(jobs, some))
                for _ in range(CUTS):
                    await asyncio.sleep(random.random() * 0.15)
                    proxy.cut()
                pushed = await pushing
                await until(lambda: len(ends.keys() & pushed) == JOBS, seconds=60)
    assert ends.keys() >= pushed
    assert min(runs[number] for number in range(JOBS)) >= 1
    dead = await eye.count(f"ojs.queue.dlx.{queue_name}")
    assert dead >= JOBS // 50, "a job that fails for ever is in the dead letter queue"
    print(Counter(tuple(sorted(set(kinds))) for kinds in ends.values()), sum(runs.values()) - JOBS, dead)


async def push_all(jobs: Jobs, handler: Any) -> set[str]:
    ids: set[str] = set()
    for start in range(0, JOBS, 50):
        ids |= {envelope.id for envelope in await jobs.push_many(handler.job(n) for n in range(start, start + 50))}
        await asyncio.sleep(0.02)
    return ids
