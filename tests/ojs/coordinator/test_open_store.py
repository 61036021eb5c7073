"""A database that cannot be used says so, and what to do."""

from pathlib import Path

import pytest
import sqlalchemy as sql

from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.errors import DatabaseUnusable


@pytest.mark.parametrize("content", [b"no database" * 1000, b"SQLite format 3\0" + b"\xff" * 8176])
def test_a_damaged_file_is_named_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(content)
    with pytest.raises(DatabaseUnusable, match="rebuilt from the event stream"):
        open_job_store(f"sqlite:///{path}")
    assert path.read_bytes() == content


def test_a_directory_that_is_not_there_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnusable, match="unable to open"):
        open_job_store(f"sqlite:///{tmp_path}/none/jobs.db")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_every_text_is_refused(postgresql: str, encoding: str) -> None:
    name = f"jobs_in_{encoding.lower()}"
    engine = sql.create_engine(postgresql.format("postgres"), isolation_level="AUTOCOMMIT", poolclass=sql.pool.NullPool)
    with engine.connect() as connection:
        text = f"create database {name} encoding '{encoding}' template template0 lc_collate 'C' lc_ctype 'C'"
        connection.execute(sql.text(text))
    with pytest.raises(DatabaseUnusable, match=f"has the encoding {encoding}, .* --encoding UTF8"):
        open_job_store(postgresql.format(name))
