"""`waybill job`: push, inspect and cancel jobs from the command line."""

import asyncio
import json
import time
from datetime import timedelta
from typing import BinaryIO, Final

import click
import msgspec
from rich.progress import Progress
from rich.table import Column, Table

from waybill.cli.console import Console, plain
from waybill.cli.echo import echo
from waybill.cli.failure import ask
from waybill.cli.garbage_collection import collect_rarely
from waybill.cli.ranges import Number
from waybill.cli.target import ID_WIDTH, Target, broker_options, create_option, json_option
from waybill.ojs import BatchFailed, Envelope, InvalidJob, JobInfo, NewJob, Options, Retry, State
from waybill.ojs.coordinator.job_fold import has_ended
from waybill.ojs.spec.envelope import MAX_DELAY_SECONDS

WATCH_SECONDS: Final = 0.5
BATCH: Final = 2000
ARGS_EXAMPLE: Final = "For example: '[\"a@example.com\"]', with the quotes of the shell"
DELAY: Final = Number(min=0, max=MAX_DELAY_SECONDS)
queue_option = click.option("--queue", help="Queue of the job, to ask its coordinator.  [default: any coordinator]")


@click.group()
def command() -> None:
    """Push, inspect and cancel jobs."""


@command.command()
@click.argument("job_type", metavar="TYPE")
@click.argument("args", metavar="ARGS_JSON", default="[]")
@click.option(
    "--app", metavar="MODULE[:NAME]", help="Program with the handler: use its options and check argument types."
)
@click.option("--queue", help="Queue to push to.  [default: the handler's with --app, or `default`]")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher goes first.  [default: the handler's, or 0]")
@click.option("--delay", type=DELAY, help="Delay in seconds before the job becomes available.")
@click.option("--scheduled-at", help="When the job becomes available: RFC 3339, or a duration like +PT1H.")
@click.option("--expires-at", help="Do not start the job after this time: RFC 3339, or a duration like +PT1H.")
@click.option("--max-attempts", type=click.IntRange(0, 2**31 - 1), help="Attempts in total.  [default: 3]")
@click.option("--unique-key", help="Key that identifies duplicates.")
@create_option
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print the whole envelope as JSON.")
def push(
    job_type: str,
    args: str,
    app: str | None,
    queue: str | None,
    priority: int | None,
    delay: float | None,
    scheduled_at: str | None,
    expires_at: str | None,
    max_attempts: int | None,
    unique_key: str | None,
    target: Target,
    *,
    create: bool,
    as_json: bool,
) -> None:
    """Enqueue one job, and print its id once the broker has it.

    ARGS_JSON is a JSON array: `waybill job push email.send '["a@example.com"]' --queue email`.
    """
    options: Options = {}
    if queue is not None:
        options["queue"] = queue
    if priority is not None:
        options["priority"] = priority
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
        envelope = ask(target, _push(target, app, NewJob(job_type, parse_args(args), options), create=create))
    except InvalidJob as error:
        raise click.UsageError(str(error)) from None
    echo(envelope.encode().decode() if as_json else envelope.id)


@command.command(name="push-many")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--type", "job_type", help="Job type for lines that do not name one.")
@click.option("--queue", default="default", show_default=True, help="Queue for lines that do not name one.")
@click.option(
    "--count",
    type=click.IntRange(1, 100_000_000),
    help="Instead of reading FILE, push this many jobs of --type with --args.",
)
@click.option("--args", "args", metavar="ARGS_JSON", default="[]", help="With --count: arguments of each job.")
@create_option
@broker_options
@json_option
def push_many(
    file: BinaryIO,
    job_type: str | None,
    queue: str,
    count: int | None,
    args: str,
    target: Target,
    *,
    create: bool,
    as_json: bool,
) -> None:
    """Enqueue many jobs, pipelined, with a progress bar.

    FILE (default: standard input) has one job per line: a JSON array of arguments, or an object with `type`, `args` and
    `queue`, `priority`, `id`, `meta` or `tags`. All lines are read and checked before the first is pushed.
    """
    collect_rarely()
    if count is not None:
        if job_type is None:
            raise click.UsageError("--count needs --type.")
        options: Options = {"queue": queue}
        # One object for all of them: common parts are encoded once.
        made = [NewJob(job_type, parse_args(args), options) for _ in range(count)]
    else:
        made = [_read_line(number, line, job_type, queue) for number, line in enumerate(file, 1) if line.strip()]
    started = time.monotonic()
    pushed, failures = ask(target, _push_many(target, made, create=create))
    seconds = time.monotonic() - started
    if as_json:
        document = {"pushed": pushed, "failed": len(failures), "seconds": round(seconds, 3), "failures": failures[:100]}
        echo(json.dumps(document))
    else:
        echo(f"pushed {pushed} jobs in {seconds:.1f} s")
        for failure in failures[:10]:
            echo(f"failed: {failure}", err=True)
    if failures:
        raise SystemExit(1)


@command.command()
@click.argument("job_id", metavar="ID")
@queue_option
@broker_options
@json_option
def info(job_id: str, queue: str | None, target: Target, *, as_json: bool) -> None:
    """Show a job. Asks a coordinator, and fails if it does not know the job."""
    found = ask(target, _info(target, job_id, queue))
    if found is None:
        raise click.ClickException(f"job {job_id} is unknown")
    if as_json:
        echo(msgspec.json.encode(found))
    else:
        for name, value in msgspec.to_builtins(found).items():
            echo(plain(f"{name:<14} {value if isinstance(value, str | int) else json.dumps(value)}"))


@command.command(name="list")
@click.option("--queue", help="Jobs of this queue only.")
@click.option("--state", type=click.Choice([state.value for state in State]), help="Jobs in this state only.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number.")
@broker_options
@json_option
def list_jobs(queue: str | None, state: str | None, limit: int, target: Target, *, as_json: bool) -> None:
    """List jobs, newest first."""
    found = ask(target, _newest(target, queue, state, limit))
    if as_json:
        echo(msgspec.json.encode(found))
        return
    table = Table(Column("id", no_wrap=True, min_width=ID_WIDTH), "state", "attempt", "type", box=None)
    if queue is None:
        table.add_column("queue")
    for job in found:
        table.add_row(job.id, job.state, str(job.attempt), job.type, *([] if queue is not None else [job.queue]))
    Console().print(table)


@command.command()
@click.argument("job_id", metavar="ID")
@queue_option
@broker_options
@json_option
def cancel(job_id: str, queue: str | None, target: Target, *, as_json: bool) -> None:
    """Cancel a job. A coordinator must run."""
    ask(target, _cancel(target, job_id, queue))
    echo(json.dumps({"job_id": job_id, "requested": True}) if as_json else "requested")


@command.command()
@click.argument("job_id", metavar="ID")
@queue_option
@broker_options
@json_option
def watch(job_id: str, queue: str | None, target: Target, *, as_json: bool) -> None:
    """Print each change of a job until it ends. Exits with 1 unless the job completes."""
    state = ask(target, _watch(target, job_id, queue, as_json=as_json))
    if state != State.COMPLETED.value:
        raise SystemExit(1)


async def _info(target: Target, job_id: str, queue: str | None) -> JobInfo | None:
    async with target.jobs() as jobs:
        return await jobs.info(job_id, queue)


async def _watch(target: Target, job_id: str, queue: str | None, *, as_json: bool) -> str:
    """Print each change, and return the last state."""
    before: JobInfo | None = None
    async with target.jobs() as jobs:
        while before is None or not has_ended(before):
            job = await jobs.info(job_id, queue)
            if job is None:
                raise click.ClickException(f"job {job_id} is unknown")
            # `certain` says whether a waiting job is surely in its queue. It may change without a change of the job.
            seen = msgspec.structs.replace(job, certain=True)
            if seen != before:
                text = msgspec.json.encode(job).decode() if as_json else f"{job.state} (attempt {job.attempt})"
                echo(text)
                before = seen
            else:
                await asyncio.sleep(WATCH_SECONDS)
    return before.state


async def _newest(target: Target, queue: str | None, state: str | None, limit: int) -> list[JobInfo]:
    async with target.jobs() as jobs:
        return await jobs.newest(queue, state=state, limit=limit)


async def _cancel(target: Target, job_id: str, queue: str | None) -> None:
    async with target.jobs() as jobs:
        await jobs.cancel(job_id, queue)


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A job in a file."""

    args: list[object] = []
    type: str | None = None
    queue: str | None = None
    id: str | None = None
    priority: int = 0
    meta: dict[str, object] = {}
    tags: list[str] = []


def _read_line(number: int, line: bytes, job_type: str | None, queue: str) -> NewJob:
    """Parse a line of a file. Raises click.UsageError, which names the line."""
    try:
        if line.lstrip().startswith(b"["):
            job = _Line(msgspec.json.decode(line, type=list[object]))
        else:
            job = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as error:
        raise click.UsageError(f"line {number}: {error}") from None
    kind = job.type or job_type
    if kind is None:
        raise click.UsageError(f"line {number} has no type: add one, or use --type")
    options: Options = {"queue": job.queue or queue, "priority": job.priority, "meta": job.meta, "tags": job.tags}
    if job.id is not None:
        options["id"] = job.id
    return NewJob(kind, job.args, options)


async def _push_many(target: Target, made: list[NewJob], *, create: bool) -> tuple[int, list[str]]:
    """Push in batches, and show the progress. Returns how many were pushed, and why others were not."""
    pushed = 0
    failures: list[str] = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("pushing", total=len(made))
        async with target.jobs(create_queues=create) as jobs:
            for first in range(0, len(made), BATCH):
                batch = made[first : first + BATCH]
                try:
                    pushed += len(await jobs.push_many(batch))
                except BatchFailed as error:
                    pushed += len(error.pushed)
                    failures += [str(failure) for failure in error.failures]
                except InvalidJob as error:
                    raise click.UsageError(f"{error}; the {pushed} jobs before it were pushed") from None
                bar.advance(task, len(batch))
    return pushed, failures


def parse_args(text: str) -> list[object]:
    """Parse the arguments of a job. Raises click.BadParameter for anything but a JSON array."""
    try:
        args = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"ARGS_JSON: {error}. {ARGS_EXAMPLE}") from error
    if not isinstance(args, list):
        raise click.BadParameter(f"ARGS_JSON must be a JSON array. {ARGS_EXAMPLE}")
    return args


async def _push(target: Target, app: str | None, job: NewJob, *, create: bool) -> Envelope:
    jobs = target.jobs(create_queues=create)
    if app is not None:
        from waybill.cli.jobs_object import load_jobs

        jobs.handlers |= load_jobs(app).handlers
        if job.type not in jobs.handlers:
            raise click.UsageError(f"{app} has no handler for {job.type}")
        jobs.handlers[job.type].arguments.check(job.args)
    async with jobs:
        return (await jobs.push(job.type, job.args, **job.options)).envelope
