"""The jobs of the demo from the first push to the last end, through the crash of the broker."""

import asyncio
import time
from asyncio.subprocess import Process
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from rich.console import Console

from examples.demo import evidence
from examples.demo.display import Display
from examples.demo.evidence import Evidence, consumer_count, unfinished_count
from examples.demo.jobs import RECONNECT, make_jobs
from examples.demo.processes import BrokerProcess, ProcessFailed, run_report, running_dashboard, running_worker, stop
from examples.demo.progress import Progress, follow
from waybill.client import Connection, connect

WORKERS: Final = 2
CHUNK: Final = 25
"""Jobs that are pushed together."""
AHEAD: Final = 100
"""Jobs that the producer is ahead of the workers, without those that wait for a retry."""
DOWN_SECONDS: Final = 1.0
"""How long the broker stays away."""
STALL_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 0.7
TICK_SECONDS: Final = 0.1


class Stalled(RuntimeError):
    """Nothing has happened for STALL_SECONDS, and not all jobs have ended."""


class Run:
    """What is left when the jobs have ended: the evidence, and a broker that still runs."""

    def __init__(self, broker: BrokerProcess, progress: Progress, found: Evidence) -> None:
        """Made by `do_jobs`."""
        self.evidence = found
        self._broker = broker
        self._progress = progress

    def disagreements(self) -> list[str]:
        """Say what the sources do not agree on."""
        return evidence.disagreements(self.evidence, self._progress)

    async def report(self, tables: Path, page: Path, totals: Path) -> int:
        """Run pipeline and report; return the exit code."""
        return await run_report(self._broker.uri, tables, page, totals)


async def do_jobs(stack: AsyncExitStack, console: Console, data: Path, paths: list[Path]) -> Run:
    """Start broker and workers, push a job for each path, crash half-way, wait for the end, gather the evidence.

    The broker runs until `stack` is closed. Raises ProcessFailed, Stalled, and what pushing raises.
    """
    broker = BrokerProcess(data / "broker", data / "broker.log")
    stack.push_async_callback(broker.stop)
    seconds = await broker.start()
    console.print(f"[green]✓[/] broker started in {seconds:.2f} s: process {broker.pid}, port {broker.port}")
    url = await stack.enter_async_context(running_dashboard(broker.uri, data / "dashboard.log"))
    console.print(f"[green]✓[/] dashboard at {url}")
    pushed: list[str] = []
    notebooks = [data / f"worker-{number}.sqlite" for number in range(1, WORKERS + 1)]
    async with AsyncExitStack() as working:
        workers = [
            await working.enter_async_context(running_worker(broker.uri, path, path.with_suffix(".log")))
            for path in notebooks
        ]
        connection = await stack.enter_async_context(connect(broker.uri, name="demo", reconnect=RECONNECT))
        await until_consuming(connection, workers)
        console.print(
            f"[green]✓[/] {WORKERS} workers take jobs: processes {', '.join(str(one.pid) for one in workers)}"
        )
        progress = Progress(len(paths))
        display = working.enter_context(Display(console, progress, broker))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(push_all(broker, progress, paths, pushed, connection))
                tasks.create_task(crash(broker, progress, console))
                await until_done(broker, progress, pushed, workers, connection, display)
        except ExceptionGroup as group:
            # The first failure has ended the other tasks.
            raise group.exceptions[0] from None
        await asyncio.gather(*(stop(worker) for worker in workers))
    console.print(f"[green]✓[/] all jobs have ended, in {time.monotonic() - progress.began:.1f} s with the crash")
    return Run(broker, progress, await evidence.collect(connection, pushed, notebooks))


async def until_consuming(connection: Connection, workers: list[Process]) -> None:
    """Return when every worker consumes the job queue. Raises ProcessFailed if one has ended instead."""
    while await consumer_count(connection) < len(workers):
        check_alive(workers)
        await asyncio.sleep(TICK_SECONDS)


def check_alive(workers: list[Process]) -> None:
    """Raise ProcessFailed if a worker has ended."""
    for worker in workers:
        if worker.returncode is not None:
            raise ProcessFailed(f"worker process {worker.pid} has ended with exit code {worker.returncode}")


async def push_all(
    broker: BrokerProcess, progress: Progress, paths: list[Path], pushed: list[str], connection: Connection
) -> None:
    """Push a job for each path, a little ahead of the workers. The ids of confirmed jobs go to `pushed`.

    The last quarter waits for the crash, so that the producer lives through it as well: its pushes go on by
    themselves when the broker is back.
    """
    jobs, parse = make_jobs(broker.uri)
    async with jobs:
        while len(pushed) < len(paths):
            crashed = broker.kills > 0
            limit = len(paths) if crashed else len(paths) * 3 // 4
            chunk = paths[len(pushed) : min(len(pushed) + CHUNK, limit)]
            is_ahead = broker.pid is not None and len(pushed) - progress.ended_count - len(progress.waiting) >= AHEAD
            if not chunk or is_ahead:
                await progress.wait_for_change(TICK_SECONDS)
                continue
            first = not pushed
            pushed += [job.id for job in await jobs.push_many([parse.job(str(path)) for path in chunk])]
            if first:
                # The first push has declared the stream.
                await follow(connection, progress)


async def crash(broker: BrokerProcess, progress: Progress, console: Console) -> None:
    """Kill the broker when half of the jobs have ended, and start it again."""
    while progress.ended_count < progress.total // 2:
        await progress.wait_for_change(TICK_SECONDS)
    pid = broker.pid
    await broker.kill()
    console.print(f"[yellow]•[/] {progress.ended_count:,} jobs ended: broker killed with SIGKILL, process {pid}")
    await asyncio.sleep(DOWN_SECONDS)
    seconds = await broker.start()
    console.print(f"[green]✓[/] broker started again in {seconds:.2f} s, same port and data: process {broker.pid}")


async def until_done(
    broker: BrokerProcess,
    progress: Progress,
    pushed: list[str],
    workers: list[Process],
    connection: Connection,
    display: Display,
) -> None:
    """Return when every job has ended and nothing waits in any queue."""
    while True:
        await asyncio.sleep(TICK_SECONDS)
        display.tick()
        check_alive(workers)
        quiet_seconds = time.monotonic() - progress.last_change
        if quiet_seconds > STALL_SECONDS:
            raise Stalled(f"nothing has happened for {STALL_SECONDS:g} s: {progress.ended_count:,} jobs have ended")
        all_ended = broker.kills > 0 and len(pushed) == progress.ended_count == progress.total
        # A copy of a job that has ended may still wait for its turn: it came twice.
        if (
            all_ended
            and not progress.waiting
            and quiet_seconds > QUIET_SECONDS
            and not await unfinished_count(connection)
        ):
            return
