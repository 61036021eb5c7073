"""Waybill: handlers as coroutines. Events are written to the stream; a job counts when it is acknowledged.

The fifth argument is the kind of queue: `default`, classic with priorities; `classic` without priorities, like those of
the others; or `quorum`.
"""

import asyncio

from benchmarks.peers.meter import CONCURRENCY, NOOP, PREFETCH, SLEEP_SECONDS, Arguments, Meter
from waybill.cli.garbage_collection import collect_rarely
from waybill.ojs import Jobs, Topology, Worker
from waybill.transport.loop import run

QUEUE = "bench"
WORKER_QUEUE = f"ojs.queue.{QUEUE}"

TOPOLOGIES = {
    "default": Topology(),
    "classic": Topology(max_priority=0),
    "quorum": Topology(queue_type="quorum"),
}

arguments = Arguments()
meter = Meter(arguments.count)
jobs = Jobs(arguments.uri, topology=TOPOLOGIES[next(iter(arguments.options), "default")])
last = asyncio.Event()


def count() -> None:
    if meter.job_done():
        last.set()


@jobs.handler("bench.noop", queue=QUEUE)
async def noop(number: int) -> None:
    count()


@jobs.handler("bench.sleep", queue=QUEUE)
async def sleep(number: int) -> None:
    await asyncio.sleep(SLEEP_SECONDS)
    count()


handler = noop if arguments.kind == NOOP else sleep


async def push() -> None:
    # As `waybill job push-many` does.
    collect_rarely()
    async with jobs:
        # As the peers' programs do before their clocks start.
        await (await jobs.broker_connection()).declarer.ensure_queue(QUEUE)
        meter.start()
        await jobs.push_many(handler.job(number) for number in range(arguments.count))
        meter.report()


async def work() -> None:
    # As `waybill worker` does.
    collect_rarely()
    async with Worker(jobs, queues=[QUEUE], concurrency=CONCURRENCY, prefetch=PREFETCH) as worker:
        await last.wait()
        while worker.counters.acked[QUEUE] < arguments.count:
            # No busy waiting for the last confirms: it would count as the CPU of the jobs.
            await asyncio.sleep(0.001)
        meter.report()


if __name__ == "__main__":
    run(push() if arguments.verb == "push" else work())
