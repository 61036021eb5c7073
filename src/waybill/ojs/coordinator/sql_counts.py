"""The number of jobs in a database by queue and state, updated with each fold, because counting all takes too long.

Each transaction that changes counts takes the next number, and writes it to them. The position in the partition of the
event stream is locked meanwhile, so its numbers become visible in order. Each partition has its own counts, which may
be negative, as jobs can be counted in one and leave in another: only their sums mean something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from waybill.ojs.coordinator import job_counts
from waybill.ojs.coordinator.database.upsert import Upsert
from waybill.ojs.coordinator.job_counts import CountChanges, CountMark, Pair
from waybill.ojs.coordinator.job_record import JobRecord
from waybill.ojs.coordinator.job_store import JobFilter


def pairs_of(jobs: Mapping[str, JobRecord]) -> dict[str, Pair]:
    """Return the queues and states under which jobs are counted."""
    return {job_id: (job.queue, job.state) for job_id, job in jobs.items()}


class CountTable:
    """The table of counts."""

    def __init__(self, metadata: sql.MetaData) -> None:
        """Add the table to those of the store."""
        self.table = sql.Table(
            "waybill_count",
            metadata,
            sql.Column("queue", sql.String, primary_key=True),
            sql.Column("state", sql.String, primary_key=True),
            sql.Column("part", sql.Integer, primary_key=True),
            sql.Column("jobs", sql.BigInteger, nullable=False),
            sql.Column("changed", sql.BigInteger, nullable=False),
            sql.Index("waybill_count_changed", "part", "changed"),
        )
        counts = self.table.c
        # A sum of integers is a decimal in PostgreSQL.
        self._jobs = sql.cast(sql.func.sum(counts.jobs), sql.BigInteger)
        self._sums = sql.select(counts.queue, counts.state, self._jobs).group_by(counts.queue, counts.state)

    def clear(self, connection: Connection) -> None:
        """Delete all counts."""
        connection.execute(sql.delete(self.table))

    def change(
        self,
        connection: Connection,
        upsert: Upsert,
        before: Mapping[str, Pair],
        jobs: Mapping[str, JobRecord],
        number: int,
        partition: int,
    ) -> bool:
        """Count changed jobs, with the number of this change in a partition; False if no count changes.

        Jobs in `before` that are not in `jobs` were deleted. `upsert` is one of this table that adds to `jobs`. If
        equally many came and went, the count still gets the number, because the jobs differ.
        """
        changes = Counter[Pair]()
        changes.subtract(old for job_id, old in before.items() if job_id not in jobs)
        for job_id, after in pairs_of(jobs).items():
            old = before.get(job_id)
            if old != after:
                changes[after] += 1
                if old is not None:
                    changes[old] -= 1
        if not changes:
            return False
        # One fixed order, so that two coordinators cannot deadlock.
        rows: list[dict[str, str | float | None]] = [
            {"queue": queue, "state": state, "part": partition, "jobs": change, "changed": number}
            for (queue, state), change in sorted(changes.items())
        ]
        upsert.execute(connection, rows)
        return True

    def all(self, connection: Connection) -> dict[Pair, int]:
        """Return how many jobs there are by queue and state: of the first MOST_QUEUES queues, and of all further ones.

        The latter are counted under OTHER.
        """
        counts = self.table.c
        queues = sql.select(counts.queue).group_by(counts.queue).having(self._jobs > 0).order_by(counts.queue)
        first_left_out = connection.execute(queues.offset(job_counts.MOST_QUEUES).limit(1)).scalar()
        sums = self._sums.having(self._jobs > 0)
        if first_left_out is None:
            return {(queue, state): jobs for queue, state, jobs in connection.execute(sums)}
        found = connection.execute(sums.where(counts.queue < first_left_out))
        named = {(queue, state): jobs for queue, state, jobs in found}
        others = sql.select(counts.state, self._jobs).where(counts.queue >= first_left_out).group_by(counts.state)
        return named | {(job_counts.OTHER, state): jobs for state, jobs in connection.execute(others) if jobs > 0}

    def of(self, connection: Connection, queue: str, state: str) -> int:
        """Return how many jobs of a queue are in a state."""
        counts = self.table.c
        select = sql.select(self._jobs).where(counts.queue == queue, counts.state == state)
        return connection.execute(select).scalar() or 0

    def changes(self, connection: Connection, now: CountMark, since: CountMark | None) -> CountChanges:
        """Return the counts that have changed since a mark. `now` must be read before, so that nothing is missed."""
        if since is not None and since.number == now.number and since.epoch == now.epoch:
            return CountChanges(now, {})
        changed = None if since is None or since.epoch != now.epoch else self._changed(connection, now, since)
        if changed is None:
            return CountChanges(now, self.all(connection), is_whole=True)
        return CountChanges(now, changed)

    def _changed(self, connection: Connection, now: CountMark, since: CountMark) -> dict[Pair, int] | None:
        """Return the counts that have changed, None if these are too many."""
        counts = self.table.c
        newer = [
            sql.and_(counts.part == part, counts.changed > number)
            for part, number in enumerate(since.parts)
            if now.parts[part] > number
        ]
        changed = sql.select(counts.queue, counts.state).where(sql.or_(*newer)).limit(job_counts.MOST_QUEUES + 1)
        select = self._sums.where(sql.tuple_(counts.queue, counts.state).in_(changed))
        found = {(queue, state): jobs for queue, state, jobs in connection.execute(select)}
        return found if len(found) <= job_counts.MOST_QUEUES else None

    def pairs(self, connection: Connection, wanted: JobFilter, most: int) -> dict[Pair, int]:
        """Return how many jobs there are in the wanted queues and states, for at most `most` pairs."""
        counts = self.table.c
        select = self._sums.having(self._jobs > 0).limit(most)
        if wanted.queue is not None:
            select = select.where(counts.queue == wanted.queue)
        if wanted.prefix:
            select = select.where(counts.queue.startswith(wanted.prefix, autoescape=True))
        if wanted.states is not None:
            select = select.where(counts.state.in_(wanted.states))
        return {(queue, state): jobs for queue, state, jobs in connection.execute(select)}
