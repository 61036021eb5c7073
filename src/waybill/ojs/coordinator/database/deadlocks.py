"""Deadlocks in PostgreSQL, which aborts one of the transactions. A deadlock is no error: the transaction is retried.

Coordinators that fold different partitions of the event stream may change the same groups of failures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import DBAPIError

DEADLOCK: Final = "40P01"


class Deadlock(Exception):
    """PostgreSQL has aborted this transaction, so that another can continue."""


@contextlib.contextmanager
def deadlocks_named() -> Iterator[None]:
    """Raise Deadlock instead of the driver's error."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != DEADLOCK:
            raise
        raise Deadlock(str(error.orig)) from error
