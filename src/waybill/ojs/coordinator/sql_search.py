"""Searches in a job database besides lists: texts, groups of failures, times of a queue."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from waybill.ojs.coordinator.job_store import JobFilter, RunningJob
from waybill.ojs.coordinator.queue_times import QueueTimes, Times, times_of
from waybill.ojs.spec.states import State

_SEARCHED: Final = ("envelope", "error", "errors")
# As text, so that a database sees that its partial index fits.
_COMPLETED: Final[sql.ColumnClause[str]] = sql.literal_column(f"'{State.COMPLETED.value}'")
_IS_OPEN: Final = sql.literal_column("state") != _COMPLETED
_HAS_FAILED: Final = sql.column("fingerprint").is_not(None)


def indices() -> tuple[sql.Index, ...]:
    """Return the indices for that. Nearly all jobs are completed, so what has another state is found by one without."""
    return (
        sql.Index("waybill_job_open", "state", "id", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
        sql.Index("waybill_job_failure", "fingerprint", "id", sqlite_where=_HAS_FAILED, postgresql_where=_HAS_FAILED),
    )


def is_plain(wanted: JobFilter) -> bool:
    """Say whether the indices of lists find what is wanted."""
    return wanted == JobFilter(wanted.queue, wanted.states, wanted.type, wanted.prefix)


def is_open(wanted: JobFilter) -> bool:
    """Say whether jobs of all queues are wanted that are not completed: one index has them."""
    return wanted.queue is None and wanted.states is not None and State.COMPLETED.value not in wanted.states


def is_by_state(wanted: JobFilter) -> bool:
    """Say whether nothing else is wanted of open jobs than their state: the index has each in the order of the ids."""
    return is_open(wanted) and wanted == JobFilter(states=wanted.states)


def open_selects(select: sql.Select[Any], jobs: sql.Table, wanted: JobFilter) -> list[sql.Select[Any]]:
    """Return what finds open jobs, a statement for each state: one for all would sort them."""
    return [select.where(jobs.c.state == state, _IS_OPEN) for state in sorted(wanted.states or ())]


def select_running(jobs: sql.Table, limit: int, prefix: str) -> sql.Select[Any]:
    """Return what finds the jobs that run, as `RunningJob` has them."""
    select = sql.select(*(jobs.c[name] for name in RunningJob._fields))
    select = select.where(jobs.c.state == State.ACTIVE.value, _IS_OPEN).order_by(jobs.c.id.desc()).limit(limit)
    return select.where(jobs.c.queue.startswith(prefix, autoescape=True)) if prefix else select


def conditions(jobs: sql.Table, wanted: JobFilter, before: str) -> list[sql.ColumnElement[bool]]:
    """Return what rows must fulfil, but for what no index finds."""
    found: list[sql.ColumnElement[bool]] = [jobs.c.id < before] if before else []
    if wanted.queue is not None:
        found.append(jobs.c.queue == wanted.queue)
    if wanted.prefix:
        found.append(jobs.c.queue.startswith(wanted.prefix, autoescape=True))
    if wanted.states is not None:
        found.append(jobs.c.state.in_(wanted.states))
        if State.COMPLETED.value not in wanted.states:
            found.append(_IS_OPEN)
    if wanted.type is not None:
        found.append(jobs.c.type == wanted.type)
    if wanted.id_prefix is not None:
        found += [jobs.c.id >= wanted.id_prefix, jobs.c.id < wanted.id_prefix + "\U0010ffff"]
    if wanted.fingerprint is not None:
        found += [jobs.c.fingerprint == wanted.fingerprint, _HAS_FAILED]
    return found


def looked_at(jobs: sql.Table, wanted: JobFilter) -> list[sql.ColumnElement[bool]]:
    """Return the condition to check for each row."""
    found: list[sql.ColumnElement[bool]] = []
    if wanted.since is not None:
        found.append(jobs.c.enqueued_at >= wanted.since)
    if wanted.until is not None:
        found.append(jobs.c.enqueued_at < wanted.until)
    if wanted.text is not None:
        found.append(sql.or_(*(jobs.c[name].icontains(wanted.text, autoescape=True) for name in _SEARCHED)))
    return found


def all_conditions(jobs: sql.Table, wanted: JobFilter, before: str) -> list[sql.ColumnElement[bool]]:
    """Return all that rows must fulfil."""
    return [*conditions(jobs, wanted, before), *looked_at(jobs, wanted)]


def search_rows(
    connection: Connection, jobs: sql.Table, wanted: JobFilter, before: str, limit: int, most: int
) -> tuple[list[Any], str]:
    """Return the rows among the next `most` that may match, and the id below which to continue; empty at the end."""
    fitting = conditions(jobs, wanted, before)
    newest = jobs.c.id.desc()
    last = sql.select(jobs.c.id).where(*fitting).order_by(newest).offset(most - 1).limit(1)
    lowest = connection.execute(last).scalar() or ""
    select = sql.select(jobs).where(*fitting, jobs.c.id >= lowest, *looked_at(jobs, wanted))
    rows = list(connection.execute(select.order_by(newest).limit(limit + 1)))
    return rows[:limit], rows[limit - 1][0] if len(rows) > limit else lowest


class TimesOfQueues:
    """What asks for the times of a queue. The statements are made once: that takes longer than they do."""

    def __init__(self, jobs: sql.Table) -> None:
        own, columns = jobs.c.queue == sql.bindparam("name"), [jobs.c[name] for name in (*Times._fields, "attempt")]
        waiting, done = jobs.c.state == State.AVAILABLE.value, jobs.c.state == State.COMPLETED.value
        self._oldest = sql.select(jobs.c.enqueued_at).where(own, waiting).order_by(jobs.c.id).limit(1)
        newest = sql.select(*columns).where(own, done).order_by(jobs.c.id.desc())
        self._newest = newest.limit(sql.bindparam("last", type_=sql.Integer))

    def read(self, connection: Connection, queue: str, last: int) -> QueueTimes:
        """Return the times of a queue, by its `last` completed jobs."""
        oldest = connection.execute(self._oldest, {"name": queue}).scalar()
        if not last:
            return times_of(oldest, ())
        rows = connection.execute(self._newest, {"name": queue, "last": last})
        # What was tried again has waited for that, too.
        return times_of(oldest, [Times(*row[:-1]) for row in rows if row[-1] <= 1])
