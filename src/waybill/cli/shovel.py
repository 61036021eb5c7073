"""`waybill shovel`: move the messages of one queue to another broker."""

from __future__ import annotations

import json
from collections.abc import Callable

import click
from rich.progress import Progress

from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.failure import Failed
from waybill.cli.target import json_option
from waybill.cli.two_brokers import broker_of, from_option, run_moving, to_option, users_option
from waybill.move import Bridge, Destination, From, Shovel, To
from waybill.move.bridge import ProtocolName


@click.command()
@click.argument("queue")
@from_option
@to_option
@click.option("--to-queue", help="Target queue, which must exist.  [default: QUEUE]")
@click.option("--to-exchange", help="Publish to this exchange instead.")
@click.option("--to-key", help="With --to-exchange: the routing key.  [default: the routing key of each message]")
@click.option(
    "--from-protocol",
    type=click.Choice(["0-9-1", "1.0"]),
    default="0-9-1",
    help="With 1.0, QUEUE is an address, such as /queues/invoices.",
)
@click.option(
    "--to-protocol",
    type=click.Choice(["0-9-1", "1.0"]),
    default="0-9-1",
    help="With 1.0, --to-queue is an address.",
)
@click.option(
    "--queue-type", type=click.Choice(["classic", "quorum"]), default="classic", help="Type of the shovel's own queues."
)
@click.option("--follow", is_flag=True, help="Continue when the queue is empty, until SIGTERM or Ctrl-C.")
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
    from_protocol: ProtocolName,
    to_protocol: ProtocolName,
    queue_type: str,
    *,
    follow: bool,
    dry_run: bool,
    keep_users: bool,
    as_json: bool,
) -> None:
    """Move the messages of the AMQP queue QUEUE to another broker, in order, each once.

    Over AMQP 1.0, a message may arrive twice if the command is killed or a connection is lost. If the command is
    stopped or killed, run it again: it continues.
    """
    if to_exchange is not None and to_queue is not None:
        raise click.UsageError("--to-queue and --to-exchange cannot be used together.")
    if to_key is not None and to_exchange is None:
        raise click.UsageError("--to-key needs --to-exchange.")
    to = Destination(to_queue or queue) if to_exchange is None else Destination(to_key, to_exchange)
    old, new = broker_of(source), broker_of(goal)
    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as bar:
        task = bar.add_task("messages", total=None)

        def tell(moved: int) -> None:
            bar.update(task, completed=moved, description=f"{moved} messages")

        if "1.0" in {from_protocol, to_protocol}:
            if dry_run:
                raise click.UsageError("--dry-run counts over AMQP 0-9-1 only.")
            ends = From(old.uri, queue, from_protocol), To(new.uri, to, to_protocol)
            bridge = _bridge(ends, keep_users=keep_users, tell=tell)
            count = run_moving(new, bridge.stop, bridge.run(follows=follow))
        else:
            shovel = Shovel(old.uri, queue, new.uri, to, keeps_user=keep_users, queue_type=queue_type, on_progress=tell)
            work = shovel.waiting() if dry_run else shovel.run(follows=follow)
            count = run_moving(old if dry_run else new, shovel.stop, work)
    if as_json:
        echo(json.dumps({"queue": queue, "dry_run": dry_run, "waiting" if dry_run else "moved": count}))
    else:
        echo(f"{count} messages would be moved; nothing was changed" if dry_run else f"moved {count} messages")


def _bridge(ends: tuple[From, To], *, keep_users: bool, tell: Callable[[int], None]) -> Bridge:
    try:
        return Bridge(*ends, keeps_user=keep_users, on_progress=tell)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except ImportError:
        raise Failed(
            "AMQP 1.0 needs Qpid Proton", "pip install 'waybill-amqp[amqp10]'; it needs a C compiler"
        ) from None
