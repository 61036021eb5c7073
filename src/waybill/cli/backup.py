"""`waybill backup`: copy a data directory, while its broker runs or not."""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from waybill.broker.control import socket_path
from waybill.cli.copying import Copied, copy_files, make_empty
from waybill.cli.echo import echo
from waybill.cli.settings_options import Source, loaded
from waybill.cli.target import json_option
from waybill.transport.disk import DataDirectoryInUse, DirectoryLock

STATE_FILE: Final = "jobs.db"
ANSWER_SECONDS: Final = 60.0


@click.command()
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="The data directory.  [WAYBILL_DATA_DIR; default: that of the configuration]",
)
@click.option(
    "--config", type=click.Path(dir_okay=False, exists=True, path_type=Path), help="A TOML file with settings."
)
@json_option
def command(target: Path, data_dir: Path | None, config: Path | None, *, as_json: bool) -> None:
    """Copy everything that a broker stores to TARGET, an empty or new directory.

    The broker may be running: the copy is consistent and contains everything confirmed before it began. Run this as the
    user that runs the broker. The state of jobs that `waybill up` keeps in jobs.db is copied too.
    """
    options = {} if data_dir is None else {"data_dir": (data_dir, "--data-dir")}
    directory = loaded(Source(config, options, {})).data_dir
    if directory is None or not directory.is_dir():
        raise click.UsageError(f"there is no data directory {directory}: see --data-dir")
    if target.absolute().is_relative_to(directory.absolute()):
        raise click.UsageError("TARGET must not be inside the data directory")
    try:
        make_empty(target)
        # Copy the state of jobs before the events that it is computed from: a restored state can catch up, not go back.
        has_state = _copy_state(directory / STATE_FILE, target / STATE_FILE)
        with frozen_files(directory) as source:
            copied = copy_files(source, target)
    except OSError as error:
        raise click.ClickException(f"the backup is not complete: {error}") from None
    except sqlite3.Error as error:
        raise click.ClickException(f"the backup is not complete: {directory / STATE_FILE}: {error}") from None
    _show(target, copied, has_state=has_state, as_json=as_json)


def _show(target: Path, copied: Copied, *, has_state: bool, as_json: bool) -> None:
    if as_json:
        echo(json.dumps({"directory": str(target), "files": copied.files, "bytes": copied.octets}))
        return
    more = f", and {STATE_FILE}" if has_state else ""
    echo(f"{copied.files} files, {copied.octets:,} bytes{more} copied to {target}")


@contextlib.contextmanager
def frozen_files(directory: Path) -> Iterator[Path]:
    """Yield a directory whose files do not change: hard links that the broker makes, or `directory` if none runs."""
    try:
        lock = DirectoryLock(directory)
    except DataDirectoryInUse:
        with _held_by_broker(directory) as held:
            yield held
        return
    try:
        yield directory
    finally:
        lock.release()


@contextlib.contextmanager
def _held_by_broker(directory: Path) -> Iterator[Path]:
    """Yield a directory that the running broker makes. The broker deletes it when the connection ends."""
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(ANSWER_SECONDS)
        try:
            with socket_path(directory) as path:
                control.connect(path)
            control.sendall(b'{"do": "hold"}\n')
            answer = json.loads(control.makefile("rb").readline() or b"{}")
        except (OSError, ValueError) as error:
            raise click.ClickException(f"the process that uses {directory} cannot make a backup: {error}") from None
        if "directory" not in answer:
            raise click.ClickException(f"the broker cannot make a backup: {answer.get('error', 'it has stopped')}")
        yield Path(answer["directory"])


def _copy_state(source: Path, target: Path) -> bool:
    """Copy a SQLite database that may be in use. Returns False if there is none."""
    if not source.is_file():
        return False
    with (
        contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as database,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        database.backup(copy)
    return True
