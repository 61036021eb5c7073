"""Partitions of the jobs in PostgreSQL: each holds the ids of some days, so old jobs are deleted by dropping a table.

An id is a UUIDv7: it begins with the time in milliseconds, so ids sort by time. The id is also the primary key, so
looking up a job is one probe of one partition's index.

    waybill_job                    the partitioned table
      waybill_job_before           what was there before there were partitions, if anything was
      waybill_job_0199f2c4_3800    ids from 0199f2c4-3800 on, up to the next partition
      waybill_job_other            the default: ids that tell no time near ours, and jobs that outlived their partition

A partition is created when the first id of its days is written, while the position in the first partition of the event
stream is locked, so only one process creates it. If that fails, and until then where coordinators fold other partitions
of the stream, the jobs stay in the default partition until it is created.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

import sqlalchemy as sql
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from waybill.ojs.coordinator.database.tables import JOBS

DAY_MS: Final = 86_400_000
OTHER: Final = "waybill_job_other"
MOST: Final = 500
"""The maximum number of partitions. Older and newer ids go to the default partition."""
MOST_AT_ONCE: Final = 4
"""The maximum number of new partitions in one transaction: each briefly blocks reads of the default partition."""
LOCK_SECONDS: Final = 2
AGAIN_SECONDS: Final = 60.0
DAYS_OF: Final = ((31, 1), (217, 7))
"""The days of a partition by the days of retention (inclusive); MOST_DAYS for longer."""
MOST_DAYS: Final = 30

_TELLS_TIME: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}(-|$)")
_BOUNDS: Final = re.compile(r"FOR VALUES FROM \((MINVALUE|'([^']*)')\) TO \('([^']*)'\)")
_log = logging.getLogger("waybill.ojs.coordinator")


class Partition(NamedTuple):
    """A partition from its lower bound (inclusive) to its upper (exclusive). An empty bound is before all ids."""

    lower: str
    upper: str
    name: str


def bound_of(time_ms: int) -> str:
    """Return the lower bound of all ids from a time on."""
    return f"{time_ms >> 16:08x}-{time_ms & 0xFFFF:04x}"


def time_ms_of(bound: str) -> int:
    """Return the time of an id or a bound. Raises ValueError if it contains none."""
    return int(bound[:8] + bound[9:13], 16)


def days_of(keep_days: int | None) -> int:
    """Return how many days a partition covers, so that there are about thirty partitions."""
    return next((days for most, days in DAYS_OF if keep_days is not None and keep_days <= most), MOST_DAYS)


def partitions(connection: Connection) -> list[Partition]:
    """Return all partitions but the default one, in order of their ids."""
    select = sql.text(
        "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = CAST(:name AS text)::regclass"
    )
    rows = connection.execute(select, {"name": JOBS.name})
    found = ((name, _BOUNDS.fullmatch(text)) for name, text in rows)
    return sorted(Partition(one[2] or "", one[3], name) for name, one in found if one is not None)


class Partitions:
    """Creates partitions when needed."""

    def __init__(self, keep_days: int | None) -> None:
        """`keep_days` is the retention: older ids get no partition."""
        self._keep_days = keep_days
        self._known: list[Partition] = []
        self._not_before = 0.0

    def forget(self) -> None:
        """Read the partitions again next time: some were dropped, or the database was replaced."""
        self._known = []

    def ensure(self, connection: Connection, ids: Iterable[str]) -> None:
        """Create the partitions of ids that are about to be written. Call it while the first position is locked."""
        now_ms = int(time.time() * 1000)
        missing = self._missing(ids, now_ms)
        if not missing or time.monotonic() < self._not_before:
            return
        self._known = partitions(connection)
        wanted = [one for number in missing if (one := self._range_of(number)) is not None]
        try:
            for one in wanted[:MOST_AT_ONCE]:
                if len(self._known) < MOST:
                    with connection.begin_nested():
                        _make(connection, one)
                    self._known = sorted([*self._known, one])
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            self._not_before = time.monotonic() + AGAIN_SECONDS
            _log.warning("could not create a partition for new jobs; they go to %s for now: %s", OTHER, error.orig)
        if len(self._known) >= MOST:
            self._not_before = time.monotonic() + AGAIN_SECONDS

    @property
    def _width_ms(self) -> int:
        return days_of(self._keep_days) * DAY_MS

    def _missing(self, ids: Iterable[str], now_ms: int) -> list[int]:
        """Return the numbers of the periods of these ids that have no known partition, newest first."""
        width = self._width_ms
        kept_ms = now_ms if self._keep_days is None else self._keep_days * DAY_MS
        # An id that is derived from a name alone has the time 0: it belongs to no day.
        lowest = bound_of(max(1, (now_ms - kept_ms) // width - 1) * width)
        # An id from after tomorrow comes from a wrong clock: the job waits in the default partition.
        highest = bound_of((now_ms // width + 2) * width)
        newest = self._known[-1] if self._known else Partition(highest, highest, "")
        found = set()
        for one in ids:
            if newest.lower <= one < newest.upper or not lowest <= one < highest or self._covers(one):
                continue
            if _TELLS_TIME.match(one):
                found.add(time_ms_of(one) // width)
        return sorted(found, reverse=True)

    def _covers(self, job_id: str) -> bool:
        place = bisect_right(self._known, (job_id, "\U0010ffff", "")) - 1
        return place >= 0 and job_id < self._known[place].upper

    def _range_of(self, number: int) -> Partition | None:
        """Return a period's partition, without what partitions of another width cover; None if nothing is left."""
        lower, upper = bound_of(number * self._width_ms), bound_of((number + 1) * self._width_ms)
        for one in self._known:
            if one.lower <= lower < one.upper:
                lower = one.upper
            elif lower < one.lower < upper:
                upper = one.lower
        return Partition(lower, upper, f"{JOBS.name}_{lower.replace('-', '_')}") if lower < upper else None


def _make(connection: Connection, one: Partition) -> None:
    """Create a partition, and move its rows from the default one."""
    connection.execute(sql.text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
    # Who folds another partition of the stream waits here, before its statements are planned: a plan without the new
    # partition would not find the jobs that move, and would take them for new ones.
    connection.execute(sql.text(f"LOCK TABLE ONLY {JOBS.name}, ONLY {OTHER} IN ACCESS EXCLUSIVE MODE"))
    connection.execute(sql.text(f"CREATE TABLE {one.name} (LIKE {JOBS.name} INCLUDING DEFAULTS)"))
    within = f"id >= '{one.lower}' AND id < '{one.upper}'"
    moved = f"WITH moved AS (DELETE FROM {OTHER} WHERE {within} RETURNING *)"  # noqa: S608 - ours
    connection.execute(sql.text(f"{moved} INSERT INTO {one.name} SELECT * FROM moved"))  # noqa: S608 - ours
    bounds = f"FROM ('{one.lower}') TO ('{one.upper}')"
    connection.execute(sql.text(f"ALTER TABLE {JOBS.name} ATTACH PARTITION {one.name} FOR VALUES {bounds}"))
    connection.execute(sql.text("SET LOCAL lock_timeout = 0"))
    _log.info("created partition %s of the jobs", one.name)
