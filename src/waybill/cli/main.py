"""The command `waybill`: one module of this package for each verb, loaded on demand."""

from difflib import get_close_matches
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

import click

from waybill import __version__
from waybill.cli.echo import echo
from waybill.cli.garbage_collection import no_collection
from waybill.cli.guarded_group import GuardedGroup

# The verbs in the order of `waybill --help`, with their help lines: help must not import the verbs.
VERBS: Final = {
    "up": "Run everything in one process, with the dashboard.",
    "broker": "Run a broker.",
    "config": "Show and check settings.",
    "context": "Remember brokers by name.",
    "store": "Check or repair a data directory.",
    "state": "Migrate, examine and prune the database of jobs.",
    "backup": "Copy a data directory, while its broker runs or not.",
    "restore": "Make a data directory from a backup.",
    "definitions": "Export or import users, policies, queues and more.",
    "worker": "Run the handlers of a program.",
    "coordinator": "Answer requests about jobs, fire cron jobs, advance workflows.",
    "serve": "Serve jobs over HTTP.",
    "federation": "Route jobs to several servers.",
    "key": "Add API keys to a file.",
    "job": "Push, inspect and cancel jobs.",
    "workflow": "List, show, cancel and retry workflows.",
    "cron": "List, register, pause and run cron jobs.",
    "queue": "List, declare, pause and purge queues.",
    "top": "Watch queues, workers and running jobs.",
    "bench": "Measure the throughput of jobs through a broker.",
    "doctor": "Find unsafe settings of a broker.",
    "topology": "Declare, check and migrate queues and exchanges.",
    "dlq": "List, retry and discard dead letters.",
    "shovel": "Move the messages of a queue to another broker.",
    "move": "Move a whole system of jobs to another broker.",
    "bridge": "Run Celery's messages as jobs.",
    "migrate": "Generate handlers from Celery's tasks.",
    "pipeline": "Turn job events into tables and a report.",
}


def build_kind() -> str:
    """`compiled` if the core runs as extension modules, else `interpreted`."""
    origin = import_module("waybill.model.message").__file__ or ""
    return "compiled" if origin.endswith(tuple(EXTENSION_SUFFIXES)) else "interpreted"


class LazyVerbs(GuardedGroup):
    """A group whose commands live in modules of this package, each called `command` there."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        with no_collection():
            command = import_module(f"waybill.cli.{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"waybill.cli.{cmd_name}.command is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a verb. For one that does not exist, suggest another: click does so for verbs that are loaded."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = get_close_matches(args[0], VERBS, 1)
            raise click.UsageError(error.message + (f" Did you mean {close[0]!r}?" if close else ""), ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    """Print the version, and how the core was built."""
    if wanted and not ctx.resilient_parsing:
        echo(f"waybill {__version__} ({build_kind()})")
        ctx.exit()


@click.group(cls=LazyVerbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """An AMQP broker, Open Job Spec jobs, and a Spark pipeline over their events."""
