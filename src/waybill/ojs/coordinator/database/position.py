"""The position of the job state in the event stream: one row, written in the same transaction as the folded jobs.

An epoch begins when the state is rebuilt, and when a database has lost committed changes.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from waybill.ojs.coordinator.database.tables import COUNTS, FAILURES, JOBS, POSITIONS, ROWS, STREAM
from waybill.ojs.coordinator.stream_identity import StreamMark

_COLUMNS = POSITIONS.c
_FIELDS = (
    *(_COLUMNS.next_offset, _COLUMNS.epoch, _COLUMNS.mark_offset, _COLUMNS.mark_digest),
    _COLUMNS.count_number,
)
_SELECT = sql.select(*_FIELDS).where(_COLUMNS.stream == STREAM)
_SELECT_LOCKED = _SELECT.with_for_update()


class Position(NamedTuple):
    """The position of the state in the stream, and its epoch."""

    next_offset: int
    epoch: int
    mark: StreamMark | None
    count_number: int
    """The number of the last change of counts."""


def read_position(connection: Connection, *, lock: bool = False) -> Position:
    """Return the position; with `lock`, no other process can fold or delete before the transaction ends."""
    row = connection.execute(_SELECT_LOCKED if lock else _SELECT).one()
    return Position(row[0], row[1], None if row[2] is None else StreamMark(row[2], row[3]), row[4])


def begin_epoch(connection: Connection, position: Position) -> int:
    """Begin an epoch and return its number, which this database never had before, even if it lost its last epochs."""
    epoch = max(position.epoch + 1, int(time.time()))
    connection.execute(sql.update(POSITIONS).values(epoch=epoch))
    return epoch


def forget_all(connection: Connection, position: Position) -> int:
    """Delete everything, begin an epoch, and return its number."""
    if connection.dialect.name == "postgresql":
        # Deleting row by row would take as long as all folds did.
        connection.execute(sql.text(f"TRUNCATE {JOBS.name}"))
    else:
        connection.execute(sql.delete(JOBS))
    COUNTS.clear(connection)
    connection.execute(sql.delete(ROWS))
    FAILURES.clear(connection)
    new = {"next_offset": 0, "mark_offset": None, "mark_digest": None, "count_number": 0}
    connection.execute(sql.update(POSITIONS).values(new))
    return begin_epoch(connection, position)
