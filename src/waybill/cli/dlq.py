"""`waybill dlq`: list, retry and discard dead letters."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from difflib import get_close_matches

import click
from rich.progress import Progress
from rich.table import Column, Table

from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.failure import Failed, ask
from waybill.cli.ranges import RATE
from waybill.cli.target import ID_WIDTH, Target, broker_options, json_option
from waybill.client import Inspector, connect
from waybill.ojs import DeadJob, DeadLetters, Envelope
from waybill.ojs.spec.envelope import check_queue

queue_option = click.option("--queue", default="default", show_default=True, help="Queue of the dead letters.")
ids_argument = click.argument("ids", nargs=-1, metavar="[ID]...")
group_option = click.option("--group", help="All dead letters with this error fingerprint.")
all_option = click.option("--all", "everything", is_flag=True, help="All dead letters of the queue.")
rate_option = click.option("--rate", type=RATE, help="Maximum number per second.")
dry_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")


@click.group()
def command() -> None:
    """List, retry and discard dead letters."""


@command.command(name="list")
@queue_option
@click.option("--groups", is_flag=True, help="Show one line per error.")
@click.option("--limit", type=click.IntRange(1, 10**9), help="Maximum number, oldest first.")
@broker_options
@json_option
def list_jobs(queue: str, limit: int | None, target: Target, *, groups: bool, as_json: bool) -> None:
    """List dead letters, the oldest first."""
    found = ask(target, _all(target, queue, limit))
    if groups:
        _show_groups(found, as_json=as_json)
        return
    if as_json:
        echo(json.dumps([_summary(job) for job in found]))
        return
    table = Table(Column("id", no_wrap=True, min_width=ID_WIDTH), "group", "type", "error", box=None)
    for job in found:
        table.add_row(job.id, job.fingerprint, job.type, _error(job))
    Console().print(table)


@command.command()
@click.argument("job_id", metavar="ID")
@queue_option
@broker_options
@json_option
def show(job_id: str, queue: str, target: Target, *, as_json: bool) -> None:
    """Show one dead letter in full."""
    job = next((job for job in ask(target, _all(target, queue)) if job.id == job_id), None)
    if job is None:
        raise click.ClickException(f"there is no dead letter {job_id}")
    envelope = job.envelope
    whole = {
        **_summary(job),
        "envelope": job.body.decode(errors="replace") if envelope is None else envelope,
        "headers": job.headers,
    }
    echo(json.dumps(whole, default=str, indent=None if as_json else 2))


@command.command()
@ids_argument
@queue_option
@group_option
@all_option
@rate_option
@dry_option
@click.option(
    "--set", "changes", multiple=True, metavar="FIELD=JSON", help="Edit the envelope before the retry: args='[1]'."
)
@broker_options
@json_option
def retry(
    ids: tuple[str, ...],
    queue: str,
    group: str | None,
    rate: float | None,
    changes: tuple[str, ...],
    target: Target,
    *,
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Put dead letters back into their queue and reset their attempts.

    Each is confirmed there before it leaves the dead letter queue, so nothing is lost if the command is stopped.
    """
    chosen = _choose(target, queue, ids, group, everything=everything, dry_run=dry_run)
    edited = dict(_change(text) for text in changes)
    count = 0 if dry_run else ask(target, _settle(target, queue, chosen, rate, edited))
    _report("retried", chosen, count, dry_run=dry_run, as_json=as_json)
    _check_found(queue, ids, len(chosen) if dry_run else count)


@command.command()
@ids_argument
@queue_option
@group_option
@all_option
@rate_option
@dry_option
@broker_options
@json_option
def discard(
    ids: tuple[str, ...],
    queue: str,
    group: str | None,
    rate: float | None,
    target: Target,
    *,
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete dead letters for good."""
    chosen = _choose(target, queue, ids, group, everything=everything, dry_run=dry_run)
    count = 0 if dry_run else ask(target, _settle(target, queue, chosen, rate, None))
    _report("discarded", chosen, count, dry_run=dry_run, as_json=as_json)
    _check_found(queue, ids, len(chosen) if dry_run else count)


@command.command()
@queue_option
@click.confirmation_option(prompt="Drop all dead letters of the queue?")
@broker_options
@json_option
def purge(queue: str, target: Target, *, as_json: bool) -> None:
    """Delete all dead letters of a queue."""
    count = ask(target, _purge(target, queue))
    echo(json.dumps({"purged": count}) if as_json else f"purged {count}")


def _choose(
    target: Target, queue: str, ids: tuple[str, ...], group: str | None, *, everything: bool, dry_run: bool
) -> list[str]:
    if bool(ids) + (group is not None) + everything != 1:
        raise click.UsageError("Choose the dead letters: IDs, --group or --all.")
    if ids and not dry_run:
        return list(ids)
    found = ask(target, _all(target, queue))
    chosen = [job.id for job in found if (job.id in ids if ids else group in {None, job.fingerprint})]
    if group is not None and not chosen:
        raise Failed(f"queue {queue} has no group {group}", f"`waybill dlq list --queue {queue} --groups` lists them")
    return chosen


def _check_found(queue: str, ids: tuple[str, ...], count: int) -> None:
    """Raises Failed if some of the jobs that were named are no dead letters."""
    missing = len(set(ids)) - count
    if missing > 0:
        raise Failed(
            f"{missing} of {len(set(ids))} jobs are not among the dead letters of queue {queue}",
            f"`waybill dlq list --queue {queue}` lists them",
        )


def _change(text: str) -> tuple[str, object]:
    field, _, value = text.partition("=")
    if field not in Envelope.__struct_fields__:
        close = get_close_matches(field, Envelope.__struct_fields__, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise click.BadParameter(f"{text}: an envelope has no field {field!r}{meant}")
    try:
        return field, json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"{text}: the value must be JSON: {error}") from error


def _report(verb: str, chosen: list[str], count: int, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        echo(json.dumps({verb: count, "chosen": chosen, "dry_run": dry_run}))
    else:
        echo(f"would have {verb} {len(chosen)}" if dry_run else f"{verb} {count}")


def _show_groups(found: list[DeadJob], *, as_json: bool) -> None:
    members: dict[str, list[DeadJob]] = {}
    for job in found:
        members.setdefault(job.fingerprint, []).append(job)
    ordered = sorted(members.items(), key=lambda item: -len(item[1]))
    if as_json:
        rows = [
            {"group": key, "jobs": len(jobs), "type": jobs[0].type, "error": _error(jobs[0])} for key, jobs in ordered
        ]
        echo(json.dumps(rows))
        return
    table = Table("group", "jobs", "type", "error of the oldest", box=None)
    for key, jobs in ordered:
        table.add_row(key, str(len(jobs)), jobs[0].type, _error(jobs[0]))
    Console().print(table)


def _error(job: DeadJob) -> str:
    return f"{job.error_type}: {job.error}" if job.error_type else job.reason


def _summary(job: DeadJob) -> dict[str, object]:
    return {
        "id": job.id,
        "type": job.type,
        "state": "discarded",
        "attempt": job.attempt,
        "discarded_at": job.discarded_at,
        "died_at": job.died_at,
        "reason": job.reason,
        "error_type": job.error_type,
        "error": job.error,
        "group": job.fingerprint,
    }


@asynccontextmanager
async def _opened(target: Target, queue: str) -> AsyncIterator[DeadLetters]:
    """The dead letters of an existing queue: a mistyped name must not create one. Raises Failed."""
    check_queue(queue)
    async with connect(target.uri, name="waybill dlq") as connection:
        if await Inspector(connection).queue(target.topology().dead_letter_queue(queue)) is None:
            raise Failed(
                f"queue {queue} has no dead letter queue", f"check the name, or `waybill queue declare {queue}`"
            )
    async with DeadLetters(target.jobs(), queue) as dead:
        yield dead


async def _all(target: Target, queue: str, limit: int | None = None) -> list[DeadJob]:
    async with _opened(target, queue) as dead:
        return await dead.all(limit)


async def _purge(target: Target, queue: str) -> int:
    async with _opened(target, queue) as dead:
        return await dead.purge()


async def _settle(
    target: Target, queue: str, chosen: list[str], rate: float | None, changes: dict[str, object] | None
) -> int:
    """Retry with `changes`, or discard if they are None, and show the progress."""
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("dead letters", total=len(chosen))
        async with _opened(target, queue) as dead:
            if changes is None:
                return await dead.discard(chosen, rate=rate, on_progress=lambda done: bar.update(task, completed=done))
            return await dead.retry(
                chosen, rate=rate, changes=changes, on_progress=lambda done: bar.update(task, completed=done)
            )
