"""`waybill state`: the database in which coordinators and servers keep the state of jobs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from waybill.cli.echo import echo
from waybill.cli.failure import Failed
from waybill.cli.ranges import DAYS
from waybill.cli.target import json_option
from waybill.cli.text_log import log_as_text
from waybill.ojs.errors import DatabaseUnusable

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

database_argument = click.argument("database", envvar="WAYBILL_DATABASE")


@click.group()
def command() -> None:
    """Migrate, examine and prune the database with the state of jobs.

    DATABASE is a SQLite file, or a URL like postgresql://user@host/name, as for `waybill coordinator --database`.
    """


@command.command("migrate")
@database_argument
@json_option
def migrate_command(database: str, *, as_json: bool) -> None:
    """Migrate DATABASE to the schema of this version.

    Coordinators and servers do so when they start. With millions of jobs, this can take minutes: run it first.
    """
    log_as_text("%(message)s")
    with _engine(database) as engine:
        from waybill.ojs.coordinator.database.schema import migrate

        done = migrate(engine)
    if as_json:
        echo(json.dumps({"migrations": done}))
    elif done:
        echo(f"migrated: {', '.join(done)}")
    else:
        echo("nothing to migrate")


@command.command("current")
@database_argument
@json_option
def current_command(database: str, *, as_json: bool) -> None:
    """Print the last migration of DATABASE, and the one it needs.

    Exit codes: 0 up to date, 1 migration needed.
    """
    from waybill.ojs.coordinator.database.schema import HEAD, current

    with _connection(database) as connection:
        found = current(connection)
    if as_json:
        echo(json.dumps({"migration": found, "needed": HEAD}))
    elif found == HEAD:
        echo(f"{found} (the newest)")
    else:
        echo(f"{found or 'none'} (this version needs {HEAD})")
    if found != HEAD:
        raise click.exceptions.Exit(1)


@command.command("history")
@database_argument
@json_option
def history_command(database: str, *, as_json: bool) -> None:
    """List all migrations, and which of them DATABASE has."""
    from waybill.ojs.coordinator.database.schema import history

    with _connection(database) as connection:
        found = history(connection)
    if as_json:
        echo(json.dumps([one._asdict() for one in found]))
    else:
        for one in found:
            echo(f"{one.revision}  {'done' if one.is_applied else 'to do'}  {one.text}")


@command.command("prune")
@database_argument
@click.option("--keep-days", type=DAYS, required=True, help="Delete jobs that ended more than this many days ago.")
@json_option
def prune_command(database: str, keep_days: int, *, as_json: bool) -> None:
    """Delete jobs of DATABASE that ended long ago, once. Coordinators and servers may be running.

    `--keep-days` of `waybill coordinator`, `serve` and `up` does so continuously.
    """
    from waybill.ojs.coordinator.open_store import open_job_store

    if not as_json:
        log_as_text("%(message)s")
    _existing(database)
    total = 0
    with _explained(), open_job_store(database, keep_days) as store:
        is_more = True
        while is_more:
            jobs, is_more = store.forget_old(datetime.now(UTC))
            total += jobs
    echo(json.dumps({"jobs": total}) if as_json else f"deleted {total} jobs")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn database errors into one line."""
    try:
        yield
    except DatabaseUnusable as error:
        raise click.ClickException(str(error)) from None
    except Exception as error:
        from sqlalchemy.exc import SQLAlchemyError

        from waybill.ojs.coordinator.store_thread import first_line

        if not isinstance(error, SQLAlchemyError):
            raise
        cause = first_line(error.__cause__ or error)
        raise Failed(
            f"the database cannot be used: {cause}", "check the database URL, and that the server runs"
        ) from None


def _existing(database: str) -> None:
    """Refuse a missing file, which SQLite would create."""
    from pathlib import Path

    if "://" not in database and not Path(database).is_file():
        raise click.UsageError(f"there is no file {database}")


@contextlib.contextmanager
def _engine(database: str) -> Iterator[Engine]:
    from waybill.ojs.coordinator.database.engine import open_engine

    with _explained():
        _existing(database)
        engine = open_engine(database)
        try:
            yield engine
        finally:
            engine.dispose()


@contextlib.contextmanager
def _connection(database: str) -> Iterator[Connection]:
    with _engine(database) as engine, engine.connect() as connection:
        yield connection
