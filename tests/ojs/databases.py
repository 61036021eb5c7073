"""Databases for tests: a SQLite file, and a PostgreSQL of our own."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from tests.postgresql import HINT, USER, Server, directory_for_servers, is_installed

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A PostgreSQL of our own on a unix socket in a temporary directory; the URL of its databases."""
    if not is_installed():
        pytest.skip(HINT)
    with directory_for_servers() as directory:
        server = Server(directory).create().start(listen_addresses="")
        try:
            yield f"postgresql+psycopg://{USER}@/{{}}?host={directory}&port={server.port}"
        finally:
            server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "jobs.sqlite")
    return make_database(request.getfixturevalue("postgresql"))


def make_database(url: str) -> str:
    """Make an empty database of a PostgreSQL; returns its URL."""
    name = f"jobs{next(_numbers)}"
    engine = sql.create_engine(url.format("postgres"), isolation_level="AUTOCOMMIT", poolclass=sql.pool.NullPool)
    with engine.connect() as connection:
        connection.execute(sql.text(f"create database {name}"))
    return url.format(name)
