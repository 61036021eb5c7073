"""Migrates the tables of a database to the schema of this version, with Alembic: see `migrations/versions`.

A database is migrated when it is opened, in one transaction. Processes that open it at the same time wait for each
other, by an advisory lock in PostgreSQL, by the lock on the file in SQLite.

    no tables                                make them
    tables of the form 15, without Alembic   the first migration stands for them: go on from there
    tables of an older form                  drop them: the state is made again from the first event
    a migration that is not known here       refuse: a newer Waybill has been here
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import sqlalchemy as sql
from sqlalchemy.engine import Connection, Engine

from waybill.ojs.coordinator.database.tables import METADATA, POSITIONS
from waybill.ojs.errors import DatabaseUnusable

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.runtime.migration import MigrationInfo

HEAD: Final = "0003"
"""The last migration. It is repeated here so that a database that has it opens without loading Alembic."""
VERSION_TABLE: Final = "waybill_migration"
FIRST: Final = "0001"
FIRST_VERSION: Final = 15
LOCK: Final = 0x57_61_79_62_69_6C_6C
"""The key of the PostgreSQL advisory lock that a migrating process holds."""

_PLACE: Final = Path(__file__).with_name("migrations")
_log = logging.getLogger("waybill.ojs.coordinator")


class SchemaMigration(NamedTuple):
    """One migration; a history begins with the oldest."""

    revision: str
    text: str
    is_applied: bool


def current(connection: Connection) -> str | None:
    """Return the last migration of a database; None if it has none of our tables, or tables from before migrations."""
    table = sql.table(VERSION_TABLE, sql.column("version_num", sql.String))
    if not sql.inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(sql.select(table.c.version_num)).scalar()
    return found


def migrate(engine: Engine) -> list[str]:
    """Run missing migrations, and return them. Raises DatabaseUnusable if a newer Waybill has migrated the database."""
    with engine.begin() as connection:
        if current(connection) == HEAD:
            return []
        if engine.dialect.name == "postgresql":
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK)))
        found = current(connection)
        if found == HEAD:
            # Another process has migrated it meanwhile.
            return []
        return _upgrade(connection, found)


def history(connection: Connection) -> list[SchemaMigration]:
    """Return all migrations that this Waybill knows."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see HEAD

    found = current(connection)
    scripts = list(ScriptDirectory.from_config(_config(connection, [])).walk_revisions())
    known = [script.revision for script in scripts]
    applied = set(known[known.index(found) :]) if found in known else set()
    return [SchemaMigration(one.revision, one.doc, one.revision in applied) for one in reversed(scripts)]


def _upgrade(connection: Connection, found: str | None) -> list[str]:
    from alembic import command  # noqa: PLC0415 - see HEAD
    from alembic.util import CommandError  # noqa: PLC0415 - see HEAD

    done: list[str] = []
    config = _config(connection, done)
    is_new = found is None
    if found is None and sql.inspect(connection).has_table(POSITIONS.name):
        version = connection.execute(sql.text("SELECT version FROM waybill_position")).scalar()
        if version in {None, FIRST_VERSION}:
            command.stamp(config, FIRST)
            is_new = False
        else:
            _log.warning(
                "the job state has schema version %s, which is too old: rebuilding it from the events", version
            )
            METADATA.drop_all(connection)
    if not is_new:
        _log.info("migrating the job state: with millions of jobs, this can take minutes")
    done.clear()
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise DatabaseUnusable(
            f"the state of jobs has migration {found}, which this Waybill does not know: a newer version has migrated"
            " it. Use that version, or another database, which is rebuilt from the event stream"
        ) from error
    if not is_new:
        _log.info("migrated the job state: %s", ", ".join(done))
    return done


def _config(connection: Connection, done: list[str]) -> Config:
    from alembic.config import Config  # noqa: PLC0415 - see HEAD

    def note(step: MigrationInfo, **_: object) -> None:
        done.extend(step.up_revision_ids)

    config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE, "on_version_apply": note})
    config.set_main_option("script_location", str(_PLACE).replace("%", "%%"))
    return config
