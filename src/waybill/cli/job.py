"""`waybill job`: push, inspect and cancel jobs from the command line."""

import asyncio
import json
from datetime import timedelta
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Column, Table

from waybill.cli.failure import ask
from waybill.cli.target import ID_WIDTH, Target, broker_options, json_option
from waybill.ojs import Envelope, InvalidJob, JobInfo, Options, Retry, State
from waybill.ojs.job_fold import has_ended

WATCH_SECONDS: Final = 0.5


@click.group()
def command() -> None:
    """Push, inspect and cancel jobs."""


@command.command()
@click.argument("job_type", metavar="TYPE")
@click.argument("args", metavar="ARGS_JSON", default="[]")
@click.option("--queue", default="default", show_default=True, help="Queue to push to.")
@click.option("--priority", default=0, show_default=True, help="From -100 to 100, higher first.")
@click.option("--delay", type=float, help="Seconds to wait before the job becomes available.")
@click.option("--scheduled-at", help="The same as a time: RFC 3339, or a duration like +PT1H.")
@click.option("--expires-at", help="Not to be started after this time: RFC 3339, or a duration like +PT1H.")
@click.option("--max-attempts", type=click.IntRange(min=0), help="Attempts in all.  [default: 3]")
@click.option("--unique-key", help="Key that marks jobs which are the same.")
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print the whole envelope as JSON.")
def push(
    job_type: str,
    args: str,
    queue: str,
    priority: int,
    delay: float | None,
    scheduled_at: str | None,
    expires_at: str | None,
    max_attempts: int | None,
    unique_key: str | None,
    target: Target,
    *,
    as_json: bool,
) -> None:
    """Enqueue one job, wait until the broker has it, and print its id.

    ARGS_JSON is a JSON array: `waybill job push email.send '["a@example.com"]' --queue email`.
    """
    options: Options = {"queue": queue, "priority": priority}
    if delay is not None:
        options["delay"] = timedelta(seconds=delay)
    if scheduled_at is not None:
        options["scheduled_at"] = scheduled_at
    if expires_at is not None:
        options["expires_at"] = expires_at
    if unique_key is not None:
        options["unique_key"] = unique_key
    try:
        if max_attempts is not None:
            options["retry"] = Retry(max_attempts=max_attempts)
        envelope = ask(target, _push(target, job_type, parse_args(args), options))
    except InvalidJob as error:
        raise click.UsageError(str(error)) from None
    click.echo(envelope.encode().decode() if as_json else envelope.id)


@command.command()
@click.argument("job_id", metavar="ID")
@click.option("--queue", default="default", show_default=True, help="The queue of the job.")
@broker_options
@json_option
def info(job_id: str, queue: str, target: Target, *, as_json: bool) -> None:
    """Ask the coordinator of a queue for a job; fails if it knows of none."""
    found = ask(target, _info(target, job_id, queue))
    if found is None:
        raise click.ClickException(f"nothing is known of job {job_id}")
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        for name, value in msgspec.to_builtins(found).items():
            click.echo(f"{name:<14} {value if isinstance(value, str | int) else json.dumps(value)}")


@command.command(name="list")
@click.option("--queue", default="default", show_default=True, help="Jobs of this queue.")
@click.option("--state", type=click.Choice([state.value for state in State]), help="Jobs in this state only.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@broker_options
@json_option
def list_jobs(queue: str, state: str | None, limit: int, target: Target, *, as_json: bool) -> None:
    """List the jobs of a queue, those first that were enqueued last."""
    found = ask(target, _newest(target, queue, state, limit))
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    table = Table(Column("id", no_wrap=True, min_width=ID_WIDTH), "state", "attempt", "type", box=None)
    for job in found:
        table.add_row(job.id, job.state, str(job.attempt), job.type)
    Console().print(table)


@command.command()
@click.argument("job_id", metavar="ID")
@click.option("--queue", default="default", show_default=True, help="The queue of the job.")
@broker_options
@json_option
def cancel(job_id: str, queue: str, target: Target, *, as_json: bool) -> None:
    """Ask for the cancellation of a job; a coordinator of its queue acts on it."""
    ask(target, _cancel(target, job_id, queue))
    click.echo(json.dumps({"job_id": job_id, "requested": True}) if as_json else "requested")


@command.command()
@click.argument("job_id", metavar="ID")
@click.option("--queue", default="default", show_default=True, help="The queue of the job.")
@broker_options
@json_option
def watch(job_id: str, queue: str, target: Target, *, as_json: bool) -> None:
    """Show each change of a job until it has ended; exits with 1 unless it is completed."""
    state = ask(target, _watch(target, job_id, queue, as_json=as_json))
    if state != State.COMPLETED.value:
        raise SystemExit(1)


async def _info(target: Target, job_id: str, queue: str) -> JobInfo | None:
    async with target.jobs() as jobs:
        return await jobs.info(job_id, queue)


async def _watch(target: Target, job_id: str, queue: str, *, as_json: bool) -> str:
    """Print what changes, and return the last state."""
    before: JobInfo | None = None
    async with target.jobs() as jobs:
        while before is None or not has_ended(before):
            job = await jobs.info(job_id, queue)
            if job is None:
                raise click.ClickException(f"nothing is known of job {job_id}")
            if job != before:
                text = msgspec.json.encode(job).decode() if as_json else f"{job.state} (attempt {job.attempt})"
                click.echo(text)
                before = job
            else:
                await asyncio.sleep(WATCH_SECONDS)
    return before.state


async def _newest(target: Target, queue: str, state: str | None, limit: int) -> list[JobInfo]:
    async with target.jobs() as jobs:
        return await jobs.newest(queue, state=state, limit=limit)


async def _cancel(target: Target, job_id: str, queue: str) -> None:
    async with target.jobs() as jobs:
        await jobs.cancel(job_id, queue)


def parse_args(text: str) -> list[object]:
    """Read the arguments of a job. Raises click.BadParameter for what is not a JSON array."""
    try:
        args = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"ARGS_JSON: {error}") from error
    if not isinstance(args, list):
        raise click.BadParameter("ARGS_JSON must be a JSON array")
    return args


async def _push(target: Target, job_type: str, args: list[object], options: Options) -> Envelope:
    async with target.jobs() as jobs:
        return await jobs.push(job_type, args, **options)
