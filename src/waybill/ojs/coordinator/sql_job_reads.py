"""Read-only queries about jobs: pages, searches, groups of failures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Any, Final

import msgspec
import sqlalchemy as sql
from sqlalchemy.engine import Engine

from waybill.ojs.coordinator import sql_search
from waybill.ojs.coordinator.database.tables import COUNTS, FAILURES, JOBS, TIMES
from waybill.ojs.coordinator.failure_group import FailureGroup, Hours
from waybill.ojs.coordinator.job_fold import info_of
from waybill.ojs.coordinator.job_record import JobRecord
from waybill.ojs.coordinator.job_store import (
    PAGE_BYTES,
    HeldAttempt,
    JobDetail,
    JobFilter,
    JobStore,
    RunningJob,
    detail_of,
)
from waybill.ojs.coordinator.queue_times import QueueTimes
from waybill.ojs.coordinator.sql_search import search_rows
from waybill.ojs.spec.checkpoint import read_checkpoint
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.states import State

_SPANS: Final = 64
"""Up to this many pairs of a queue and a state, or this many jobs, each pair is queried separately."""
_FEW: Final = 2000
_AT_A_TIME: Final = 100
"""Rows that a database sends together."""
JSON_FIELDS: Final = ("error", "result", "checkpoint", "message", "envelope", "errors", "progress_data")
COLUMNS: Final = tuple(column.name for column in JOBS.columns if column.name != "fingerprint")


class SqlJobReads(JobStore):
    """The part of a store in a database that only reads jobs."""

    _engine: Engine

    def newest(
        self, queue: str | None, state: str | None, limit: int, owners: Collection[str | None] | None = None
    ) -> list[JobInfo]:
        select = sql.select(JOBS)
        time: sql.ColumnElement[Any] = JOBS.c.enqueued_at
        if queue is None:
            select = select if state is None else select.where(JOBS.c.state.concat("") == state)
            return self._newest_of(select.order_by(JOBS.c.id.desc()), limit, owners)
        select = select.where(JOBS.c.queue == queue)
        if state is not None:
            # If few jobs are in this state, select and sort them; if many, the newest are soon found along the ids.
            with self._engine.connect() as connection:
                is_rare = COUNTS.of(connection, queue, state) <= _FEW
            select = select.where((JOBS.c.state if is_rare else JOBS.c.state.concat("")) == state)
            time = time.concat("") if is_rare else time
        return self._newest_of(select.order_by(time.desc().nulls_last(), JOBS.c.id.desc()), limit, owners)

    def _newest_of(self, select: sql.Select[Any], limit: int, owners: Collection[str | None] | None) -> list[JobInfo]:
        if owners is not None:
            named = JOBS.c.owner.in_([owner for owner in owners if owner is not None])
            select = select.where(sql.or_(named, JOBS.c.owner.is_(None)) if None in owners else named)
        with self._engine.connect() as connection:
            return [info_of(record_of(row)) for row in connection.execute(select.limit(limit))]

    def page(self, wanted: JobFilter, before: str, limit: int) -> tuple[list[JobDetail], str]:
        select = sql.select(JOBS).order_by(JOBS.c.id.desc()).limit(limit + 1)
        if before:
            select = select.where(JOBS.c.id < before)
        with self._engine.connect() as connection:
            if not sql_search.is_plain(wanted):
                selects = [select.where(*sql_search.all_conditions(JOBS, wanted, before))]
            elif sql_search.is_by_state(wanted):
                selects = sql_search.open_selects(select, JOBS, wanted)
            elif wanted.queue is None and wanted.states is None and not wanted.prefix:
                selects = [select if wanted.type is None else select.where(JOBS.c.type == wanted.type)]
            else:
                selects = self._selects(select, wanted, COUNTS.pairs(connection, wanted, _SPANS + 1))
            # A large page is not read as a whole if its jobs are large.
            few = {"yield_per": _AT_A_TIME} if limit > _AT_A_TIME else {}
            found = [connection.execute(one, execution_options=few) for one in selects]
            # The first column is the id. Only the jobs of the page are fetched and decoded.
            newest = found[0] if len(found) == 1 else merge(*found, key=itemgetter(0), reverse=True)
            return _cut(newest, limit, "")

    @staticmethod
    def _selects(select: sql.Select[Any], wanted: JobFilter, pairs: Mapping[tuple[str, str], int]) -> list[Any]:
        """Return the statements of a page: the index orders the ids within one queue and one state."""
        if wanted.type is None and len(pairs) <= _SPANS:
            return [select.where(JOBS.c.queue == queue, JOBS.c.state == state) for queue, state in pairs]
        if wanted.type is not None:
            if len(pairs) <= _SPANS and sum(pairs.values()) <= _FEW:
                kind = JOBS.c.type.concat("") == wanted.type
                return [select.where(JOBS.c.queue == queue, JOBS.c.state == state, kind) for queue, state in pairs]
            select = select.where(JOBS.c.type == wanted.type)
        # The others scan the ids, and filter.
        if wanted.queue is not None:
            select = select.where(JOBS.c.queue.concat("") == wanted.queue)
        if wanted.prefix:
            select = select.where(JOBS.c.queue.startswith(wanted.prefix, autoescape=True))
        if wanted.states is not None:
            select = select.where(JOBS.c.state.concat("").in_(wanted.states))
        return [select]

    def search(self, wanted: JobFilter, before: str, limit: int, most: int) -> tuple[list[JobDetail], str]:
        if sql_search.is_plain(wanted) and (sql_search.is_by_state(wanted) or not sql_search.is_open(wanted)):
            return self.page(wanted, before, limit)
        with self._engine.connect() as connection:
            rows, last = search_rows(connection, JOBS, wanted, before, limit, most)
        return _cut(rows, limit, last)

    def running(self, limit: int, prefix: str = "") -> list[RunningJob]:
        with self._engine.connect() as connection:
            return [RunningJob(*row) for row in connection.execute(sql_search.select_running(JOBS, limit, prefix))]

    def times(self, queue: str, last: int) -> QueueTimes:
        with self._engine.connect() as connection:
            return TIMES.read(connection, queue, last)

    def failures(self, limit: int, prefix: str = "") -> list[FailureGroup]:
        with self._engine.connect() as connection:
            return FAILURES.newest(connection, limit, prefix)

    def failure_hours(self, fingerprints: Sequence[str]) -> dict[str, Hours]:
        with self._engine.connect() as connection:
            return FAILURES.hours(connection, fingerprints)

    def held(self) -> list[HeldAttempt]:
        select = sql.select(JOBS.c.id, JOBS.c.queue, JOBS.c.attempt, JOBS.c.visible_until, JOBS.c.visibility_ms).where(
            JOBS.c.visibility_ms.is_not(None), JOBS.c.state == State.ACTIVE.value
        )
        with self._engine.connect() as connection:
            return [HeldAttempt(*row) for row in connection.execute(select)]


def _cut(rows: Iterable[Sequence[object]], limit: int, last: str) -> tuple[list[JobDetail], str]:
    """Return the jobs of the first rows, and the id at which to continue: `last` if these were all."""
    found: list[JobDetail] = []
    size = 0
    for row in rows:
        if len(found) == limit or size > PAGE_BYTES:
            return found, found[-1].info.id
        size += sum(len(value) for value in row if isinstance(value, str))
        found.append(detail_of(record_of(row)))
    return found, last


def record_of(row: Sequence[object], *, for_fold: bool = False) -> JobRecord:
    """Return the job of a row. Its envelope stays JSON `for_fold`, which does not read it."""
    fields = dict(zip(COLUMNS, row, strict=False))
    envelope = fields["envelope"]
    if for_fold and isinstance(envelope, str):
        fields["envelope"] = msgspec.Raw(envelope.encode())
    for name in JSON_FIELDS:
        text = fields[name]
        if isinstance(text, str):
            fields[name] = msgspec.json.decode(text)
    fields["checkpoint"] = read_checkpoint(fields["checkpoint"])
    return JobRecord(**fields)  # type: ignore[arg-type]
