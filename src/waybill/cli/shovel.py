"""`waybill shovel`: the messages of one queue to another broker."""

from __future__ import annotations

import json

import click
from rich.progress import Progress

from waybill.cli.console import Console
from waybill.cli.target import json_option
from waybill.cli.two_brokers import broker_of, from_option, run_moving, to_option, users_option
from waybill.move import Destination, Shovel


@click.command()
@click.argument("queue")
@from_option
@to_option
@click.option("--to-queue", help="The queue to fill; it has to exist.  [default: QUEUE]")
@click.option("--to-exchange", help="Publish to this exchange instead.")
@click.option("--to-key", help="With --to-exchange: the routing key.  [default: that of each message]")
@click.option(
    "--queue-type", type=click.Choice(["classic", "quorum"]), default="classic", help="Of the shovel's queues."
)
@click.option("--follow", is_flag=True, help="Go on when the queue is empty, until SIGTERM or Ctrl-C.")
@click.option("--dry-run", is_flag=True, help="Only count what would be moved.")
@users_option
@json_option
def command(
    queue: str,
    source: str,
    goal: str,
    to_queue: str | None,
    to_exchange: str | None,
    to_key: str | None,
    queue_type: str,
    *,
    follow: bool,
    dry_run: bool,
    keep_users: bool,
    as_json: bool,
) -> None:
    """Move the messages of the AMQP queue QUEUE to another broker over AMQP 0-9-1, in order, each once.

    If the command is stopped or killed, run it again: it goes on where it was.
    """
    if to_exchange is not None and to_queue is not None:
        raise click.UsageError("--to-queue and --to-exchange exclude each other.")
    if to_key is not None and to_exchange is None:
        raise click.UsageError("--to-key needs --to-exchange.")
    old, new = broker_of(source), broker_of(goal)
    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as bar:
        task = bar.add_task("messages", total=None)
        shovel = Shovel(
            old.uri,
            queue,
            new.uri,
            Destination(to_queue or queue) if to_exchange is None else Destination(to_key, to_exchange),
            keeps_user=keep_users,
            queue_type=queue_type,
            on_progress=lambda moved: bar.update(task, completed=moved, description=f"{moved} messages"),
        )
        if dry_run:
            count = run_moving(old, shovel.stop, shovel.waiting())
        else:
            count = run_moving(new, shovel.stop, shovel.run(follows=follow))
    if as_json:
        click.echo(json.dumps({"queue": queue, "dry_run": dry_run, "waiting" if dry_run else "moved": count}))
    else:
        click.echo(f"{count} messages would be moved; nothing was changed" if dry_run else f"moved {count} messages")
