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
        sums = job_counts.Sums()
        page = self.page(connection, CountMark(0, 0), None)
        sums.add(page)
        while page.after is not None:
            page = self.page(connection, page.mark, page.after)
            sums.add(page)
        return dict(sums.counts)

    def page(self, connection: Connection, mark: CountMark, after: Pair | None) -> CountChanges:
        """Return a page of all counts, in the order of the queues' names."""
        pair = sql.tuple_(self.table.c.queue, self.table.c.state)
        select = self._sums.order_by(self.table.c.queue, self.table.c.state).limit(job_counts.PAGE)
        if after is not None:
            select = select.where(pair > sql.tuple_(*after))
        rows = connection.execute(select).all()
        # Without a condition on the sum: who looks for the next ones that are not 0 may look at very many.
        found = {(queue, state): jobs for queue, state, jobs in rows if jobs > 0}
        last = (rows[-1][0], rows[-1][1]) if len(rows) == job_counts.PAGE else None
        return CountChanges(mark, found, is_whole=True, after=last)

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
            return self.page(connection, now, None)
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
