"""The state of all jobs as the events tell it, in SQLite or PostgreSQL. Needs the package sqlalchemy.

The stream is the truth, this is a view of it: the position in the stream is written in one transaction with what was
folded, so that a crash repeats or loses nothing, and a lost database is made again from the first event. Coordinators
may share a PostgreSQL database: the position is locked while one writes, and what another has folded is skipped. Each
time the view is made anew, an epoch begins: who still folds what belongs to the one before is refused.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from waybill.ojs.coordinator.failure_group import FailureGroup, Hours, fingerprint_of
from waybill.ojs.coordinator.feature_fold import Rows, StoredRow
from waybill.ojs.coordinator.job_counts import CountChanges, CountMark
from waybill.ojs.coordinator.job_fold import JobRecord, fold_all, in_the_way, info_of, is_foldable, unique_key_of
from waybill.ojs.coordinator.job_store import HeldAttempt, JobDetail, JobFilter, JobStore, RunningJob, detail_of
from waybill.ojs.coordinator.queue_times import QueueTimes
from waybill.ojs.coordinator.stream_identity import StreamMark, StreamReplaced
from waybill.ojs.spec.checkpoint import read_checkpoint
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.states import State

try:
    import sqlalchemy as sql
    from sqlalchemy.engine import Connection, Engine, make_url
    from sqlalchemy.pool import StaticPool

    from waybill.ojs.coordinator import sql_search
    from waybill.ojs.coordinator.sql_counts import CountTable, pairs_of
    from waybill.ojs.coordinator.sql_failures import FailureTable, fingerprints_of
    from waybill.ojs.coordinator.sql_search import TimesOfQueues, search_rows
except ImportError as error:
    raise ImportError("the state of jobs needs the package sqlalchemy: pip install 'waybill-amqp[state]'") from error

T = TypeVar("T")

_VERSION: Final = 15
_STREAM: Final = "events"
_VALUES_PER_SELECT: Final = 500
_SPANS: Final = 64
"""Of so many pairs of a queue and a state, or of so few jobs, each is looked at by itself."""
_FEW: Final = 2000
_JSON_FIELDS: Final = ("error", "result", "checkpoint", "message", "envelope", "errors", "progress_data")

_metadata: Final = sql.MetaData()
_jobs: Final = sql.Table(
    "waybill_job",
    _metadata,
    sql.Column("id", sql.String, primary_key=True),
    sql.Column("type", sql.String, nullable=False),
    sql.Column("queue", sql.String, nullable=False),
    sql.Column("state", sql.String, nullable=False),
    sql.Column("attempt", sql.Integer, nullable=False),
    sql.Column("rank", sql.BigInteger, nullable=False),
    *(
        sql.Column(name, sql.String)
        for name in (
            "enqueued_at", "scheduled_at", "started_at", "ended_at", "next_retry_at", "visible_until", "worker_id",
            "error", "result", "progress_message", "checkpoint", "unique_key", "created_at",
            "owner", "message", "result_expires_at", "envelope", "errors", "progress_data", "progress_at",
        )
    ),
    sql.Column("progress", sql.Float),
    sql.Column("visibility_ms", sql.Integer),
    # The last: it is no field of a job.
    sql.Column("fingerprint", sql.String),
    sql.Index("waybill_job_queue", "queue", "enqueued_at"),
    # What lists ask for: a page of a queue's jobs in a state, or of a type, the newest first.
    sql.Index("waybill_job_state", "queue", "state", "id"),
    sql.Index("waybill_job_type", "type", "id"),
    sql.Index("waybill_job_unique_key", "unique_key"),
    *sql_search.indices(),
    sql.Index(
        "waybill_job_held",
        "visibility_ms",
        sqlite_where=sql.column("visibility_ms").is_not(None),
        postgresql_where=sql.column("visibility_ms").is_not(None),
    ),
)  # fmt: skip
_positions: Final = sql.Table(
    "waybill_position",
    _metadata,
    sql.Column("stream", sql.String, primary_key=True),
    sql.Column("next_offset", sql.BigInteger, nullable=False),
    sql.Column("version", sql.Integer, nullable=False),
    sql.Column("epoch", sql.Integer, nullable=False),
    sql.Column("mark_offset", sql.BigInteger),
    sql.Column("mark_digest", sql.BigInteger),
    sql.Column("count_number", sql.BigInteger, nullable=False),
)
_counts: Final = CountTable(_metadata)
_failures: Final = FailureTable(_metadata)
_times: Final = TimesOfQueues(_jobs)
_rows: Final = sql.Table(
    "waybill_row",
    _metadata,
    sql.Column("key", sql.String(collation="C").with_variant(sql.String(), "sqlite"), primary_key=True),
    sql.Column("mark", sql.String),
    sql.Column("value", sql.String, nullable=False),
    sql.Index("waybill_row_mark", "mark", "key"),
)


class SqlJobStore(JobStore):
    """One database. Calls block for the time of a small transaction."""

    def __init__(self, database: str) -> None:
        """`database` is a SQLite file, or a URL of SQLAlchemy: `postgresql://user@host/name`.

        A view of an older form is made again from the events. Raises sqlalchemy.exc.SQLAlchemyError.
        """
        super().__init__()
        self._engine = _engine(database)
        insert = self._insert = _insert_of(self._engine)
        upsert = insert(_jobs)
        columns = [column.name for column in _jobs.columns if not column.primary_key]
        self._upsert = upsert.on_conflict_do_update(
            index_elements=["id"], set_={name: upsert.excluded[name] for name in columns}
        )
        rows = insert(_rows)
        self._upsert_row = rows.on_conflict_do_update(
            index_elements=["key"], set_={name: rows.excluded[name] for name in ("mark", "value")}
        )
        self._insert_position = insert(_positions).on_conflict_do_nothing()
        self._epoch = 0
        self._prepare()

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def clear(self) -> None:
        """Forget all jobs and the position: the view is to be made again from the first event."""
        with self._engine.begin() as connection:
            epoch = _clear(connection, _position(connection, lock=True))
        self._epoch = epoch

    def begin_anew(self) -> None:
        """Forget all jobs and the position, unless another coordinator has done so since this one began."""
        with self._engine.begin() as connection:
            position = _position(connection, lock=True)
            epoch = _clear(connection, position) if position.epoch == self._epoch else position.epoch
        self._epoch = epoch

    def begin(self) -> tuple[int, StreamMark | None]:
        """Return the offset from which on events are not folded yet, and a message before it, if one is known."""
        with self._engine.connect() as connection:
            position = _position(connection)
        self._epoch = position.epoch
        return position.next_offset, position.mark

    @property
    def next_offset(self) -> int:
        """The offset in the stream from which on events are not folded yet."""
        with self._engine.connect() as connection:
            return _position(connection).next_offset

    def probe(self) -> None:
        """Write the position as it is."""
        with self._engine.begin() as connection:
            connection.execute(sql.update(_positions).values(next_offset=_positions.c.next_offset))

    def apply(
        self, messages: Sequence[tuple[int, Sequence[ReceivedEvent]]], *, keeps_position: bool = False
    ) -> dict[str, JobInfo | None]:
        """Fold messages in one transaction."""
        verdicts: dict[str, JobInfo | None] = {}
        if not messages:
            return verdicts
        with self._engine.begin() as connection:
            position, epoch, _, number = _position(connection, lock=True)
            if epoch != self._epoch:
                raise StreamReplaced("another coordinator makes the state of jobs anew from the first event")
            arrived = [event for offset, found in messages if offset >= position for event in found]
            known = [event for offset, found in messages if offset < position for event in found]
            verdicts |= dict.fromkeys(event.id for event in known if self.features.wants(event))
            verdicts |= dict.fromkeys(self._fold_features(connection, arrived))
            events = [event for event in arrived if is_foldable(event)]
            decided = [event for event in known if is_foldable(event)]
            verdicts |= self._decided(connection, [event for event in decided if event.type == "job.reserved"])
            jobs = self._load(connection, _jobs.c.id, list(dict.fromkeys(event.subject for event in events)))
            same = self._same(connection, events, jobs)
            before = pairs_of(jobs)
            changes: dict[str, object] = {}
            groups = fingerprints_of(jobs)
            verdicts |= fold_all(events, jobs, same)
            if jobs:
                connection.execute(self._upsert, [_row(job) for job in jobs.values()])
                _failures.change(connection, self._insert, groups, jobs)
                if _counts.change(connection, self._insert, before, jobs, number + 1):
                    changes["count_number"] = number + 1
            if messages[-1][0] >= position and not keeps_position:
                changes["next_offset"] = messages[-1][0] + 1
                if self.mark is not None:
                    changes |= {"mark_offset": self.mark.offset, "mark_digest": self.mark.digest}
            if changes:
                connection.execute(sql.update(_positions).values(changes))
        return verdicts

    def newest(
        self, queue: str, state: str | None, limit: int, owners: Collection[str | None] | None = None
    ) -> list[JobInfo]:
        """Return the jobs of a queue that were enqueued last, all states unless one is given."""
        select = sql.select(_jobs).where(_jobs.c.queue == queue)
        time: sql.ColumnElement[Any] = _jobs.c.enqueued_at
        if state is not None:
            # Where few are in this state, they are found and ordered; of many, the newest are soon met.
            with self._engine.connect() as connection:
                is_rare = _counts.of(connection, queue, state) <= _FEW
            select = select.where((_jobs.c.state if is_rare else _jobs.c.state.concat("")) == state)
            time = time.concat("") if is_rare else time
        if owners is not None:
            named = _jobs.c.owner.in_([owner for owner in owners if owner is not None])
            select = select.where(sql.or_(named, _jobs.c.owner.is_(None)) if None in owners else named)
        select = select.order_by(time.desc().nulls_last(), _jobs.c.id.desc()).limit(limit)
        with self._engine.connect() as connection:
            return [info_of(_record(row)) for row in connection.execute(select)]

    def page(self, wanted: JobFilter, before: str, limit: int) -> list[JobDetail]:
        """Return jobs in the order of their ids, from the greatest on that is below `before`."""
        select = sql.select(_jobs).order_by(_jobs.c.id.desc()).limit(limit)
        if before:
            select = select.where(_jobs.c.id < before)
        with self._engine.connect() as connection:
            if not sql_search.is_plain(wanted):
                selects = [select.where(*sql_search.all_conditions(_jobs, wanted, before))]
            elif sql_search.is_by_state(wanted):
                selects = sql_search.open_selects(select, _jobs, wanted)
            elif wanted.queue is None and wanted.states is None and not wanted.prefix:
                selects = [select if wanted.type is None else select.where(_jobs.c.type == wanted.type)]
            else:
                selects = self._selects(select, wanted, _counts.pairs(connection, wanted, _SPANS + 1))
            found = [connection.execute(one) for one in selects]
            # By the id, which is the first column. Only what is on the page is fetched, and read.
            newest = found[0] if len(found) == 1 else merge(*found, key=itemgetter(0), reverse=True)
            return [detail_of(_record(row)) for row in islice(newest, limit)]

    @staticmethod
    def _selects(select: sql.Select[Any], wanted: JobFilter, pairs: Mapping[tuple[str, str], int]) -> list[Any]:
        """Return what finds a page: the index has the order of the ids within one queue and one state."""
        if wanted.type is None and len(pairs) <= _SPANS:
            return [select.where(_jobs.c.queue == queue, _jobs.c.state == state) for queue, state in pairs]
        if wanted.type is not None:
            if len(pairs) <= _SPANS and sum(pairs.values()) <= _FEW:
                kind = _jobs.c.type.concat("") == wanted.type
                return [select.where(_jobs.c.queue == queue, _jobs.c.state == state, kind) for queue, state in pairs]
            select = select.where(_jobs.c.type == wanted.type)
        # The others go along the ids, and leave out what does not fit.
        if wanted.queue is not None:
            select = select.where(_jobs.c.queue.concat("") == wanted.queue)
        if wanted.prefix:
            select = select.where(_jobs.c.queue.startswith(wanted.prefix, autoescape=True))
        if wanted.states is not None:
            select = select.where(_jobs.c.state.concat("").in_(wanted.states))
        return [select]

    def search(self, wanted: JobFilter, before: str, limit: int, most: int) -> tuple[list[JobDetail], str]:
        """Return what `page` does, of the next `most` jobs only, and the id below which to go on."""
        if sql_search.is_plain(wanted) and (sql_search.is_by_state(wanted) or not sql_search.is_open(wanted)):
            found = self.page(wanted, before, limit + 1)
            return found[:limit], found[limit - 1].info.id if len(found) > limit else ""
        with self._engine.connect() as connection:
            rows, last = search_rows(connection, _jobs, wanted, before, limit, most)
        return [detail_of(_record(row)) for row in rows], last

    def running(self, limit: int, prefix: str = "") -> list[RunningJob]:
        """Return the jobs that run, the greatest ids first."""
        with self._engine.connect() as connection:
            return [RunningJob(*row) for row in connection.execute(sql_search.select_running(_jobs, limit, prefix))]

    def times(self, queue: str, last: int) -> QueueTimes:
        """Return the times of a queue, by its `last` completed jobs."""
        with self._engine.connect() as connection:
            return _times.read(connection, queue, last)

    def failures(self, limit: int, prefix: str = "") -> list[FailureGroup]:
        """Return the groups of jobs that have failed for good, the one that grew last first."""
        with self._engine.connect() as connection:
            return _failures.newest(connection, limit, prefix)

    def failure_hours(self, fingerprints: Sequence[str]) -> dict[str, Hours]:
        """Return how many jobs of some groups failed in which hour."""
        with self._engine.connect() as connection:
            return _failures.hours(connection, fingerprints)

    def held(self) -> list[HeldAttempt]:
        """Return the attempts that are under way and have sent heartbeats."""
        select = sql.select(
            _jobs.c.id, _jobs.c.queue, _jobs.c.attempt, _jobs.c.visible_until, _jobs.c.visibility_ms
        ).where(_jobs.c.visibility_ms.is_not(None), _jobs.c.state == State.ACTIVE.value)
        with self._engine.connect() as connection:
            return [HeldAttempt(*row) for row in connection.execute(select)]

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many jobs there are by queue and state."""
        with self._engine.connect() as connection:
            return _counts.all(connection)

    def count_changes(self, since: CountMark | None) -> CountChanges:
        """Return the counts that have changed since a mark, all of them for None."""
        with self._engine.connect() as connection:
            position = _position(connection)
            return _counts.changes(connection, CountMark(position.epoch, position.count_number), since)

    def _fold_features(self, connection: Connection, events: Sequence[ReceivedEvent]) -> list[str]:
        rows = Rows(functools.partial(_load_rows, connection))
        folded = self.features.fold_all(rows, events)
        put, gone = rows.changes()
        if put:
            values = [{"key": key, "mark": row.mark, "value": row.value.decode()} for key, row in put.items()]
            connection.execute(self._upsert_row, values)
        for chunk in _chunks(list(gone)):
            connection.execute(sql.delete(_rows).where(_rows.c.key.in_(chunk)))
        return folded

    def _rows_of(self, keys: Sequence[str]) -> dict[str, StoredRow]:
        with self._engine.connect() as connection:
            return _load_rows(connection, keys)

    def _marked(self, mark: str, limit: int) -> list[tuple[str, StoredRow]]:
        select = sql.select(_rows).where(_rows.c.mark == mark).order_by(_rows.c.key).limit(limit)
        with self._engine.connect() as connection:
            return list(_stored_rows(connection.execute(select)).items())

    def _listed(self, prefix: str, limit: int, after: str) -> list[tuple[str, StoredRow]]:
        # The greatest character that a key can have: what begins with the prefix is below it.
        within = _rows.c.key > max(prefix, after), _rows.c.key < prefix + "\U0010ffff"
        select = sql.select(_rows).where(*within).order_by(_rows.c.key).limit(limit)
        with self._engine.connect() as connection:
            return list(_stored_rows(connection.execute(select)).items())

    def _find(self, job_id: str) -> JobRecord | None:
        with self._engine.connect() as connection:
            return self._load(connection, _jobs.c.id, [job_id]).get(job_id)

    def _prepare(self) -> None:
        with self._engine.begin() as connection:
            if sql.inspect(connection).has_table(_positions.name):
                version = connection.execute(sql.select(_positions.c.version)).scalar()
                if version not in {None, _VERSION}:
                    _metadata.drop_all(connection)
            _metadata.create_all(connection)
            new = {"stream": _STREAM, "next_offset": 0, "version": _VERSION, "epoch": 1, "count_number": 0}
            connection.execute(self._insert_position.values(new))
            self._epoch = _position(connection).epoch

    def _decided(self, connection: Connection, events: Sequence[ReceivedEvent]) -> dict[str, JobInfo | None]:
        """Return what another coordinator has found for reservations that it folded into this database."""
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
        """Return the jobs that reservations compete with, by their fingerprint, as the very records of `jobs`."""
        same: defaultdict[object, list[JobRecord]] = defaultdict(list)
        keys = dict.fromkeys(unique_key_of(event) for event in events if event.type == "job.reserved")
        if keys:
            for job_id, job in self._load(connection, _jobs.c.unique_key, list(keys)).items():
                same[job.unique_key].append(jobs.setdefault(job_id, job))
        return same

    @staticmethod
    def _load(connection: Connection, column: sql.Column[str], values: Sequence[object]) -> dict[str, JobRecord]:
        found: dict[str, JobRecord] = {}
        for chunk in _chunks(values):
            rows = connection.execute(sql.select(_jobs).where(column.in_(chunk)))
            found.update((row[0], _record(row)) for row in rows)
        return found


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _VALUES_PER_SELECT):
        yield values[start : start + _VALUES_PER_SELECT]


def _load_rows(connection: Connection, keys: Sequence[str]) -> dict[str, StoredRow]:
    found: dict[str, StoredRow] = {}
    for chunk in _chunks(keys):
        found |= _stored_rows(connection.execute(sql.select(_rows).where(_rows.c.key.in_(chunk))))
    return found


def _stored_rows(result: Iterable[Any]) -> dict[str, StoredRow]:
    return {key: StoredRow(value.encode(), mark) for key, mark, value in result}


def _engine(database: str) -> Engine:
    if "://" in database:
        url = make_url(database)
        if url.drivername == "postgresql":
            # The driver that the extra brings.
            url = url.set(drivername="postgresql+psycopg")
        engine = sql.create_engine(url)
    else:
        url = make_url("sqlite://").set(database=database)
        engine = sql.create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    if engine.dialect.name == "sqlite":
        sql.event.listen(engine, "connect", _set_up_sqlite)
        sql.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("begin immediate"))
    return engine


def _insert_of(engine: Engine) -> Callable[[sql.Table], Any]:
    """Return `insert` of the engine's database; a dialect brings all of its drivers, so only that one is loaded."""
    if engine.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - see above

        return postgresql.insert
    from sqlalchemy.dialects import sqlite  # noqa: PLC0415 - see above

    return sqlite.insert


def _set_up_sqlite(connection: object, _record: object) -> None:
    # The driver would begin transactions by itself, and not before the first write.
    connection.isolation_level = None  # type: ignore[attr-defined]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("pragma journal_mode = wal")
    cursor.execute("pragma synchronous = normal")
    cursor.close()


class _Position(NamedTuple):
    """Where the view is in the stream, and how often it was made anew."""

    next_offset: int
    epoch: int
    mark: StreamMark | None
    count_number: int
    """That of the last change of counts."""


def _position(connection: Connection, *, lock: bool = False) -> _Position:
    columns = _positions.c
    fields = columns.next_offset, columns.epoch, columns.mark_offset, columns.mark_digest, columns.count_number
    select = sql.select(*fields).where(columns.stream == _STREAM)
    row = connection.execute(select.with_for_update() if lock else select).one()
    return _Position(row[0], row[1], None if row[2] is None else StreamMark(row[2], row[3]), row[4])


def _clear(connection: Connection, position: _Position) -> int:
    """Forget everything, and begin an epoch, which is returned."""
    connection.execute(sql.delete(_jobs))
    _counts.clear(connection)
    connection.execute(sql.delete(_rows))
    _failures.clear(connection)
    epoch = position.epoch + 1
    new = {"next_offset": 0, "epoch": epoch, "mark_offset": None, "mark_digest": None, "count_number": 0}
    connection.execute(sql.update(_positions).values(new))
    return epoch


def _row(job: JobRecord) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(job, name) for name in _COLUMNS}
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


_COLUMNS: Final = tuple(column.name for column in _jobs.columns if column.name != "fingerprint")
