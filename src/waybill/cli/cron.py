"""`waybill cron`: list and control cron jobs through a coordinator."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
import msgspec
from rich.table import Column, Table

from waybill.cli.console import Console, plain
from waybill.cli.echo import echo
from waybill.cli.failure import Failed, ask
from waybill.cli.target import Target, broker_options, json_option
from waybill.ojs import CronNotFound, Jobs
from waybill.ojs.cron.crons import Crons

T = TypeVar("T")


@click.group()
def command() -> None:
    """List, register, pause and run cron jobs. A coordinator must run."""


@command.command(name="list")
@click.option("--enabled/--paused", "enabled", default=None, help="Only active, or only paused cron jobs.")
@broker_options
@json_option
def list_jobs(enabled: bool | None, target: Target, *, as_json: bool) -> None:
    """List the cron jobs and when they fire next."""
    found = [one for one in _ask(target, lambda crons: crons.list()) if enabled in {None, one.enabled}]
    if as_json:
        echo(msgspec.json.encode(found))
        return
    table = Table(
        Column("name", no_wrap=True), "cron", "timezone", "status", Column("next run", no_wrap=True), box=None
    )
    for one in found:
        next_run = (one.next_run_at or "never").replace(".000Z", "Z")
        table.add_row(one.name, one.cron, one.timezone, one.status, next_run)
    Console().print(table)


@command.command()
@click.argument("name")
@broker_options
@json_option
def show(name: str, target: Target, *, as_json: bool) -> None:
    """Show a cron job, and its last firings."""
    found = _ask(target, lambda crons: crons.get(name))
    if as_json:
        echo(msgspec.json.encode(found))
        return
    fields = msgspec.to_builtins(found)
    for field in ("firings", "next_runs"):
        fields.pop(field, None)
    for field, value in fields.items():
        echo(plain(f"{field:<14} {value if isinstance(value, str) else json.dumps(value)}"))
    table = Table("due", "kind", "state", "job", "missed before", box=None)
    for firing in found.firings:
        state = firing.state if firing.reason is None else f"{firing.state}: {firing.reason}"
        table.add_row(firing.scheduled_at, firing.kind, state, firing.job_id or "", str(firing.missed or ""))
    if found.firings:
        Console().print(table)


@command.command(name="next")
@click.argument("name")
@click.option("--count", default=5, show_default=True, type=click.IntRange(1, 1000), help="Number of times to show.")
@broker_options
@json_option
def next_runs(name: str, count: int, target: Target, *, as_json: bool) -> None:
    """Show the next times when a cron job fires."""
    found = _ask(target, lambda crons: crons.get(name, next_runs=count))
    if as_json:
        echo(json.dumps(found.next_runs))
    else:
        echo("\n".join(found.next_runs) or f"never: it is {found.status}")


@command.command()
@click.argument("cron_jobs", metavar="NAME...", nargs=-1, required=True)
@click.option("--by", help="User to name in the event.")
@broker_options
@json_option
def pause(cron_jobs: tuple[str, ...], by: str | None, target: Target, *, as_json: bool) -> None:
    """Stop cron jobs from firing until they are resumed. Running jobs continue."""
    _change(target, cron_jobs, "paused", lambda crons, name: crons.pause(name, by=by), as_json=as_json)


@command.command()
@click.argument("cron_jobs", metavar="NAME...", nargs=-1, required=True)
@click.option("--by", help="User to name in the event.")
@broker_options
@json_option
def resume(cron_jobs: tuple[str, ...], by: str | None, target: Target, *, as_json: bool) -> None:
    """Let paused cron jobs fire again, from now on."""
    _change(target, cron_jobs, "resumed", lambda crons, name: crons.resume(name, by=by), as_json=as_json)


@command.command()
@click.argument("cron_jobs", metavar="NAME...", nargs=-1, required=True)
@click.option("--by", help="User to name in the event.")
@broker_options
@json_option
def remove(cron_jobs: tuple[str, ...], by: str | None, target: Target, *, as_json: bool) -> None:
    """Remove cron jobs. A program that declares one registers it again when a worker starts."""
    _change(target, cron_jobs, "removed", lambda crons, name: crons.remove(name, by=by), as_json=as_json)


@command.command()
@click.argument("name")
@broker_options
@json_option
def run(name: str, target: Target, *, as_json: bool) -> None:
    """Enqueue a job of a cron job now, and print its id."""
    job_id = _ask(target, lambda crons: crons.run(name))
    echo(json.dumps({"name": name, "job_id": job_id}) if as_json else job_id)


@command.command()
@click.argument("app", metavar="MODULE:JOBS")
@click.option("--prune", is_flag=True, help="Remove other cron jobs of this program's job types.")
@click.option("--uri", "--url", "uri", help="Broker URL.  [default: the program's]")
@json_option
def sync(app: str, uri: str | None, *, prune: bool, as_json: bool) -> None:
    """Register the cron jobs of a program, as its workers do."""
    from waybill.cli.jobs_object import load_jobs

    jobs = load_jobs(app)
    target = Target(uri or jobs.uri)
    if uri is not None:
        jobs.uri = uri
    outcomes = ask(target, _with(jobs, lambda crons: crons.sync(prune=prune)))
    if as_json:
        echo(json.dumps(outcomes))
        return
    for name, outcome in outcomes.items():
        echo(f"{outcome} {name}")
    for one in jobs.crons:
        if one.warning is not None:
            echo(f"warning: {one.name}: {one.warning}", err=True)
    if not outcomes:
        echo("no cron jobs declared", err=True)


def _change(
    target: Target,
    names: tuple[str, ...],
    done: str,
    change: Callable[[Crons, str], Awaitable[object]],
    *,
    as_json: bool,
) -> None:
    async def change_all(crons: Crons) -> None:
        for name in names:
            await change(crons, name)

    _ask(target, change_all)
    echo(json.dumps({done: list(names)}) if as_json else f"{done} {', '.join(names)}")


def _ask(target: Target, question: Callable[[Crons], Awaitable[T]]) -> T:
    return ask(target, _with(target.jobs(), question))


async def _with(jobs: Jobs, question: Callable[[Crons], Awaitable[T]]) -> T:
    async with jobs:
        try:
            return await question(jobs.crons)
        except CronNotFound as error:
            raise Failed(str(error), "`waybill cron list`, or `waybill cron sync MODULE:JOBS`") from None
