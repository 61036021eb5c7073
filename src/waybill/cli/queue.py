"""`waybill queue`: the queues behind an OJS queue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import click
from rich.table import Table

from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.failure import Failed, ask
from waybill.cli.ranges import Number
from waybill.cli.target import Target, broker_options, json_option
from waybill.client import Inspector, connect
from waybill.ojs import Declaration, Topology
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.spec.retry import RETRY_BUCKETS_MS
from waybill.ojs.topology.declarer import TopologyDeclarer
from waybill.ojs.topology.discovery import known_queues
from waybill.ojs.topology.job_queues import job_queue_counts


@click.group()
def command() -> None:
    """List, declare, pause and purge queues."""


@command.command(name="list")
@click.argument("queues", nargs=-1)
@click.option(
    "--since",
    default=24.0,
    type=Number(min=0, max=87_600),
    show_default=True,
    help="Without QUEUES: hours of events to search for queue names.",
)
@broker_options
@json_option
def list_queues(queues: tuple[str, ...], since: float, target: Target, *, as_json: bool) -> None:
    """Show how many jobs in QUEUES are ready, retried later, or dead.

    Without QUEUES: in all queues that pushes and workers of the last day have used, since AMQP cannot list queues.
    """
    rows = ask(target, counts(target, queues, timedelta(hours=since)))
    if as_json:
        echo(json.dumps(rows))
        return
    table = Table("queue", "ready", "waiting for retry", "dead", "consumers", "", box=None)
    for row in rows:
        names = ("queue", "ready", "retrying", "dead", "consumers")
        table.add_row(*(str(row[name]) for name in names), "paused" if row["paused"] else "")
    Console().print(table)


@command.command()
@click.argument("queue")
@click.confirmation_option(prompt="Drop all available jobs of the queue?")
@broker_options
@json_option
def purge(queue: str, target: Target, *, as_json: bool) -> None:
    """Delete the available jobs of QUEUE. Running, retrying and scheduled jobs stay."""
    count = ask(target, _purge(target, queue))
    echo(json.dumps({"queue": queue, "purged": count}) if as_json else f"purged {count}")


@command.command()
@click.argument("queues", nargs=-1, required=True)
@click.option(
    "--quorum", is_flag=True, help="Declare quorum queues if the broker has them. They do not support priorities."
)
@broker_options
@json_option
def declare(queues: tuple[str, ...], target: Target, *, quorum: bool, as_json: bool) -> None:
    """Declare all queues, exchanges and bindings that QUEUES need."""
    topology = target.topology()
    ask(target, declare_all(target, queues, replace(topology, queue_type="quorum") if quorum else topology))
    echo(json.dumps({"declared": list(queues)}) if as_json else f"declared {', '.join(queues)}")


@command.command()
@click.argument("queues", nargs=-1, required=True)
@click.option("--by", help="User to name in the queue.paused event.")
@broker_options
@json_option
def pause(queues: tuple[str, ...], by: str | None, target: Target, *, as_json: bool) -> None:
    """Stop all workers from taking jobs of QUEUES.

    Workers that start later take none either. Running jobs finish, and pushes are still accepted.
    """
    changed = ask(target, _pause(target, queues, by))
    echo(json.dumps({"paused": list(queues), "changed": changed}) if as_json else f"paused {', '.join(queues)}")


@command.command()
@click.argument("queues", nargs=-1, required=True)
@click.option("--by", help="User to name in the queue.resumed event.")
@broker_options
@json_option
def resume(queues: tuple[str, ...], by: str | None, target: Target, *, as_json: bool) -> None:
    """Let workers take jobs of QUEUES again."""
    changed = ask(target, _resume(target, queues, by))
    if as_json:
        echo(json.dumps({"resumed": list(queues), "changed": changed}))
        return
    for queue in queues:
        echo(f"resumed {queue}" if queue in changed else f"{queue} was not paused")


async def counts(target: Target, queues: Sequence[str], since: timedelta) -> list[dict[str, object]]:
    """The counts of some OJS queues, or of all that events name. Raises Failed for a missing one that was named."""
    topology = target.topology()
    rows: list[dict[str, object]] = []
    async with connect(target.uri, name="waybill queue") as connection:
        inspector = Inspector(connection)
        for queue in queues:
            check_queue(queue)
        for queue in queues or await known_queues(connection, topology, since):
            jobs = await job_queue_counts(inspector, topology, queue)
            if jobs is None and not queues:
                continue
            if jobs is None:
                raise _missing(queue)
            waiting = [await inspector.queue(topology.retry_queue(queue, delay)) for delay in RETRY_BUCKETS_MS]
            dead = await inspector.queue(topology.dead_letter_queue(queue))
            rows.append(
                {
                    "queue": queue,
                    "ready": jobs.message_count,
                    "retrying": sum(one.message_count for one in waiting if one is not None),
                    "dead": 0 if dead is None else dead.message_count,
                    "consumers": jobs.consumer_count,
                    "paused": await inspector.queue(topology.pause(queue)) is not None,
                }
            )
    return rows


def _missing(queue: str) -> Failed:
    return Failed(f"there is no queue {queue}", f"`waybill queue declare {queue}`, or start its worker")


async def declare_all(target: Target, queues: tuple[str, ...], topology: Topology) -> None:
    """Declare everything that some OJS queues may need."""
    for queue in queues:
        check_queue(queue)
    async with connect(target.uri, name="waybill queue") as connection:
        declarer = TopologyDeclarer(await connection.channel(), replace(topology, declaration=Declaration.EAGER))
        for queue in queues:
            await declarer.ensure_queue(queue)


async def _purge(target: Target, queue: str) -> int:
    check_queue(queue)
    async with connect(target.uri, name="waybill queue") as connection:
        channel = await connection.channel()
        return sum([await channel.purge_queue(name) for name in target.topology().job_queues(queue)])


async def _pause(target: Target, queues: tuple[str, ...], by: str | None) -> list[str]:
    # Any name can be paused, so one that is misspelt would be paused in vain.
    async with connect(target.uri, name="waybill queue") as connection:
        for queue in queues:
            check_queue(queue)
            if await job_queue_counts(Inspector(connection), target.topology(), queue) is None:
                raise _missing(queue)
    async with target.jobs() as jobs:
        return [queue for queue in queues if await jobs.pause(queue, by=by)]


async def _resume(target: Target, queues: tuple[str, ...], by: str | None) -> list[str]:
    async with target.jobs() as jobs:
        return [queue for queue in queues if await jobs.resume(queue, by=by)]
