"""Restarts a command whenever a Python file below the current directory changes, for development."""

import shlex
import sys
from typing import Final

import click

from waybill.cli.echo import echo

DEBOUNCE_MS: Final = 400
"""How long to wait for more changes after the first one: editors write several files."""


def run_again_on_changes(arguments: list[str], stop_seconds: float) -> None:
    """Run `waybill` with these arguments until Ctrl-C or SIGTERM, and again after each change.

    The command is stopped with SIGINT, so that a worker finishes its jobs. Raises click.ClickException without the
    package watchfiles.
    """
    try:
        from watchfiles import PythonFilter, run_process
    except ImportError as error:
        raise click.ClickException("--reload needs watchfiles: pip install 'waybill-amqp[reload]'") from error
    command = shlex.join([sys.executable, "-m", "waybill", *arguments])
    run_process(
        ".",
        target=command,
        target_type="command",
        watch_filter=PythonFilter(),
        callback=lambda changes: echo(f"{len(changes)} files changed, restarting", err=True),
        debounce=DEBOUNCE_MS,
        sigint_timeout=max(1, round(stop_seconds)),
        sigkill_timeout=1,
    )
