"""Waybill: chords of numbers and their sum; the coordinator is a process beside the worker.

    python -m benchmarks.peers.waybill_chord push|work|coordinate URI RESULTS COUNT

RESULTS is Celery's, and not needed here. See `celery_chord`.
"""

import asyncio
import json
import sys
import time

from benchmarks.peers.meter import cpu_seconds
from waybill.ojs import Coordinator, Jobs, Worker, chord, parent_results
from waybill.transport.loop import run

QUEUE = "bench-chord"

verb, uri, _, count = sys.argv[1:5]
jobs = Jobs(uri)


@jobs.handler("bench.number", queue=QUEUE)
async def number(value: int) -> int:
    return value


@jobs.handler("bench.total", queue=QUEUE)
async def total() -> int:
    return sum(parent_results(number))


async def once(size: int) -> dict[str, float]:
    """Push a chord and wait for its sum."""
    began, used = time.perf_counter(), cpu_seconds()
    handle = await chord((number.job(value) for value in range(size)), total.job()).push(jobs)
    pushed = time.perf_counter() - began
    found = await handle.result(timeout=600)
    assert found == sum(range(size)), found  # noqa: S101 - a benchmark of what does not work is of no use
    return {"seconds": time.perf_counter() - began, "push_seconds": pushed, "pusher_cpu": cpu_seconds() - used}


async def push() -> None:
    async with jobs:
        await once(min(int(count), 100))
        print(json.dumps(await once(int(count))), flush=True)


async def serve() -> None:
    part = Worker(jobs, queues=[QUEUE], prefetch=1000) if verb == "work" else Coordinator(jobs, queues=[QUEUE])
    async with part:
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(push() if verb == "push" else serve())
