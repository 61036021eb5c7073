"""Deadlocks in PostgreSQL, which ends one of the transactions: it is to be tried again, and nothing is wrong.

Coordinators that fold different partitions of the event stream may change the same groups of failures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from sqlalchemy.exc import DBAPIError

DEADLOCK: Final = "40P01"


class Deadlock(Exception):
    """PostgreSQL has undone this transaction, so that another can go on."""


@contextlib.contextmanager
def deadlocks_named() -> Iterator[None]:
    """Raise Deadlock in the place of the driver's error."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != DEADLOCK:
            raise
        raise Deadlock(str(error.orig)) from error
