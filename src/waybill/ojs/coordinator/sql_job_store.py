"""The job state in SQLite or PostgreSQL. Needs the packages sqlalchemy and alembic.

The stream is the source of truth. The position in the stream is written in the same transaction as the folded events,
so a crash neither repeats nor loses anything, and a lost database is rebuilt from the first event. Coordinators may
share a PostgreSQL database: the position is locked while one writes, and events that another has folded are skipped.
Each rebuild begins an epoch; folds of an earlier epoch are refused. After a fail-over to a replica that lacks some
changes, the position is behind what was confirmed to this store. That begins an epoch, too, and all coordinators fold
again from the database's position on.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeVar

import msgspec

from waybill.ojs.coordinator.failure_group import FailureGroup, Hours, fingerprint_of
from waybill.ojs.coordinator.feature_fold import Rows, StoredRow
from waybill.ojs.coordinator.job_counts import CountChanges, CountMark
from waybill.ojs.coordinator.job_fold import JobRecord, fold_all, in_the_way, info_of, is_foldable, unique_key_of
from waybill.ojs.coordinator.job_store import (
    Forgotten,
    HeldAttempt,
    JobDetail,
    JobFilter,
    JobStore,
    RunningJob,
    detail_of,
)
from waybill.ojs.coordinator.queue_times import QueueTimes
from waybill.ojs.coordinator.stream_identity import StreamMark, StreamReplaced
from waybill.ojs.spec.checkpoint import read_checkpoint
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.states import State

try:
    import sqlalchemy as sql
    from sqlalchemy.engine import Connection

    from waybill.ojs.coordinator import sql_search
    from waybill.ojs.coordinator.database.arrays import array_of
    from waybill.ojs.coordinator.database.engine import OpenConnections, insert_of, open_engine
    from waybill.ojs.coordinator.database.partitions import Partitions
    from waybill.ojs.coordinator.database.position import Position, begin_epoch, forget_all, read_position
    from waybill.ojs.coordinator.database.retention import forget_old
    from waybill.ojs.coordinator.database.schema import migrate
    from waybill.ojs.coordinator.database.tables import COUNTS, FAILURES, JOBS, POSITIONS, ROWS, STREAM, TIMES
    from waybill.ojs.coordinator.database.upsert import Upsert
    from waybill.ojs.coordinator.sql_counts import pairs_of
    from waybill.ojs.coordinator.sql_failures import fingerprints_of
    from waybill.ojs.coordinator.sql_search import search_rows
except ImportError as error:
    text = "the state of jobs needs the packages sqlalchemy and alembic: pip install 'waybill-amqp[state]'"
    raise ImportError(text) from error

T = TypeVar("T")

POSTGRESQL_FOLD_BYTES: Final = 1024 * 1024
_VALUES_PER_SELECT: Final = 500
_SPANS: Final = 64
"""Up to this many pairs of a queue and a state, or this many jobs, each pair is queried separately."""
_FEW: Final = 2000
_JSON_FIELDS: Final = ("error", "result", "checkpoint", "message", "envelope", "errors", "progress_data")


class SqlJobStore(JobStore):
    """One database. Calls block for the duration of a small transaction."""

    def __init__(self, database: str, keep_days: int | None = None) -> None:
        """`database` is a SQLite file, or a URL of SQLAlchemy or libpq: `postgresql://user@host/name`.

        Its tables are created or migrated. With `keep_days`, `forget_old` deletes jobs that many days after their end.
        Raises sqlalchemy.exc.SQLAlchemyError, and DatabaseUnusable if a newer Waybill has migrated the database.
        """
        super().__init__()
        self._engine = open_engine(database)
        self._connections = OpenConnections(self._engine)
        insert = self._insert = insert_of(self._engine)
        self._upsert = Upsert(self._engine, JOBS, insert)
        self._upsert_row = Upsert(self._engine, ROWS, insert)
        self._add_counts = Upsert(self._engine, COUNTS.table, insert, adds=["jobs"])
        self._keep_days = keep_days
        self._partitions = Partitions(keep_days) if self._engine.dialect.name == "postgresql" else None
        if self._partitions is not None:
            # Each transaction waits for a disk. A job with several events in it is written once.
            self.fold_bytes = POSTGRESQL_FOLD_BYTES
        self._epoch = 0
        self._folded = 0
        """The end of what this store has folded: the database has confirmed everything below this offset."""
        try:
            migrate(self._engine)
            self._prepare()
        except BaseException:
            self._engine.dispose()
            raise

    def close(self) -> None:
        self._engine.dispose()

    def cut(self) -> None:
        self._connections.cut()

    def clear(self) -> None:
        with self._engine.begin() as connection:
            epoch = forget_all(connection, read_position(connection, lock=True))
        self._epoch, self._folded = epoch, 0

    def begin_anew(self) -> None:
        with self._engine.begin() as connection:
            position = read_position(connection, lock=True)
            epoch = forget_all(connection, position) if position.epoch == self._epoch else position.epoch
        self._epoch = epoch

    def begin(self) -> tuple[int, StreamMark | None]:
        with self._engine.connect() as connection:
            position = read_position(connection)
        self._epoch, self._folded = position.epoch, position.next_offset
        if self._partitions is not None:
            self._partitions.forget()
        return position.next_offset, position.mark

    @property
    def next_offset(self) -> int:
        with self._engine.connect() as connection:
            return read_position(connection).next_offset

    def probe(self) -> None:
        """Write the unchanged position."""
        with self._engine.begin() as connection:
            connection.execute(sql.update(POSITIONS).values(next_offset=POSITIONS.c.next_offset))

    def forget_old(self, now: datetime) -> Forgotten:
        if self._keep_days is None:
            return Forgotten(0, is_more=False)
        with self._engine.begin() as connection:
            read_position(connection, lock=True)
            found = forget_old(connection, self._keep_days, now)
        if self._partitions is not None:
            self._partitions.forget()
        return found

    def apply(
        self, messages: Sequence[tuple[int, Sequence[ReceivedEvent]]], *, keeps_position: bool = False
    ) -> dict[str, JobInfo | None]:
        """Fold messages in one transaction."""
        if not messages:
            return {}
        with self._engine.begin() as connection:
            position = read_position(connection, lock=True)
            if position.epoch != self._epoch:
                raise StreamReplaced("another coordinator is rebuilding the job state, or has found it to be behind")
            is_behind = position.next_offset < self._folded
            if is_behind:
                begin_epoch(connection, position)
            else:
                verdicts = self._apply(connection, position, messages, keeps_position=keeps_position)
        if is_behind:
            text = "the database has lost committed changes (was a stale replica promoted?): its position is"
            raise StreamReplaced(f"{text} {position.next_offset}, after {self._folded}. Events are folded again")
        if not keeps_position:
            self._folded = max(self._folded, messages[-1][0] + 1)
        return verdicts

    def _apply(
        self,
        connection: Connection,
        before: Position,
        messages: Sequence[tuple[int, Sequence[ReceivedEvent]]],
        *,
        keeps_position: bool,
    ) -> dict[str, JobInfo | None]:
        position = before.next_offset
        arrived = [event for offset, found in messages if offset >= position for event in found]
        known = [event for offset, found in messages if offset < position for event in found]
        verdicts: dict[str, JobInfo | None] = dict.fromkeys(event.id for event in known if self.features.wants(event))
        verdicts |= dict.fromkeys(self._fold_features(connection, arrived))
        events = [event for event in arrived if is_foldable(event)]
        decided = [event for event in known if is_foldable(event)]
        verdicts |= self._decided(connection, [event for event in decided if event.type == "job.reserved"])
        jobs = self._load(connection, JOBS.c.id, list(dict.fromkeys(event.subject for event in events)))
        same = self._same(connection, events, jobs)
        pairs = pairs_of(jobs)
        changes: dict[str, object] = {}
        groups = fingerprints_of(jobs)
        verdicts |= fold_all(events, jobs, same)
        if jobs:
            if self._partitions is not None:
                self._partitions.ensure(connection, jobs)
            self._upsert.execute(connection, [_row(job) for job in jobs.values()])
            FAILURES.change(connection, self._insert, groups, jobs)
            if COUNTS.change(connection, self._add_counts, pairs, jobs, before.count_number + 1):
                changes["count_number"] = before.count_number + 1
        if messages[-1][0] >= position and not keeps_position:
            changes["next_offset"] = messages[-1][0] + 1
            if self.mark is not None:
                changes |= {"mark_offset": self.mark.offset, "mark_digest": self.mark.digest}
        if changes:
            connection.execute(sql.update(POSITIONS).values(changes))
        return verdicts

    def newest(
        self, queue: str, state: str | None, limit: int, owners: Collection[str | None] | None = None
    ) -> list[JobInfo]:
        select = sql.select(JOBS).where(JOBS.c.queue == queue)
        time: sql.ColumnElement[Any] = JOBS.c.enqueued_at
        if state is not None:
            # If few jobs are in this state, select and sort them; if many, the newest are soon found along the ids.
            with self._engine.connect() as connection:
                is_rare = COUNTS.of(connection, queue, state) <= _FEW
            select = select.where((JOBS.c.state if is_rare else JOBS.c.state.concat("")) == state)
            time = time.concat("") if is_rare else time
        if owners is not None:
            named = JOBS.c.owner.in_([owner for owner in owners if owner is not None])
            select = select.where(sql.or_(named, JOBS.c.owner.is_(None)) if None in owners else named)
        select = select.order_by(time.desc().nulls_last(), JOBS.c.id.desc()).limit(limit)
        with self._engine.connect() as connection:
            return [info_of(_record(row)) for row in connection.execute(select)]

    def page(self, wanted: JobFilter, before: str, limit: int) -> list[JobDetail]:
        select = sql.select(JOBS).order_by(JOBS.c.id.desc()).limit(limit)
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
            found = [connection.execute(one) for one in selects]
            # The first column is the id. Only the jobs of the page are fetched and decoded.
            newest = found[0] if len(found) == 1 else merge(*found, key=itemgetter(0), reverse=True)
            return [detail_of(_record(row)) for row in islice(newest, limit)]

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
            found = self.page(wanted, before, limit + 1)
            return found[:limit], found[limit - 1].info.id if len(found) > limit else ""
        with self._engine.connect() as connection:
            rows, last = search_rows(connection, JOBS, wanted, before, limit, most)
        return [detail_of(_record(row)) for row in rows], last

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

    def counts(self) -> dict[tuple[str, str], int]:
        with self._engine.connect() as connection:
            return COUNTS.all(connection)

    def count_changes(self, since: CountMark | None) -> CountChanges:
        with self._engine.connect() as connection:
            position = read_position(connection)
            return COUNTS.changes(connection, CountMark(position.epoch, position.count_number), since)

    def _fold_features(self, connection: Connection, events: Sequence[ReceivedEvent]) -> list[str]:
        rows = Rows(functools.partial(self._load_rows, connection))
        folded = self.features.fold_all(rows, events)
        put, gone = rows.changes()
        if put:
            values = [{"key": key, "mark": row.mark, "value": row.value.decode()} for key, row in put.items()]
            self._upsert_row.execute(connection, values)
        for chunk in _chunks(list(gone)):
            connection.execute(sql.delete(ROWS).where(ROWS.c.key.in_(chunk)))
        return folded

    def _rows_of(self, keys: Sequence[str]) -> dict[str, StoredRow]:
        with self._engine.connect() as connection:
            return self._load_rows(connection, keys)

    def _marked(self, mark: str, limit: int) -> list[tuple[str, StoredRow]]:
        select = sql.select(ROWS).where(ROWS.c.mark == mark).order_by(ROWS.c.key).limit(limit)
        with self._engine.connect() as connection:
            return list(_stored_rows(connection.execute(select)).items())

    def _listed(self, prefix: str, limit: int, after: str) -> list[tuple[str, StoredRow]]:
        # Above the greatest character of a key, so it bounds all keys with the prefix.
        within = ROWS.c.key > max(prefix, after), ROWS.c.key < prefix + "\U0010ffff"
        select = sql.select(ROWS).where(*within).order_by(ROWS.c.key).limit(limit)
        with self._engine.connect() as connection:
            return list(_stored_rows(connection.execute(select)).items())

    def _find(self, job_id: str) -> JobRecord | None:
        with self._engine.connect() as connection:
            return self._load(connection, JOBS.c.id, [job_id]).get(job_id)

    def _prepare(self) -> None:
        with self._engine.begin() as connection:
            new = {"stream": STREAM, "next_offset": 0, "epoch": 1, "count_number": 0}
            connection.execute(self._insert(POSITIONS).values(new).on_conflict_do_nothing())
            self._epoch = read_position(connection).epoch

    def _decided(self, connection: Connection, events: Sequence[ReceivedEvent]) -> dict[str, JobInfo | None]:
        """Return the outcome of reservations that another coordinator has folded into this database."""
        verdicts: dict[str, JobInfo | None] = {}
        same = self._same(connection, events, {})
        for event in events:
            candidates = same[unique_key_of(event)]
            if any(job.id == event.subject for job in candidates):
                verdicts[event.id] = None
            elif candidates:
                verdicts[event.id] = info_of(in_the_way(candidates, event) or candidates[0])
        return verdicts

    def _same(
        self, connection: Connection, events: Sequence[ReceivedEvent], jobs: dict[str, JobRecord]
    ) -> defaultdict[object, list[JobRecord]]:
        """Return the jobs that reservations compete with, by fingerprint; jobs in `jobs` are the same objects."""
        same: defaultdict[object, list[JobRecord]] = defaultdict(list)
        keys = dict.fromkeys(unique_key_of(event) for event in events if event.type == "job.reserved")
        if keys:
            for job_id, job in self._load(connection, JOBS.c.unique_key, list(keys)).items():
                same[job.unique_key].append(jobs.setdefault(job_id, job))
        return same

    def _load(self, connection: Connection, column: sql.Column[str], values: Sequence[object]) -> dict[str, JobRecord]:
        return {row[0]: _record(row) for row in self._matching(connection, JOBS, column, values)}

    def _matching(
        self, connection: Connection, table: sql.Table, column: sql.Column[str], values: Sequence[object]
    ) -> Iterator[Any]:
        """Yield the rows whose column has one of these values."""
        if self._partitions is not None and values:
            texts = [str(value) for value in values]
            # The range lets PostgreSQL skip partitions, whatever plan it has.
            bounds = {"texts": array_of(texts), "lowest": min(texts), "highest": max(texts)}
            yield from connection.execute(_select_any(column), bounds)
            return
        for chunk in _chunks(values):
            yield from connection.execute(sql.select(table).where(column.in_(chunk)))

    def _load_rows(self, connection: Connection, keys: Sequence[str]) -> dict[str, StoredRow]:
        return _stored_rows(self._matching(connection, ROWS, ROWS.c.key, keys))


@functools.cache
def _select_any(column: sql.Column[str]) -> sql.Select[Any]:
    """Return a statement for the rows whose column has one of the texts of an array."""
    wanted = sql.cast(sql.bindparam("texts", type_=sql.String), sql.ARRAY(sql.String))
    lowest, highest = (sql.bindparam(name, type_=column.type) for name in ("lowest", "highest"))
    return sql.select(column.table).where(column == sql.any_(wanted), column >= lowest, column <= highest)


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _VALUES_PER_SELECT):
        yield values[start : start + _VALUES_PER_SELECT]


def _stored_rows(result: Iterable[Any]) -> dict[str, StoredRow]:
    return {key: StoredRow(value.encode(), mark) for key, mark, value in result}


def _row(job: JobRecord) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(job, name) for name in _COLUMNS}
    row["fingerprint"] = fingerprint_of(job)
    for name in _JSON_FIELDS:
        value = row[name]
        if value is not None:
            row[name] = msgspec.json.encode(value).decode()
    return row


def _record(row: Sequence[object]) -> JobRecord:
    fields = dict(zip(_COLUMNS, row, strict=False))
    for name in _JSON_FIELDS:
        text = fields[name]
        if isinstance(text, str):
            fields[name] = msgspec.json.decode(text)
    fields["checkpoint"] = read_checkpoint(fields["checkpoint"])
    return JobRecord(**fields)  # type: ignore[arg-type]


_COLUMNS: Final = tuple(column.name for column in JOBS.columns if column.name != "fingerprint")
