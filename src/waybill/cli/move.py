"""`waybill move`: move a whole job system to another broker while it runs."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.progress import Progress
from rich.table import Table

from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.partitions_option import event_partitions_option
from waybill.cli.target import Target, json_option
from waybill.cli.two_brokers import broker_of, from_option, run_moving, to_option, users_option
from waybill.move import JobsMove, Moved, PlannedQueue, System


@click.command()
@click.argument("queues", nargs=-1)
@from_option
@to_option
@click.option("--from-prefix", help="Prefix of all names at --from.")
@click.option("--from-names", type=click.Choice(["spec", "web"]), help="The naming profile at --from.")
@click.option("--to-prefix", help="Prefix of all names at --to.")
@click.option("--to-names", type=click.Choice(["spec", "web"]), help="The naming profile at --to.")
@click.option("--to-queue-type", type=click.Choice(["classic", "quorum"]), help="Type of job queues at --to.")
@event_partitions_option("--to-event-partitions")
@click.option("--follow", is_flag=True, help="Continue when all queues are empty, until SIGTERM or Ctrl-C.")
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@users_option
@json_option
def command(
    queues: tuple[str, ...],
    source: str,
    goal: str,
    from_prefix: str | None,
    from_names: str | None,
    to_prefix: str | None,
    to_names: str | None,
    to_queue_type: str | None,
    to_event_partitions: int | None,
    *,
    follow: bool,
    dry_run: bool,
    keep_users: bool,
    as_json: bool,
) -> None:
    """Move the jobs of QUEUES to another broker, with their history. Cron jobs and workflows continue there.

    Without QUEUES, moves all queues that the job events name. Producers and workers may use both brokers meanwhile.
    Jobs that wait, are scheduled or dead arrive exactly once. If the command is stopped or killed, run it again.
    """
    old = broker_of(source, prefix=from_prefix, names=from_names)
    more = {"queue_type": to_queue_type, "event_partitions": to_event_partitions}
    new = broker_of(goal, prefix=to_prefix, names=to_names, **more)
    systems = System(old.uri, old.topology()), System(new.uri, new.topology())
    if dry_run:
        move = JobsMove(*systems, queues)
        _show_plan(run_moving(old, move.stop, move.plan()), as_json=as_json)
        return
    moved = _moved(systems, queues, new, follow=follow, keep_users=keep_users, as_json=as_json)
    if as_json:
        echo(json.dumps(asdict(moved)))
    else:
        echo(f"moved {moved.jobs} jobs and {moved.events} messages of events")


def _moved(
    systems: tuple[System, System],
    queues: tuple[str, ...],
    new: Target,
    *,
    follow: bool,
    keep_users: bool,
    as_json: bool,
) -> Moved:
    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as bar:
        task = bar.add_task("connecting", total=None)

        def tell(moved: Moved) -> None:
            bar.update(task, description=f"{moved.stage}: {moved.jobs} jobs, {moved.events} messages of events")

        move = JobsMove(*systems, queues, keeps_user=keep_users, on_progress=tell)
        return run_moving(new, move.stop, move.run(follows=follow))


def _show_plan(planned: list[PlannedQueue], *, as_json: bool) -> None:
    if as_json:
        echo(json.dumps({"dry_run": True, "plan": [asdict(one) for one in planned]}))
        return
    table = Table("queue", "becomes", "what", "messages", box=None)
    full = [one for one in planned if one.message_count or one.kind == "stream"]
    for one in full:
        table.add_row(one.source, one.target, one.kind, str(one.message_count))
    Console().print(table)
    echo(f"and {len(planned) - len(full)} empty queues; nothing was changed")
