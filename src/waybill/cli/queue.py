"""`waybill queue`: the queues behind an OJS queue."""

import json
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from waybill.cli.address import json_option, uri_option
from waybill.client import Channel, ClientError, NotFound, QueueDeclared, connect
from waybill.ojs import Declaration, InvalidJob, Topology, TopologyConflict
from waybill.ojs.envelope import check_queue
from waybill.ojs.retry import RETRY_BUCKETS_MS
from waybill.ojs.topology_declarer import TopologyDeclarer
from waybill.transport.loop import run

T = TypeVar("T")


@click.group()
def command() -> None:
    """Look at queues, declare and purge them."""


@command.command(name="list")
@click.argument("queues", nargs=-1, required=True)
@uri_option
@json_option
def list_queues(queues: tuple[str, ...], uri: str, *, as_json: bool) -> None:
    """Show how many jobs wait in QUEUES, for a retry too, and how many are dead. AMQP can ask by name only."""
    # A retry queue that was never needed is not there, which is nothing to warn of.
    logging.getLogger("waybill.client").setLevel(logging.ERROR)
    rows = _run(_counts(uri, queues))
    if as_json:
        click.echo(json.dumps(rows))
        return
    table = Table("queue", "ready", "waiting for retry", "dead", "consumers", box=None)
    for row in rows:
        table.add_row(*(str(row[name]) for name in ("queue", "ready", "retrying", "dead", "consumers")))
    Console().print(table)


@command.command()
@click.argument("queue")
@click.confirmation_option(prompt="Drop all jobs that wait in the queue?")
@uri_option
@json_option
def purge(queue: str, uri: str, *, as_json: bool) -> None:
    """Drop the jobs that wait in QUEUE; those that run, or wait for a retry or their time, stay."""
    count = _run(_purge(uri, queue))
    click.echo(json.dumps({"queue": queue, "purged": count}) if as_json else f"purged {count}")


@command.command()
@click.argument("queues", nargs=-1, required=True)
@click.option("--quorum", is_flag=True, help="Quorum queues, where the broker has them. They take no priorities.")
@uri_option
@json_option
def declare(queues: tuple[str, ...], uri: str, *, quorum: bool, as_json: bool) -> None:
    """Declare everything that QUEUES can ever need."""
    _run(_declare(uri, queues, Topology(queue_type="quorum" if quorum else "classic", declaration=Declaration.EAGER)))
    click.echo(json.dumps({"declared": list(queues)}) if as_json else f"declared {', '.join(queues)}")


def _run(question: Coroutine[Any, Any, T]) -> T:
    try:
        return run(question)
    except InvalidJob as error:
        raise click.UsageError(str(error)) from None
    except (ClientError, TopologyConflict) as error:
        raise click.ClickException(str(error)) from None


async def _counts(uri: str, queues: tuple[str, ...]) -> list[dict[str, object]]:
    topology = Topology()
    rows: list[dict[str, object]] = []
    async with connect(uri, name="waybill queue") as connection:
        channel = await connection.channel()
        for queue in queues:
            check_queue(queue)
            jobs = await _ask(channel, topology.job_queue(queue))
            if jobs is None:
                raise click.ClickException(f"there is no queue {queue}")
            waiting = [await _ask(channel, topology.retry_queue(queue, delay)) for delay in RETRY_BUCKETS_MS]
            dead = await _ask(channel, topology.dead_letter_queue(queue))
            rows.append(
                {
                    "queue": queue,
                    "ready": jobs.message_count,
                    "retrying": sum(one.message_count for one in waiting if one is not None),
                    "dead": 0 if dead is None else dead.message_count,
                    "consumers": jobs.consumer_count,
                }
            )
    return rows


async def _ask(channel: Channel, name: str) -> QueueDeclared | None:
    try:
        return await channel.declare_queue(name, passive=True)
    except NotFound:
        return None


async def _purge(uri: str, queue: str) -> int:
    check_queue(queue)
    async with connect(uri, name="waybill queue") as connection:
        return await (await connection.channel()).purge_queue(Topology().job_queue(queue))


async def _declare(uri: str, queues: tuple[str, ...], topology: Topology) -> None:
    for queue in queues:
        check_queue(queue)
    async with connect(uri, name="waybill queue") as connection:
        declarer = TopologyDeclarer(await connection.channel(), topology)
        for queue in queues:
            await declarer.ensure_queue(queue)
