"""`waybill topology`: declare, check and migrate the queues and exchanges of jobs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.progress import Progress
from rich.table import Table

from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.failure import Failed, ask
from waybill.cli.partitions_option import event_partitions_option, partitions_option
from waybill.cli.queue import declare_all
from waybill.cli.ranges import RATE
from waybill.cli.target import Target, broker_options, json_option
from waybill.client import Inspector, connect
from waybill.client.super_streams import PARTITIONS_MAX
from waybill.ojs import Finding, Migration, MigrationBlocked, Move, Standing, check_topology
from waybill.ojs.topology.job_queues import job_queue_counts

if TYPE_CHECKING:
    from waybill.ojs.topology.topology import QueueType

LEAVE_SECONDS = 30.0


@click.group()
def command() -> None:
    """Declare, check and migrate the queues and exchanges of jobs.

    The names, the prefix and the queue type are those of the context or the options.
    """


@command.command()
@click.argument("queues", nargs=-1, required=True)
@click.option("--queue-type", type=click.Choice(["classic", "quorum"]), help="Type of job queues.")
@partitions_option()
@event_partitions_option()
@broker_options
@json_option
def declare(
    queues: tuple[str, ...],
    queue_type: QueueType | None,
    partitions: dict[str, int] | None,
    event_partitions: int | None,
    target: Target,
    *,
    as_json: bool,
) -> None:
    """Declare everything that the OJS QUEUES may need.

    That is exchanges, streams and queues. Repeating it changes nothing.
    """
    target = target.changed(queue_type=queue_type, partitions=partitions, event_partitions=event_partitions)
    ask(target, declare_all(target, queues, target.topology()))
    echo(json.dumps({"declared": list(queues)}) if as_json else f"declared {', '.join(queues)}")


@command.command("super-stream")
@click.argument("name")
@click.option(
    "--partitions", type=click.IntRange(1, PARTITIONS_MAX), default=4, show_default=True, help="Number of streams."
)
@click.option(
    "--max-bytes", type=click.IntRange(1, 2**63 - 1), help="Approximate number of bytes to keep of each stream."
)
@broker_options
@json_option
def super_stream(name: str, partitions: int, max_bytes: int | None, target: Target, *, as_json: bool) -> None:
    """Declare a partitioned stream.

    It is the exchange NAME and the streams NAME-0, NAME-1, and so on. Repeating it changes nothing; with more
    partitions than before, the new ones are added.
    """
    arguments: dict[str, object] = {} if max_bytes is None else {"x-max-length-bytes": max_bytes}
    streams = ask(target, _declare_super_stream(target, name, partitions, arguments))
    echo(json.dumps({"exchange": name, "streams": streams}) if as_json else f"declared {', '.join(streams)}")


async def _declare_super_stream(
    target: Target, name: str, partitions: int, arguments: dict[str, object]
) -> tuple[str, ...]:
    async with connect(target.uri, name="waybill topology") as connection:
        channel = await connection.channel()
        return await channel.declare_super_stream(name, partitions, arguments=arguments)


@command.command()
@click.argument("queues", nargs=-1, required=True)
@click.option("--queue-type", type=click.Choice(["classic", "quorum"]), help="Type of job queues.")
@partitions_option()
@event_partitions_option()
@click.option("--all", "everything", is_flag=True, help="Also show matching queues and exchanges.")
@broker_options
@json_option
def check(
    queues: tuple[str, ...],
    queue_type: QueueType | None,
    partitions: dict[str, int] | None,
    event_partitions: int | None,
    target: Target,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    """Compare the broker with what QUEUES need.

    Exits with 1 if something is missing or different. Changes nothing. AMQP cannot list bindings: `waybill topology
    declare` restores them.
    """
    target = target.changed(queue_type=queue_type, partitions=partitions, event_partitions=event_partitions)
    found = ask(target, _check(target, queues))
    wrong = [finding for finding in found if finding.is_wrong]
    if as_json:
        echo(json.dumps([{**asdict(finding), "standing": finding.standing.value} for finding in found]))
    else:
        _show_findings(found if everything else wrong, len(found) - len(wrong))
    if wrong:
        raise SystemExit(1)


@command.command()
@click.argument("queues", nargs=-1, required=True)
@click.option("--to-names", type=click.Choice(["spec", "web"]), help="The naming profile to move to.")
@click.option("--to-prefix", help="The prefix to move to.")
@click.option("--to-queue-type", type=click.Choice(["classic", "quorum"]), help="The queue type to move to.")
@partitions_option("--to-partitions")
@event_partitions_option("--to-event-partitions")
@click.option("--rate", type=RATE, help="At most this many messages per second.")
@click.option("--delete", is_flag=True, help="Remove old queues with other names once they are empty.")
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@broker_options
@json_option
def migrate(
    queues: tuple[str, ...],
    to_names: str | None,
    to_prefix: str | None,
    to_queue_type: QueueType | None,
    to_partitions: dict[str, int] | None,
    to_event_partitions: int | None,
    rate: float | None,
    target: Target,
    *,
    delete: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move all jobs of QUEUES to other names or queue types.

    Waiting, scheduled and dead jobs move, also to another prefix or number of partitions. --to-event-partitions adds
    partitions to the event stream. Existing events stay where they are.

    Pauses the queues first and leaves them paused: resume them when the workers run with the new topology. Each job is
    confirmed in its new queue before it leaves the old one. If the command is stopped, run it again. To change the
    queue type, name all queues of a prefix: they share the queues of scheduled jobs.
    """
    partitions = None if to_partitions is None else {**target.partitions, **to_partitions}
    goal = target.changed(
        names=to_names,
        prefix=to_prefix,
        queue_type=to_queue_type,
        partitions=partitions,
        event_partitions=to_event_partitions,
    )
    if goal == target:
        raise click.UsageError(
            "Choose what to change: --to-names, --to-prefix, --to-queue-type, --to-partitions or --to-event-partitions."
        )
    if goal.event_partitions < target.event_partitions:
        raise click.UsageError("The number of event partitions cannot be lowered: some events would not be read.")
    planned, moved = ask(target, _migrate(target, goal, queues, rate, delete=delete, dry_run=dry_run))
    if as_json:
        echo(json.dumps({"moved": moved, "dry_run": dry_run, "plan": [asdict(move) for move in planned]}))
        return
    table = Table("queue", "becomes", "messages", box=None)
    full = [move for move in planned if move.count]
    for move in full:
        table.add_row(move.source, "new queue of the same name" if move.in_place else move.target, str(move.count))
    Console().print(table)
    echo(f"and {len(planned) - len(full)} empty queues")
    echo("nothing was changed" if dry_run else f"moved {moved}; now `waybill queue resume {' '.join(queues)}`")


def _show_findings(found: list[Finding], correct_count: int) -> None:
    table = Table("", "kind", "name", "message of the broker", box=None)
    for finding in found:
        style = "red" if finding.standing is Standing.DIFFERENT else "yellow" if finding.is_wrong else ""
        table.add_row(finding.standing.value, finding.kind, finding.name, finding.detail, style=style)
    if found:
        Console().print(table)
    echo(f"{correct_count} correct")


async def _check(target: Target, queues: tuple[str, ...]) -> list[Finding]:
    async with connect(target.uri, name="waybill topology") as connection:
        return await check_topology(connection, target.topology(), queues)


async def _migrate(
    target: Target, goal: Target, queues: tuple[str, ...], rate: float | None, *, delete: bool, dry_run: bool
) -> tuple[list[Move], int]:
    async with Migration(target.uri, target.topology(), goal.topology()) as migration:
        planned = await migration.plan(queues)
        if dry_run or (not planned and goal.event_partitions == target.event_partitions):
            return planned, 0
        if planned:
            await _pause(target, queues)
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("messages", total=None)
            try:
                moved = await migration.run(
                    queues, rate=rate, delete=delete, on_progress=lambda done: bar.update(task, completed=done)
                )
            except MigrationBlocked as error:
                raise Failed(str(error), "stop the programs that consume it; `waybill doctor` lists them") from None
        return planned, moved


async def _pause(target: Target, queues: tuple[str, ...]) -> None:
    """Pause the queues, and wait until their workers have left them."""
    topology = target.topology()
    async with target.jobs() as jobs:
        for queue in queues:
            await jobs.pause(queue, by="waybill topology migrate")
    async with connect(target.uri, name="waybill topology") as connection:
        inspector = Inspector(connection)
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                for queue in queues:
                    while (found := await job_queue_counts(inspector, topology, queue)) and found.consumer_count:  # noqa: ASYNC110 - nothing signals that a consumer has gone
                        await asyncio.sleep(0.05)
        except TimeoutError:
            text = f"queue {queue} still has {found.consumer_count if found else 0} consumers although it is paused"
            raise Failed(text, "stop the programs that consume it: they ignore pauses") from None
