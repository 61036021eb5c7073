"""`waybill bench`: measure the throughput and latency of jobs on a broker."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Final

import click
from rich.progress import Progress, TaskID
from rich.table import Table

from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.failure import ask
from waybill.cli.ranges import Number
from waybill.cli.target import Target, broker_options, json_option
from waybill.cli.worker_options import concurrency_option
from waybill.client import connect
from waybill.ojs import Jobs, Topology, Worker
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.topology.declarations import ExchangeDeclaration, QueueDeclaration

QUEUE: Final = "bench"
BATCH: Final = 2000
MAX_CONCURRENCY: Final = 16_383
"""The worker prefetches four times as many jobs."""
SINGLE_PUSHES: Final = 200
PERCENTILES: Final = (50, 95, 99)

Figures = dict[str, object]


@click.command()
@click.option(
    "--jobs", "job_count", default=10_000, show_default=True, type=click.IntRange(1, 10**9), help="Number of jobs."
)
@concurrency_option(100, most=MAX_CONCURRENCY)
@click.option(
    "--payload",
    default=100,
    show_default=True,
    type=click.IntRange(0, 1 << 20),
    help="Size of each job, in characters.",
)
@click.option(
    "--work",
    default=0.0,
    show_default=True,
    type=Number(min=0, max=3_600_000),
    help="Duration of each job, in milliseconds.",
)
@broker_options
@json_option
def command(job_count: int, concurrency: int, payload: int, work: float, target: Target, *, as_json: bool) -> None:
    """Push jobs, run them with one worker in this process, and print the rates. Confirms and events are on.

    All entities get a unique prefix and are deleted afterwards, also after Ctrl-C.
    """
    figures = ask(target, _measure(target, job_count, concurrency, payload, work / 1000))
    if as_json:
        echo(json.dumps(figures))
        return
    table = Table("", "", box=None, show_header=False)
    for name, value in figures.items():
        text = ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name.replace("_", " "), text)
    Console().print(table)


async def _measure(target: Target, job_count: int, concurrency: int, payload: int, work_seconds: float) -> Figures:
    topology = replace(target.topology(), prefix=f"{target.prefix}bench-{new_id()}.")
    try:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            async with Jobs(target.uri, topology=topology, create_queues=True) as jobs:
                return await _Bench(jobs, job_count, concurrency, "x" * payload, work_seconds, bar).run()
    finally:
        await asyncio.shield(_remove(target.uri, topology))


class _Bench:
    """One run."""

    def __init__(
        self, jobs: Jobs, job_count: int, concurrency: int, payload: str, work_seconds: float, bar: Progress
    ) -> None:
        self._jobs = jobs
        self._job_count = job_count
        self._concurrency = concurrency
        self._payload = payload
        self._work_seconds = work_seconds
        self._bar = bar
        self._done = 0
        self._arrived: dict[str, float] = {}
        self._handler = jobs.handler("bench.job", queue=QUEUE)(self._handle)

    async def _handle(self, key: str, _payload: str) -> None:
        self._arrived[key] = time.perf_counter()
        if self._work_seconds:
            await asyncio.sleep(self._work_seconds)
        self._done += 1

    async def run(self) -> Figures:
        """Measure single pushes, bulk pushes, draining a full queue, and the latency of single jobs."""
        single = [await self._timed_push(f"single-{number}") for number in range(SINGLE_PUSHES)]
        task = self._bar.add_task("pushing", total=self._job_count)
        started = time.perf_counter()
        for first in range(0, self._job_count, BATCH):
            count = min(BATCH, self._job_count - first)
            await self._jobs.push_many(self._handler.job(str(first + n), self._payload) for n in range(count))
            self._bar.advance(task, count)
        push_seconds = time.perf_counter() - started
        return {
            "jobs": self._job_count,
            "enqueue_per_second": round(self._job_count / push_seconds),
            "push_milliseconds": _percentiles(single),
            **await self._work(),
        }

    async def _work(self) -> Figures:
        task = self._bar.add_task("working", total=self._job_count + SINGLE_PUSHES)
        started = time.perf_counter()
        async with Worker(self._jobs, queues=[QUEUE], concurrency=self._concurrency, prefetch=4 * self._concurrency):
            await self._until(self._job_count + SINGLE_PUSHES, task)
            seconds = time.perf_counter() - started
            latencies: list[float] = []
            for number in range(SINGLE_PUSHES):
                key = f"latency-{number}"
                pushed = time.perf_counter()
                await self._handler.push(key, self._payload)
                await self._until(self._job_count + SINGLE_PUSHES + number + 1, None)
                latencies.append(self._arrived[key] - pushed)
        return {
            "jobs_per_second": round((self._job_count + SINGLE_PUSHES) / seconds),
            "push_to_start_milliseconds": _percentiles(latencies),
        }

    async def _timed_push(self, key: str) -> float:
        started = time.perf_counter()
        await self._handler.push(key, self._payload)
        return time.perf_counter() - started

    async def _until(self, count: int, task: TaskID | None) -> None:
        while self._done < count:
            if task is not None:
                self._bar.update(task, completed=self._done)
            await asyncio.sleep(0.001)


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        f"p{percent}": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 3)
        for percent in PERCENTILES
    }


async def _remove(uri: str, topology: Topology) -> None:
    """Delete all declared entities."""
    entities = topology.all_entities(QUEUE)
    async with connect(uri, name="waybill bench") as connection:
        channel = await connection.channel()
        for entity in entities:
            if isinstance(entity, QueueDeclaration):
                await channel.delete_queue(entity.name)
        for entity in entities:
            if isinstance(entity, ExchangeDeclaration):
                await channel.delete_exchange(entity.name)
