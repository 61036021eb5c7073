"""`waybill definitions`: export and import the definitions of a data directory that no broker uses."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from waybill import __version__
from waybill.broker.broker import DEFAULT_MEMORY_LIMIT_BYTES
from waybill.cli.echo import echo
from waybill.model.errors import DefinitionsLost, InvalidArgument, UnsupportedStoreVersion
from waybill.node.definitions import Document, ImportReport, export_definitions, import_definitions
from waybill.node.node import Node, NodeOptions, ServerEngine
from waybill.transport.clock import Clock
from waybill.transport.disk import DirectoryLock, DiskFilesystem

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    required=True,
    help="The data directory of a broker that is not running.",
)


@click.group()
def command() -> None:
    """Export and import users, permissions, policies, exchanges, queues and bindings, as RabbitMQ's JSON.

    The data directory must not be in use by a broker. `waybill broker --definitions FILE` imports at each start.
    """


@command.command("export")
@data_dir_option
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), default="-")
def export_command(data_dir: Path, file: Path) -> None:
    """Write the definitions to FILE (default: standard output). Only you can read it: it has password hashes."""
    with opened_node(data_dir) as node:
        try:
            document = export_definitions(node)
        except InvalidArgument as error:
            raise click.ClickException(str(error)) from None
    octets = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    if str(file) == "-":
        echo(octets, nl=False)
        return
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as target:
            target.write(octets)
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from None


@command.command("import")
@data_dir_option
@click.argument("file", type=click.Path(dir_okay=False, exists=True, allow_dash=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print imported and refused items as JSON.")
def import_command(data_dir: Path, file: Path, *, as_json: bool) -> None:
    """Import FILE (`-`: standard input). Existing definitions that FILE does not name are kept."""
    document = read_document(file)
    with opened_node(data_dir, makes_guest=not document.get("users")) as node:
        report = import_definitions(node, document)
    if as_json:
        echo(msgspec.json.encode(report))
    else:
        show_report(report)
    if report.errors:
        raise click.exceptions.Exit(1)


def read_document(file: Path) -> Document:
    """The definitions in a file. Raises click's errors."""
    try:
        octets = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from None
    try:
        return msgspec.json.decode(octets, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise click.ClickException(f"{file} does not contain definitions: {error}") from None


def show_report(report: ImportReport) -> None:
    """Print the result of an import."""
    taken = ", ".join(f"{count} {section}" for section, count in report.counts.items())
    echo(f"imported {taken or 'nothing'}", err=True)
    for note in report.notes:
        echo(f"note: {note}", err=True)
    for error in report.errors:
        echo(f"refused: {error}", err=True)


def _nobody(_engine: ServerEngine) -> None:
    """Do nothing: there are no connections."""


@contextmanager
def opened_node(data_dir: Path, *, makes_guest: bool = True) -> Iterator[Node]:
    """The node of a data directory, without a listener. Changes are durable afterwards."""
    try:
        lock = DirectoryLock(data_dir)
    except OSError as error:
        raise click.ClickException(str(error)) from None
    try:
        clock = Clock()
        options = NodeOptions("waybill", __version__, os.urandom, DEFAULT_MEMORY_LIMIT_BYTES)
        options.makes_guest = makes_guest
        node = Node.open(DiskFilesystem(data_dir), options, clock.now())
        yield node
        node.flush(clock.now(), _nobody)
        while (commit := node.begin_commit()) is not None:
            commit.execute()
            node.end_commit(commit)
        node.close()
    except (DefinitionsLost, UnsupportedStoreVersion) as error:
        raise click.ClickException(str(error)) from None
    finally:
        lock.release()
