"""Waybill from one thread without an event loop: a pipeline, or one push after the other, each with its confirm.

The fifth argument is `pipeline` or `single`. A worker as in `waybill_jobs` runs the jobs.
"""

import asyncio

from benchmarks.peers.meter import CONCURRENCY, PREFETCH, Arguments, Meter
from waybill.cli.garbage_collection import collect_rarely
from waybill.ojs import Jobs, Worker
from waybill.transport.loop import run

QUEUE = "bench"

arguments = Arguments()
meter = Meter(arguments.count)
jobs = Jobs(arguments.uri)
last = asyncio.Event()


@jobs.handler("bench.noop", queue=QUEUE)
async def noop(number: int) -> None:
    if meter.job_done():
        last.set()


def push() -> None:
    # As `waybill job push-many` does.
    collect_rarely()
    # Connects and declares, as the others do before their clocks start.
    jobs.sync.call(_declare, "declare()")
    meter.start()
    if "single" in arguments.options:
        for number in range(arguments.count):
            noop.push_sync(number)
    else:
        with jobs.sync.pipeline() as pipeline:
            for number in range(arguments.count):
                pipeline.push(noop.job(number))
    meter.report()


async def _declare(here: object) -> None:
    assert isinstance(here, Jobs)  # noqa: S101 - told to the type checker
    await (await here.broker_connection()).declarer.ensure_queue(QUEUE)


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
    if arguments.verb == "push":
        push()
    else:
        run(work())
