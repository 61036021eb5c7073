"""Failure groups in a database, counted in the transaction of the jobs, so reads need not examine all failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sql
from sqlalchemy.engine import Connection

from waybill.ojs.coordinator.failure_group import (
    RETENTION_HOURS,
    FailureGroup,
    Hours,
    fingerprint_of,
    group_of,
    hour_of,
)
from waybill.ojs.coordinator.job_record import JobRecord

_KEPT: Final = ("first_at", "fingerprint", "count")
"""The columns that a new failure of a group does not replace."""


def fingerprints_of(jobs: Mapping[str, JobRecord]) -> dict[str, str]:
    """Return the groups of the discarded jobs among these."""
    found = {job_id: fingerprint_of(job) for job_id, job in jobs.items()}
    return {job_id: one for job_id, one in found.items() if one is not None}


class FailureTable:
    """The table of groups."""

    def __init__(self, metadata: sql.MetaData) -> None:
        """Add the table to those of the store."""
        texts = [name for name in FailureGroup.__struct_fields__ if name not in {"fingerprint", "count"}]
        self._groups = sql.Table(
            "waybill_failure",
            metadata,
            sql.Column("fingerprint", sql.String, primary_key=True),
            sql.Column("count", sql.BigInteger, nullable=False),
            *(sql.Column(name, sql.String, nullable=False) for name in texts),
            sql.Index("waybill_failure_last", "last_at"),
        )
        self._hours = sql.Table(
            "waybill_failure_hour",
            metadata,
            sql.Column("fingerprint", sql.String, primary_key=True),
            sql.Column("hour", sql.BigInteger, primary_key=True),
            sql.Column("count", sql.BigInteger, nullable=False),
        )

    def clear(self, connection: Connection) -> None:
        """Delete all groups."""
        connection.execute(sql.delete(self._groups))
        connection.execute(sql.delete(self._hours))

    def change(
        self,
        connection: Connection,
        insert: Callable[[sql.Table], Any],
        before: Mapping[str, str],
        jobs: Mapping[str, JobRecord],
    ) -> None:
        """Count changed jobs; `before` has their former groups."""
        failed: dict[str, FailureGroup] = {}
        left: Counter[str] = Counter()
        hours: Counter[tuple[str, int]] = Counter()
        after = fingerprints_of(jobs)
        if not before and not after:
            return
        for job_id in {**before, **after}:
            old, new = before.get(job_id), after.get(job_id)
            if old == new:
                continue
            if old is not None:
                left[old] += 1
            if new is not None:
                group = group_of(jobs[job_id])
                group.count += failed[new].count if new in failed else 0
                failed[new] = group
                hour = hour_of(jobs[job_id])
                if hour is not None:
                    hours[new, hour] += 1
        self._write(connection, insert, failed, left)
        self._count_hours(connection, insert, hours)

    def _write(
        self,
        connection: Connection,
        insert: Callable[[sql.Table], Any],
        failed: Mapping[str, FailureGroup],
        left: Mapping[str, int],
    ) -> None:
        groups = self._groups
        if failed:
            upsert = insert(groups)
            new = {column.name: upsert.excluded[column.name] for column in groups.c if column.name not in _KEPT}
            new["count"] = groups.c.count + upsert.excluded["count"]
            # One fixed order, so that two coordinators cannot deadlock.
            values = [msgspec.to_builtins(failed[one]) for one in sorted(failed)]
            connection.execute(upsert.on_conflict_do_update(index_elements=["fingerprint"], set_=new), values)
        self.forget(connection, left)

    def forget(self, connection: Connection, counts: Mapping[str, int]) -> None:
        """Remove deleted jobs from their groups, and empty groups; `counts` has the number of jobs by group."""
        groups = self._groups
        for fingerprint, count in sorted(counts.items()):
            own = groups.c.fingerprint == fingerprint
            connection.execute(sql.update(groups).where(own).values(count=groups.c.count - count))
            gone = connection.execute(sql.delete(groups).where(own, groups.c.count <= 0))
            if gone.rowcount:
                connection.execute(sql.delete(self._hours).where(self._hours.c.fingerprint == fingerprint))

    def _count_hours(
        self, connection: Connection, insert: Callable[[sql.Table], Any], found: Mapping[tuple[str, int], int]
    ) -> None:
        """Count failures by hour, and delete hours of these groups that are too old."""
        if not found:
            return
        hours = self._hours
        upsert = insert(hours)
        upsert = upsert.on_conflict_do_update(
            index_elements=["fingerprint", "hour"], set_={"count": hours.c.count + upsert.excluded["count"]}
        )
        values = [
            {"fingerprint": fingerprint, "hour": hour, "count": count}
            for (fingerprint, hour), count in sorted(found.items())
        ]
        connection.execute(upsert, values)
        for fingerprint, newest in sorted(dict(sorted(found)).items()):
            own = hours.c.fingerprint == fingerprint
            connection.execute(sql.delete(hours).where(own, hours.c.hour <= newest - RETENTION_HOURS))

    def hours(self, connection: Connection, fingerprints: Sequence[str]) -> dict[str, Hours]:
        """Return how many jobs of some groups failed in which hour."""
        found = {fingerprint: Hours() for fingerprint in fingerprints}
        select = sql.select(self._hours).where(self._hours.c.fingerprint.in_(fingerprints))
        for fingerprint, hour, count in connection.execute(select):
            found[fingerprint][hour] = count
        return found

    def newest(self, connection: Connection, limit: int, prefix: str) -> list[FailureGroup]:
        """Return the groups of queues whose names begin with `prefix`, the one that grew last first."""
        columns = [self._groups.c[name] for name in FailureGroup.__struct_fields__]
        select = sql.select(*columns).order_by(self._groups.c.last_at.desc(), self._groups.c.fingerprint)
        if prefix:
            select = select.where(self._groups.c.queue.startswith(prefix, autoescape=True))
        return [FailureGroup(*row) for row in connection.execute(select.limit(limit))]
