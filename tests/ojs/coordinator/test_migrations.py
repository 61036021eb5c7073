"""Databases of older Waybills are migrated when they are opened, and keep what they know; newer ones are left alone."""

import sqlite3
import threading
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from click.testing import CliRunner

from tests.ojs.coordinator.form_15.messages import IDS, messages
from tests.ojs.coordinator.test_job_store import event
from waybill.cli.main import main
from waybill.ojs.coordinator.database import schema
from waybill.ojs.coordinator.database.engine import open_engine
from waybill.ojs.coordinator.database.tables import METADATA
from waybill.ojs.coordinator.job_store import JobFilter, JobStore
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.coordinator.stream_identity import StreamMark
from waybill.ojs.errors import DatabaseUnusable

OLD = Path(__file__).parent / "form_15"
ALL = [*IDS, "zz-of-another-program"]


def restore(database: str) -> None:
    """Make the database that an older Waybill has left."""
    if "://" in database:
        with psycopg.connect(database.replace("+psycopg", "")) as connection:
            connection.execute((OLD / "postgresql.sql").read_bytes())
    else:
        with sqlite3.connect(database) as file:
            file.executescript((OLD / "sqlite.sql").read_text(encoding="utf-8"))


def answers(store: JobStore) -> list[object]:
    return [
        [store.detail(job_id) for job_id in ALL],
        store.counts(),
        store.held(),
        store.running(10),
        store.newest("mail", None, 20),
        store.page(JobFilter(), "", 20)[0],
        store.failures(10),
        store.search(JobFilter(text="VALUE"), "", 20, 100),
    ]


def test_a_database_from_before_migrations_keeps_what_it_knows(database: str) -> None:
    restore(database)
    memory = MemoryJobStore()
    memory.apply(messages())
    with open_job_store(database) as store:
        assert store.begin() == (len(messages()), StreamMark(3, 42))
        assert answers(store) == answers(memory)
        for offset, one in enumerate(
            (event("job.started", IDS[7], 30, attempt=1), event("job.completed", ALL[-1], 31, attempt=1)), 100
        ):
            store.apply([(offset, [one])])
            memory.apply([(offset, [one])])
        assert answers(store) == answers(memory)
    with open_job_store(database) as store:
        assert answers(store) == answers(memory)


def test_one_of_an_older_form_is_made_anew(database: str) -> None:
    restore(database)
    engine = open_engine(database)
    with engine.begin() as connection:
        connection.execute(sql.text("UPDATE waybill_position SET version = 14"))
    engine.dispose()
    with open_job_store(database) as store:
        assert (store.next_offset, store.counts(), store.get(IDS[0])) == (0, {}, None)


def test_one_of_a_newer_waybill_is_left_alone(database: str) -> None:
    with open_job_store(database) as store:
        store.apply(messages())
    engine = open_engine(database)
    with engine.begin() as connection:
        connection.execute(sql.text("UPDATE waybill_migration SET version_num = '9999'"))
    with pytest.raises(DatabaseUnusable, match=r"9999, which this Waybill does not know.*Use that version"):
        open_job_store(database)
    with engine.begin() as connection:
        connection.execute(sql.text("UPDATE waybill_migration SET version_num = :head"), {"head": schema.HEAD})
    engine.dispose()
    with open_job_store(database) as store:
        assert store.next_offset == len(messages())


@pytest.mark.parametrize("is_old", [False, True])
def test_the_migrations_make_the_tables_that_the_statements_are_for(database: str, is_old: bool) -> None:
    if is_old:
        restore(database)
    open_job_store(database).close()
    engine = open_engine(database)

    def is_ours(name: str | None, kind: str, _: object) -> bool:
        return kind != "table" or name in METADATA.tables

    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_name": is_ours, "version_table": schema.VERSION_TABLE}
        )
        assert compare_metadata(context, METADATA) == []
        found = schema.history(connection)
        assert (found[-1].revision, schema.current(connection)) == (schema.HEAD, schema.HEAD)
        assert all(one.is_applied for one in found)
    engine.dispose()


def test_those_who_open_a_database_at_once_migrate_it_once(database: str) -> None:
    restore(database)
    engine, done = open_engine(database), []
    together = threading.Barrier(4)

    def open_it() -> None:
        own = open_engine(database)
        together.wait()
        done.append(schema.migrate(own))
        own.dispose()

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.dispose()
    assert sorted(done) == [[], [], [], ["0002", schema.HEAD]]


def test_the_command_line_migrates_and_tells(database: str) -> None:
    restore(database)

    def run(verb: str, *arguments: str, code: int = 0) -> str:
        found = CliRunner().invoke(main, ["state", verb, database, *arguments])
        assert found.exit_code == code, found.output
        return found.stdout

    assert run("current", code=1) == f"none (this version needs {schema.HEAD})\n"
    assert run("migrate") == f"migrated: 0002, {schema.HEAD}\n"
    assert run("migrate", "--json") == '{"migrations": []}\n'
    assert run("current") == f"{schema.HEAD} (the newest)\n"
    assert run("history").startswith("0001  done  ")
    assert run("prune", "--keep-days", "1").startswith("deleted ")
    with open_job_store(database) as store:
        assert {detail.info.state for detail in store.page(JobFilter(), "", 20)[0]} == {
            *("available", "active", "retryable")
        }


def test_the_command_line_names_what_it_cannot_open(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["state", "current", str(tmp_path / "none.db")])
    assert (found.exit_code, "there is no file" in found.output) == (2, True)
    found = CliRunner().invoke(main, ["state", "current", "postgresql://waybill@127.0.0.1:1/none"])
    assert (found.exit_code, "the database cannot be used" in found.output) == (1, True)
