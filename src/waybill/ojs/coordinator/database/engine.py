"""Connections to the job state database: a SQLite file, or PostgreSQL on one or several hosts."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sql
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.pool import StaticPool

from waybill.ojs.errors import DatabaseUnusable

if TYPE_CHECKING:
    import psycopg

CONNECT_SECONDS: Final = 5
"""How long each host may take to answer. libpq tries all hosts, one after another."""
SILENCE_MS: Final = 30_000
"""How long sent data may stay unacknowledged before the connection counts as lost."""
PSYCOPG: Final = "postgresql+psycopg"
_DEFAULTS: Final[dict[str, str]] = {
    "application_name": "waybill",
    "connect_timeout": str(CONNECT_SECONDS),
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": str(SILENCE_MS),
}
_HOSTS: Final = re.compile(
    r"(?P<scheme>[a-z0-9+]+)://(?:(?P<login>[^/?#]*)@)?(?P<hosts>[^/?#@]*,[^/?#@]*)(?P<rest>[/?].*)?"
)


def open_engine(database: str) -> Engine:
    """Return an engine for a SQLite file, or for a URL of SQLAlchemy or libpq. It does not connect yet.

    Raises sqlalchemy.exc.ArgumentError for an invalid URL.
    """
    if "://" not in database:
        url = make_url("sqlite://").set(database=database)
        engine = sql.create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        url = url_of(database)
        # Test each connection before use: a fail-over may have broken it.
        engine = sql.create_engine(url, pool_pre_ping=True) if url.drivername == PSYCOPG else sql.create_engine(url)
    if engine.dialect.name == "sqlite":
        sql.event.listen(engine, "connect", _set_up_sqlite)
        sql.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("begin immediate"))
    elif engine.driver == "psycopg":
        # Before SQLAlchemy's own listener, which fails with a database of the encoding SQL_ASCII.
        sql.event.listen(engine, "connect", _set_up_psycopg, insert=True)
    return engine


def url_of(database: str) -> URL:
    """Return a URL for SQLAlchemy.

    A PostgreSQL URL may name several hosts: `postgresql://user@a:5432,b:5432/jobs`. The one that accepts writes is
    used, unless the URL says otherwise.
    """
    found = _HOSTS.fullmatch(database)
    if found is not None:
        login = "" if found["login"] is None else f"{found['login']}@"
        url = make_url(f"{found['scheme']}://{login}{found['rest'] or ''}")
        url = url.update_query_dict({"host": found["hosts"].split(",")})
    else:
        url = make_url(database)
    if url.drivername == "postgresql":
        # The driver that the extra installs.
        url = url.set(drivername=PSYCOPG)
    if url.drivername != PSYCOPG:
        return url
    defaults = {name: value for name, value in _DEFAULTS.items() if name not in url.query}
    hosts = url.query.get("host", ())
    if (isinstance(hosts, tuple) and len(hosts) > 1) or "," in hosts:
        defaults.setdefault("target_session_attrs", "read-write")
    return url.update_query_dict({name: value for name, value in defaults.items() if name not in url.query})


def insert_of(engine: Engine) -> Callable[[sql.Table], Any]:
    """Return `insert` of the engine's dialect. Only that dialect is imported, because each loads all of its drivers."""
    if engine.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - see above

        return postgresql.insert
    from sqlalchemy.dialects import sqlite  # noqa: PLC0415 - see above

    return sqlite.insert


class OpenConnections:
    """The open PostgreSQL connections of an engine. Any thread can close them when the server hangs."""

    def __init__(self, engine: Engine) -> None:
        """Track the connections that are opened from now on."""
        self._connections: set[Any] = set()
        if engine.driver == "psycopg":
            sql.event.listen(engine, "connect", lambda connection, _: self._connections.add(connection))
            sql.event.listen(engine, "close", lambda connection, _: self._connections.discard(connection))
            sql.event.listen(engine, "close_detached", self._connections.discard)

    def cut(self) -> None:
        """Close the connections as if the network was lost: calls that wait for a reply fail immediately."""
        for connection in list(self._connections):
            # A connection may be closed concurrently.
            with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as one:
                one.shutdown(socket.SHUT_RDWR)


def _set_up_sqlite(connection: object, _record: object) -> None:
    # By default the driver begins transactions itself, and only at the first write.
    connection.isolation_level = None  # type: ignore[attr-defined]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("pragma journal_mode = wal")
    cursor.execute("pragma synchronous = normal")
    cursor.close()


def _set_up_psycopg(connection: psycopg.Connection[Any], _record: object) -> None:
    """Replace NUL in texts: PostgreSQL refuses it, and a request may ask for any name. No stored text contains it.

    Raises DatabaseUnusable for a database that cannot hold all other texts.
    """
    from psycopg.adapt import Dumper  # noqa: PLC0415 - an extra

    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise DatabaseUnusable(
            f"the job database has the encoding {encoding}, which cannot hold every text: create one with"
            " `createdb --encoding UTF8 --template template0`. The state is made again from the event stream"
        )

    class TextDumper(Dumper):
        def dump(self, text: str) -> bytes:
            return text.replace("\0", "\ufffd").encode(connection.info.encoding)

    connection.adapters.register_dumper(str, TextDumper)
