"""Searches in a job database other than lists: texts, failure groups, times of a queue."""

from __future__ import annotations

from time import monotonic
from typing import Any, Final

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from waybill.ojs.coordinator.job_store import JobFilter, RunningJob
from waybill.ojs.coordinator.queue_times import QueueTimes, Times, times_of
from waybill.ojs.spec.states import State

LOOK_SECONDS: Final = 0.05
FIRST_PORTION: Final = 16
_SEARCHED: Final = ("envelope", "error", "errors")
# A literal, so that the database sees that its partial index fits.
_COMPLETED: Final[sql.ColumnClause[str]] = sql.literal_column(f"'{State.COMPLETED.value}'")
_IS_OPEN: Final = sql.literal_column("state") != _COMPLETED
_HAS_FAILED: Final = sql.column("fingerprint").is_not(None)


def indices() -> tuple[sql.Index, ...]:
    """Return the indexes for that. Nearly all jobs are completed, so a partial index finds all others."""
    return (
        sql.Index("waybill_job_open", "state", "id", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
        sql.Index("waybill_job_failure", "fingerprint", "id", sqlite_where=_HAS_FAILED, postgresql_where=_HAS_FAILED),
    )


def is_plain(wanted: JobFilter) -> bool:
    """Return whether the indexes of lists find the wanted jobs."""
    return wanted == JobFilter(wanted.queue, wanted.states, wanted.type, wanted.prefix)


def is_open(wanted: JobFilter) -> bool:
    """Return whether jobs of all queues that are not completed are wanted: one index has them."""
    return wanted.queue is None and wanted.states is not None and State.COMPLETED.value not in wanted.states


def is_by_state(wanted: JobFilter) -> bool:
    """Return whether open jobs are filtered by state only: the index has each state in order of the ids."""
    return is_open(wanted) and wanted == JobFilter(states=wanted.states)


def open_selects(select: sql.Select[Any], jobs: sql.Table, wanted: JobFilter) -> list[sql.Select[Any]]:
    """Return the statements for open jobs, one per state: a single one would sort them."""
    return [select.where(jobs.c.state == state, _IS_OPEN) for state in sorted(wanted.states or ())]


def select_running(jobs: sql.Table, limit: int, prefix: str) -> sql.Select[Any]:
    """Return the statement for running jobs, with the columns of `RunningJob`."""
    select = sql.select(*(jobs.c[name] for name in RunningJob._fields))
    select = select.where(jobs.c.state == State.ACTIVE.value, _IS_OPEN).order_by(jobs.c.id.desc()).limit(limit)
    return select.where(jobs.c.queue.startswith(prefix, autoescape=True)) if prefix else select


def conditions(jobs: sql.Table, wanted: JobFilter, before: str) -> list[sql.ColumnElement[bool]]:
    """Return the conditions that an index can check."""
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
    if wanted.tenant is not None:
        is_own = jobs.c.queue.startswith(f"{wanted.tenant}.", autoescape=True)
        found.append(sql.or_(is_own, jobs.c.envelope.contains(wanted.naming, autoescape=True)))
    return found


def all_conditions(jobs: sql.Table, wanted: JobFilter, before: str) -> list[sql.ColumnElement[bool]]:
    """Return all conditions."""
    return [*conditions(jobs, wanted, before), *looked_at(jobs, wanted)]


def search_rows(
    connection: Connection, jobs: sql.Table, wanted: JobFilter, before: str, limit: int, most: int
) -> tuple[list[Any], str]:
    """Return rows among the next `most` that may match, and the id below which to continue; empty at the end.

    There may be one more row than `limit`. What is examined row by row is examined in portions: jobs with long texts
    take long, and others wait for the database.
    """
    newest = jobs.c.id.desc()
    ends_at = monotonic() + LOOK_SECONDS
    portion = min(FIRST_PORTION, most) if wanted.is_looked_for else most
    rows: list[Any] = []
    while True:
        fitting = conditions(jobs, wanted, before)
        last = sql.select(jobs.c.id).where(*fitting).order_by(newest).offset(portion - 1).limit(1)
        lowest = connection.execute(last).scalar() or ""
        select = sql.select(jobs).where(*fitting, jobs.c.id >= lowest, *looked_at(jobs, wanted))
        rows += connection.execute(select.order_by(newest).limit(limit + 1 - len(rows)))
        most -= portion
        if len(rows) > limit or not lowest or most <= 0 or monotonic() > ends_at:
            return rows, lowest
        before, portion = lowest, min(4 * portion, most)


class TimesOfQueues:
    """The statements for the times of a queue. They are built once, because building takes longer than running them."""

    def __init__(self, jobs: sql.Table) -> None:
        own, columns = jobs.c.queue == sql.bindparam("name"), [jobs.c[name] for name in (*Times._fields, "attempt")]
        waiting, done = jobs.c.state == State.AVAILABLE.value, jobs.c.state == State.COMPLETED.value
        self._oldest = sql.select(jobs.c.enqueued_at).where(own, waiting).order_by(jobs.c.id).limit(1)
        newest = sql.select(*columns).where(own, done).order_by(jobs.c.id.desc())
        self._newest = newest.limit(sql.bindparam("last", type_=sql.Integer))

    def read(self, connection: Connection, queue: str, last: int) -> QueueTimes:
        oldest = connection.execute(self._oldest, {"name": queue}).scalar()
        if not last:
            return times_of(oldest, ())
        rows = connection.execute(self._newest, {"name": queue, "last": last})
        # A retried job has waited for its retries, too.
        return times_of(oldest, [Times(*row[:-1]) for row in rows if row[-1] <= 1])
