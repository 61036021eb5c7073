"""The position of the job state in the event stream: a row for each partition, written in the transaction of the fold.

A writer locks the rows of the partitions that it writes to. All partitions begin a new epoch when the state is rebuilt,
when a database has lost committed changes, and when partitions are added.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from waybill.ojs.coordinator.database.tables import COUNTS, FAILURES, JOBS, POSITIONS, ROWS, STREAM
from waybill.ojs.coordinator.job_counts import CountMark
from waybill.ojs.coordinator.stream_identity import StreamMark

_COLUMNS = POSITIONS.c
_SELECT = sql.select(
    *(_COLUMNS.stream, _COLUMNS.next_offset, _COLUMNS.epoch, _COLUMNS.mark_offset, _COLUMNS.mark_digest),
    _COLUMNS.count_number,
).order_by(_COLUMNS.stream)
_SELECT_FIRST = _SELECT.where(_COLUMNS.stream == STREAM)
_SELECT_FIRST_LOCKED = _SELECT_FIRST.with_for_update()


class Position(NamedTuple):
    """The position of the state in a partition, and its epoch."""

    next_offset: int
    epoch: int
    mark: StreamMark | None
    count_number: int
    """The version of the last change of counts by events of this partition."""


Positions = dict[int, Position]
"""By partition."""


def stream_of(partition: int) -> str:
    """Return the key of a partition's row."""
    return f"{STREAM}-{partition}" if partition else STREAM


def read_positions(
    connection: Connection, partitions: Collection[int] | None = None, *, lock: bool = False
) -> Positions:
    """Return the positions of some partitions, or of all for None.

    With `lock`, others cannot fold into these before the transaction ends. Rows are always locked in the same order.
    """
    if partitions is not None and list(partitions) == [0]:
        select = _SELECT_FIRST_LOCKED if lock else _SELECT_FIRST
    else:
        select = _SELECT
        if partitions is not None:
            select = select.where(_COLUMNS.stream.in_([stream_of(number) for number in partitions]))
        select = select.with_for_update() if lock else select
    found = {}
    for stream, next_offset, epoch, mark_offset, mark_digest, count_number in connection.execute(select):
        mark = None if mark_offset is None else StreamMark(mark_offset, mark_digest)
        number = stream.removeprefix(STREAM).removeprefix("-")
        found[int(number or 0)] = Position(next_offset, epoch, mark, count_number)
    return found


def count_mark_of(positions: Positions) -> CountMark:
    """Return up to where counts are known at these positions, which are those of all partitions."""
    numbers = tuple(positions[number].count_number for number in sorted(positions))
    return CountMark(max(one.epoch for one in positions.values()), sum(numbers), numbers)


def begin_epoch(connection: Connection, positions: Positions) -> int:
    """Begin an epoch and return its number, which is new even if the database has lost its last epochs.

    `positions` are those of all partitions, locked.
    """
    epoch = max(*(one.epoch + 1 for one in positions.values()), int(time.time()))
    connection.execute(sql.update(POSITIONS).values(epoch=epoch))
    return epoch


def forget_all(connection: Connection, positions: Positions) -> int:
    """Delete everything, begin an epoch, and return its number; `positions` as for `begin_epoch`."""
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
    return begin_epoch(connection, positions)


def add_positions(connection: Connection, partitions: Iterable[int], epoch: int) -> None:
    """Add rows for new partitions."""
    rows = [{"stream": stream_of(number), "next_offset": 0, "epoch": epoch, "count_number": 0} for number in partitions]
    connection.execute(sql.insert(POSITIONS), rows)
