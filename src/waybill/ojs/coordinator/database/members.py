"""The coordinators that share a database, and the partitions of the event stream that each of them folds.

Each registers every few seconds, by the clock of the database, and computes the owner of each partition from the list
of all. Two coordinators may briefly have different lists, so a partition may have two owners, or none. This is
harmless: its position is locked during a write, and events that are not folded now are folded later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from waybill.ojs.coordinator.database.tables import COORDINATORS

LIFE_SECONDS: Final = 6.0
"""A coordinator that has not registered for this long counts as dead."""

_NOW: Final = sql.extract("epoch", sql.func.clock_timestamp())


class Member(NamedTuple):
    """A coordinator; `leads` if it claims to be the leader."""

    id: str
    leads: bool


def meet(connection: Connection, insert: Callable[[sql.Table], Any], coordinator: str, *, leads: bool) -> list[Member]:
    """Register a coordinator. Returns all registered ones, in the order of their ids."""
    table = COORDINATORS
    connection.execute(sql.delete(table).where(table.c.seen_at < _NOW - LIFE_SECONDS))
    own = {"leads": leads, "seen_at": _NOW}
    added = insert(table).values(id=coordinator, **own)
    connection.execute(added.on_conflict_do_update(index_elements=["id"], set_=own))
    found = connection.execute(sql.select(table.c.id, table.c.leads).order_by(table.c.id))
    return [Member(*row) for row in found]


def part(connection: Connection, coordinator: str) -> None:
    """Remove a coordinator from the list."""
    connection.execute(sql.delete(COORDINATORS).where(COORDINATORS.c.id == coordinator))


def share_of(members: Sequence[Member], coordinator: str, partitions: int) -> set[int]:
    """Return the partitions that a coordinator folds: the leader the first, the others in turn."""
    ids = [one.id for one in members]
    first = next((one.id for one in members if one.leads), ids[0])
    order = [first, *(one for one in ids if one != first)]
    return {number for number in range(partitions) if order[number % len(order)] == coordinator}
