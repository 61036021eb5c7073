"""Tells faults of a database, which pass, from values that it refuses: a full disk may still take smaller changes."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError

POSTGRESQL: Final = ("08", "25006", "53", "55P03", "57", "58")
"""The beginnings of SQLSTATEs: connections, read-only, resources, locks, shutdown and timeouts, the system."""
SQLITE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
    }
)


def is_fault(error: Exception) -> bool:
    """Whether an error is of the database itself, whatever was to be written."""
    if not isinstance(error, DBAPIError):
        return False
    state, code = (getattr(error.orig, name, None) for name in ("sqlstate", "sqlite_errorcode"))
    if isinstance(state, str):
        return state.startswith(POSTGRESQL)
    # The lower octet of an extended code is the primary one.
    return isinstance(code, int) and code & 0xFF in SQLITE
