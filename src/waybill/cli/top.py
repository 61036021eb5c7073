"""`waybill top`: live view of queues, workers and running jobs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import click
import msgspec
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.failure import Failed, ask
from waybill.cli.ranges import SECONDS, Number
from waybill.cli.target import Target, broker_options, json_option
from waybill.client import Connection, Inspector, NotFound, connect
from waybill.ojs.observe.overview import FailureCount, Overview, QueueState, RunningAttempt, WorkerState
from waybill.ojs.spec.events import read_events
from waybill.ojs.topology.event_deliveries import EventDeliveries
from waybill.ojs.topology.job_queues import job_queue_counts

PREFETCH: Final = 1000
QUIET_SECONDS: Final = 0.5
"""Streams have no end marker: after this time without a message, everything is read."""
SHOWN_JOBS: Final = 20


class Depth(msgspec.Struct):
    """The available and dead jobs of a queue, and its consumers."""

    ready: int
    dead: int
    consumers: int


class Snapshot(msgspec.Struct):
    """The data that `top` shows."""

    time: str
    queues: list[QueueState]
    depths: dict[str, Depth]
    workers: list[WorkerState]
    running: list[RunningAttempt]
    failures: list[FailureCount]


@click.command()
@click.argument("queues", nargs=-1)
@click.option("--once", is_flag=True, help="Print one snapshot and exit.")
@click.option(
    "--interval", default=1.0, show_default=True, type=Number(min=0.1, max=3600), help="Seconds between updates."
)
@click.option("--since", default=300.0, type=SECONDS, show_default=True, help="Seconds of past events to start with.")
@broker_options
@json_option
def command(
    queues: tuple[str, ...], interval: float, since: float, target: Target, *, once: bool, as_json: bool
) -> None:
    """Watch queues, rates, workers, running jobs and errors until Ctrl-C.

    QUEUES are added to those that the events name. With --json each snapshot is one line.
    """
    try:
        ask(target, _watch(target, queues, interval, since, once=once, as_json=as_json))
    except SystemExit:
        # Ctrl-C ends the live view.
        if once:
            raise


async def _watch(
    target: Target, queues: tuple[str, ...], interval: float, since: float, *, once: bool, as_json: bool
) -> None:
    overview = Overview()
    async with connect(target.uri, name="waybill top") as connection:
        channel = await connection.channel(prefetch_count=PREFETCH)
        topology = target.topology()
        try:
            offset = datetime.now(UTC) - timedelta(seconds=since)
            consumer = await EventDeliveries.open(channel, topology, offset)
        except NotFound:
            streams = ", ".join(topology.event_streams)
            raise Failed(
                f"there is no event stream {streams}", "start a worker, or `waybill topology declare`"
            ) from None
        await _read(consumer, overview, seconds=None)
        console = Console()
        first = await _snapshot(connection, target, overview, queues)
        if once or as_json:
            while True:
                if as_json:
                    echo(msgspec.json.encode(first))
                else:
                    console.print(_screen(first))
                if once:
                    return
                await _read(consumer, overview, seconds=interval)
                first = await _snapshot(connection, target, overview, queues)
        with Live(_screen(first), console=console, screen=console.is_terminal, auto_refresh=False) as live:
            while True:
                await _read(consumer, overview, seconds=interval)
                live.update(_screen(await _snapshot(connection, target, overview, queues)), refresh=True)


async def _read(consumer: EventDeliveries, overview: Overview, *, seconds: float | None) -> None:
    """Fold the events of some seconds; None: all existing events."""
    deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
    with suppress(TimeoutError):
        while True:
            left = QUIET_SECONDS if deadline is None else deadline - asyncio.get_running_loop().time()
            async with asyncio.timeout(left):
                delivery = await anext(consumer)
            delivery.ack()
            with suppress(msgspec.DecodeError):
                overview.apply(read_events(delivery.body)[0])


async def _snapshot(connection: Connection, target: Target, overview: Overview, named: tuple[str, ...]) -> Snapshot:
    now = datetime.now(UTC)
    topology, inspector = target.topology(), Inspector(connection)
    queues = overview.queues(now)
    queues += [QueueState(name, {}, {}) for name in named if name not in {one.queue for one in queues}]
    depths: dict[str, Depth] = {}
    for one in queues:
        jobs = await job_queue_counts(inspector, topology, one.queue)
        dead = await inspector.queue(topology.dead_letter_queue(one.queue))
        if jobs is not None:
            depths[one.queue] = Depth(
                jobs.message_count, 0 if dead is None else dead.message_count, jobs.consumer_count
            )
    return Snapshot(
        now.isoformat(timespec="milliseconds"),
        queues,
        depths,
        overview.workers(now),
        overview.running(),
        overview.failures(),
    )


def _screen(snapshot: Snapshot) -> Group:
    """The view for a terminal."""
    queues = Table("queue", "ready", "dead", "consumers", "in/s", "done/s", "failed/s", "", box=None, title="Queues")
    for one in snapshot.queues:
        depth = snapshot.depths.get(one.queue)
        numbers = ("-", "-", "-") if depth is None else (str(depth.ready), str(depth.dead), str(depth.consumers))
        rates = (f"{one.rates.get(name, 0.0):.1f}" for name in ("enqueued", "completed", "failed"))
        queues.add_row(one.queue, *numbers, *rates, "paused" if one.paused else "")
    workers = Table("worker", "state", "jobs", "of", "MB", "queues", box=None, title="Workers")
    for worker in snapshot.workers:
        memory = "" if worker.memory_mb is None else f"{worker.memory_mb:.0f}"
        most = "" if worker.concurrency is None else str(worker.concurrency)
        at_work = str(sum(job.worker_id == worker.id for job in snapshot.running))
        workers.add_row(worker.id, worker.state, at_work, most, memory, ", ".join(worker.queues))
    running = Table("job", "type", "queue", "attempt", "%", "since", box=None, title="Running")
    for job in snapshot.running[:SHOWN_JOBS]:
        percent = "" if job.progress_percent is None else f"{job.progress_percent:.0f}"
        running.add_row(job.id, job.type, job.queue, str(job.attempt), percent, job.started_at)
    failures = Table("type", "error", "attempts", box=None, title="Failures")
    for failure in snapshot.failures:
        failures.add_row(failure.type, Text(failure.error), str(failure.count))
    parts = [table for table in (queues, workers, running, failures) if table.row_count]
    more = len(snapshot.running) - SHOWN_JOBS
    if more > 0:
        parts.append(Table(f"and {more} more", box=None))
    return Group(*parts) if parts else Group(Text("no events yet"))
