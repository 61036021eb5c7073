"""`waybill job`: push jobs from the command line."""

import json
import os
from datetime import timedelta

import click

from waybill.client import ClientError
from waybill.ojs import Envelope, InvalidJob, Jobs, Options, PushFailed, Retry
from waybill.transport.loop import run

DEFAULT_URI = "amqp://guest:guest@localhost:5672/%2Fojs"


@click.group()
def command() -> None:
    """Push and inspect jobs."""


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
@click.option("--uri", default=lambda: os.environ.get("WAYBILL_URI", DEFAULT_URI), help="The broker; or WAYBILL_URI.")
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
    uri: str,
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
        envelope = run(_push(uri, job_type, parse_args(args), options))
    except InvalidJob as error:
        raise click.UsageError(str(error)) from None
    except (PushFailed, ClientError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(envelope.encode().decode() if as_json else envelope.id)


def parse_args(text: str) -> list[object]:
    """Read the arguments of a job. Raises click.BadParameter for what is not a JSON array."""
    try:
        args = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"ARGS_JSON: {error}") from error
    if not isinstance(args, list):
        raise click.BadParameter("ARGS_JSON must be a JSON array")
    return args


async def _push(uri: str, job_type: str, args: list[object], options: Options) -> Envelope:
    async with Jobs(uri) as jobs:
        return await jobs.push(job_type, args, **options)
