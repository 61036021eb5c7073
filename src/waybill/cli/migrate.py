"""`waybill migrate`: generate handlers from the tasks of another job system."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from waybill.cli.echo import echo
from waybill.ojs.celery.migration import find_app, write_handlers


@click.group()
def command() -> None:
    """Generate handlers from the tasks of another job system."""


@command.command()
@click.argument("target", metavar="MODULE[:APP]")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to create.  [default: standard output]"
)
@click.option("--uri", help="Broker URL to write into the program.  [default: resolved when it runs]")
def celery(target: str, output: Path | None, uri: str | None) -> None:
    """Write a module with handlers and cron jobs for a Celery app.

    It reads the tasks and the beat schedule of the app. Each handler calls the function of its task. Features without a
    counterpart become TODO comments.
    """
    sys.path.insert(0, str(Path.cwd()))
    try:
        source = write_handlers(find_app(target), target, uri)
    except Exception as error:
        # A user's program may raise anything.
        raise click.BadParameter(f"{target}: {type(error).__name__}: {error}") from error
    if output is None:
        echo(source, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(source)
    except FileExistsError:
        raise click.ClickException(f"{output} already exists") from None
    echo(f"wrote {output}: {source.count('@jobs.handler(')} handlers, {source.count('@jobs.cron(')} cron jobs")
