"""Databases for tests: a SQLite file, and a PostgreSQL of our own."""

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

POSTGRESQL_HINT = "PostgreSQL is not installed: apt install postgresql"
_numbers = itertools.count()


def postgresql_program(name: str) -> str | None:
    """Debian keeps the programs of each version in a directory of its own, beside the path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return str(found[0]) if found else shutil.which(name)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A PostgreSQL of our own on a unix socket in a temporary directory; the URL of its databases."""
    initdb, server = postgresql_program("initdb"), postgresql_program("postgres")
    if initdb is None or server is None:
        pytest.skip(POSTGRESQL_HINT)
    # Not below pytest's directories: a socket's name is short, and the server may run as another user.
    directory = Path(tempfile.mkdtemp(prefix="waybill-postgresql-"))
    user = "postgres" if os.getuid() == 0 else None
    if user is not None:
        shutil.chown(directory, user)
    data = directory / "data"
    try:
        subprocess.run(
            [initdb, "-D", data, "-A", "trust", "-U", "waybill", "-N", "--no-locale", "-E", "UTF8"],
            check=True,
            capture_output=True,
            user=user,
            cwd=directory,
        )
        command = [server, "-D", str(data), "-k", str(directory), "-h", "", "-F"]
        with (
            (directory / "log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log, user=user, cwd=directory) as process,
        ):
            try:
                url = f"postgresql+psycopg://waybill@/{{}}?host={directory}"
                wait_until_it_answers(url.format("postgres"), process)
                yield url
            finally:
                process.terminate()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def wait_until_it_answers(url: str, process: "subprocess.Popen[bytes]") -> None:
    engine = sql.create_engine(url, poolclass=sql.pool.NullPool)
    deadline = time.monotonic() + 60
    while True:
        try:
            with engine.connect():
                return
        except sql.exc.OperationalError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)


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
