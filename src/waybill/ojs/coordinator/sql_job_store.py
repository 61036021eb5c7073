"""The job state in SQLite or PostgreSQL. Needs the packages sqlalchemy and alembic.

The stream is the source of truth. The position in the stream is written in the same transaction as the folded events,
so a crash neither repeats nor loses anything, and a lost database is rebuilt from the first event. Coordinators may
share a PostgreSQL database: the position is locked while one writes, and events that another has folded are skipped.
Each rebuild begins an epoch; folds of an earlier epoch are refused. After a fail-over to a replica that lacks some
changes, the position is behind what was confirmed to this store. That begins an epoch, too, and all coordinators fold
again from the database's position on.

The stream may have partitions, each with its own position, so that coordinators fold at the same time. What is written
about a job belongs to the partition of its id. A fold locks the positions of all partitions that its events belong to:
one, unless somebody has put events where they do not belong.
"""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from waybill.ojs.coordinator.failure_group import fingerprint_of
from waybill.ojs.coordinator.feature_fold import Rows, StoredRow
from waybill.ojs.coordinator.job_counts import CountChanges, CountMark
from waybill.ojs.coordinator.job_fold import fold_all, in_the_way, info_of, is_foldable, unique_key_of
from waybill.ojs.coordinator.job_record import JobRecord
from waybill.ojs.coordinator.job_store import Forgotten
from waybill.ojs.coordinator.stream_identity import StreamMark, StreamReplaced
from waybill.ojs.errors import DatabaseUnusable
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.event_partitions import partition_of
from waybill.ojs.spec.events import ReceivedEvent

try:
    import sqlalchemy as sql
    from sqlalchemy.engine import Connection

    from waybill.ojs.coordinator.database import members
    from waybill.ojs.coordinator.database.arrays import array_of
    from waybill.ojs.coordinator.database.deadlocks import Deadlock, deadlocks_named
    from waybill.ojs.coordinator.database.engine import OpenConnections, insert_of, open_engine
    from waybill.ojs.coordinator.database.faults import is_fault
    from waybill.ojs.coordinator.database.partitions import Partitions
    from waybill.ojs.coordinator.database.position import (
        Position,
        add_positions,
        begin_epoch,
        count_mark_of,
        forget_all,
        read_positions,
        stream_of,
    )
    from waybill.ojs.coordinator.database.retention import forget_old
    from waybill.ojs.coordinator.database.schema import migrate
    from waybill.ojs.coordinator.database.tables import COUNTS, FAILURES, JOBS, POSITIONS, ROWS
    from waybill.ojs.coordinator.database.unique_locks import lock_keys
    from waybill.ojs.coordinator.database.upsert import Upsert
    from waybill.ojs.coordinator.sql_counts import pairs_of
    from waybill.ojs.coordinator.sql_failures import fingerprints_of
    from waybill.ojs.coordinator.sql_job_reads import COLUMNS, JSON_FIELDS, SqlJobReads, record_of
except ImportError as error:
    text = "the state of jobs needs the packages sqlalchemy and alembic: pip install 'waybill-amqp[state]'"
    raise ImportError(text) from error

T = TypeVar("T")

SQLITE_FOLD_BYTES: Final = 256 * 1024
POSTGRESQL_FOLD_BYTES: Final = 1024 * 1024
DEADLOCK_TRIES: Final = 3
_VALUES_PER_SELECT: Final = 500


class SqlJobStore(SqlJobReads):
    """One database. Calls block for the duration of a small transaction."""

    def __init__(self, database: str, keep_days: int | None = None, event_partitions: int = 1) -> None:
        """`database` is a SQLite file, or a URL of SQLAlchemy or libpq: `postgresql://user@host/name`.

        Its tables are created or migrated. With `keep_days`, `forget_old` deletes jobs that many days after their end.
        `event_partitions` is the number of partitions of the event stream. Raises sqlalchemy.exc.SQLAlchemyError, and
        DatabaseUnusable if a newer Waybill has migrated the database, or if it was folded from more partitions.
        """
        super().__init__()
        self._engine = open_engine(database)
        self.kind = self._engine.dialect.name
        self._connections = OpenConnections(self._engine)
        insert = self._insert = insert_of(self._engine)
        self._upsert = Upsert(self._engine, JOBS, insert)
        self._upsert_row = Upsert(self._engine, ROWS, insert)
        self._add_counts = Upsert(self._engine, COUNTS.table, insert, adds=["jobs"])
        self._keep_days = keep_days
        self._partitions = Partitions(keep_days) if self.kind == "postgresql" else None
        # Each transaction waits for a disk. A job with several events in it is written once.
        self.fold_bytes = SQLITE_FOLD_BYTES if self._partitions is None else POSTGRESQL_FOLD_BYTES
        self._event_partitions = event_partitions
        self._epochs = dict.fromkeys(range(event_partitions), 0)
        self._folded = dict.fromkeys(range(event_partitions), 0)
        """By partition, the offset from which on nothing is known to be folded: the database has confirmed the rest."""
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
            epoch = forget_all(connection, read_positions(connection, lock=True))
        self._epochs, self._folded = dict.fromkeys(self._epochs, epoch), dict.fromkeys(self._folded, 0)

    def begin_anew(self, partition: int = 0) -> None:
        with self._engine.begin() as connection:
            positions = read_positions(connection, lock=True)
            epoch = positions[partition].epoch
            if epoch == self._epochs[partition]:
                epoch = forget_all(connection, positions)
        self._epochs[partition] = epoch

    def begin(self, partition: int = 0) -> tuple[int, StreamMark | None]:
        with self._engine.connect() as connection:
            positions = read_positions(connection)
        self._check(len(positions))
        position = positions[partition]
        self._epochs[partition], self._folded[partition] = position.epoch, position.next_offset
        if self._partitions is not None:
            self._partitions.forget()
        return position.next_offset, position.mark

    @property
    def next_offset(self) -> int:
        with self._engine.connect() as connection:
            return read_positions(connection, [0])[0].next_offset

    def is_at_fault(self, error: Exception) -> bool:
        return is_fault(error)

    def probe(self) -> None:
        """Write the unchanged position."""
        with self._engine.begin() as connection:
            connection.execute(sql.update(POSITIONS).values(next_offset=POSITIONS.c.next_offset))

    def ping(self) -> bool:
        if self.kind == "sqlite":
            # A file has one connection, which the store's thread uses.
            return False
        with self._engine.connect() as connection:
            connection.execute(sql.text("select 1"))
        return True

    def forget_old(self, now: datetime) -> Forgotten:
        if self._keep_days is None:
            return Forgotten(0, is_more=False)
        with self._engine.begin() as connection:
            read_positions(connection, lock=True)
            found = forget_old(connection, self._keep_days, now)
        if self._partitions is not None:
            self._partitions.forget()
        return found

    def apply(
        self,
        messages: Sequence[tuple[int, Sequence[ReceivedEvent]]],
        *,
        partition: int = 0,
        keeps_position: bool = False,
    ) -> dict[str, JobInfo | None]:
        """Fold messages in one transaction."""
        if not messages:
            return {}
        needed = {partition}
        if self._event_partitions > 1:
            count = self._event_partitions
            needed.update(partition_of(event.type, event.subject, count) for _, found in messages for event in found)
        fold = functools.partial(self._apply_locked, needed, partition, messages, keeps_position=keeps_position)
        for _ in range(DEADLOCK_TRIES):
            with contextlib.suppress(Deadlock):
                return fold()
        return fold()

    def _apply_locked(
        self,
        needed: Collection[int],
        partition: int,
        messages: Sequence[tuple[int, Sequence[ReceivedEvent]]],
        *,
        keeps_position: bool,
    ) -> dict[str, JobInfo | None]:
        with deadlocks_named(), self._engine.begin() as connection:
            position = read_positions(connection, needed, lock=True)[partition]
            is_behind = self._is_behind(partition, position)
            if not is_behind:
                verdicts = self._apply(connection, partition, position, messages, keeps_position=keeps_position)
        if is_behind:
            self._begin_epoch(partition, position)
        if not keeps_position:
            self._folded[partition] = max(self._folded[partition], messages[-1][0] + 1)
        return verdicts

    def follow(self, partition: int) -> int:
        """Return the offset from which on nobody has folded a partition."""
        with self._connected(partition) as (_, position):
            self._folded[partition] = position.next_offset
        return position.next_offset

    def check(self, partition: int = 0) -> None:
        with self._connected(partition):
            pass

    @contextlib.contextmanager
    def _connected(self, partition: int) -> Iterator[tuple[Connection, Position]]:
        """Connect to a database that has not lost what it had confirmed of a partition. Raises StreamReplaced.

        After a fail-over, the pool connects to another server, and nothing else tells.
        """
        with self._engine.connect() as connection:
            position = read_positions(connection, [partition])[partition]
            is_behind = self._is_behind(partition, position)
            if not is_behind:
                yield connection, position
        if is_behind:
            self._begin_epoch(partition, position)

    def _is_behind(self, partition: int, position: Position) -> bool:
        """Whether a database has lost what it had confirmed. Raises StreamReplaced if that is known."""
        if position.epoch != self._epochs[partition]:
            raise StreamReplaced("another coordinator is rebuilding the job state, or has found it to be behind")
        return position.next_offset < self._folded[partition]

    def _begin_epoch(self, partition: int, found: Position) -> NoReturn:
        """Have everybody fold again from the positions of the database. Raises StreamReplaced."""
        with self._engine.begin() as connection:
            positions = read_positions(connection, lock=True)
            if positions[partition].epoch == self._epochs[partition]:
                begin_epoch(connection, positions)
        text = "the database has lost committed changes (was a stale replica promoted?): its position is"
        raise StreamReplaced(f"{text} {found.next_offset}, after {self._folded[partition]}. Events are folded again")

    def recall(self, events: Sequence[ReceivedEvent], partition: int = 0) -> dict[str, JobInfo | None]:
        self.changed = {}
        with self._connected(partition) as (connection, _):
            return self._recalled(connection, events)

    def _recalled(self, connection: Connection, events: Sequence[ReceivedEvent]) -> dict[str, JobInfo | None]:
        verdicts: dict[str, JobInfo | None] = dict.fromkeys(event.id for event in events if self.features.wants(event))
        reservations = [event for event in _reservations(events) if is_foldable(event)]
        return verdicts | self._decided(connection, reservations)

    def _apply(
        self,
        connection: Connection,
        partition: int,
        before: Position,
        messages: Sequence[tuple[int, Sequence[ReceivedEvent]]],
        *,
        keeps_position: bool,
    ) -> dict[str, JobInfo | None]:
        position = before.next_offset
        arrived = [event for offset, found in messages if offset >= position for event in found]
        known = [event for offset, found in messages if offset < position for event in found]
        verdicts = self._recalled(connection, known) if known else {}
        verdicts |= dict.fromkeys(self._fold_features(connection, arrived))
        events = [event for event in arrived if is_foldable(event)]
        if self._event_partitions > 1 and self._partitions is not None:
            lock_keys(connection, filter(None, map(unique_key_of, _reservations(events))))
        ids = list(dict.fromkeys(event.subject for event in events))
        jobs = self._load(connection, JOBS.c.id, ids)
        same = self._same(connection, events, jobs)
        known_jobs = {job_id: jobs[job_id] for job_id in ids if job_id in jobs}
        pairs, groups = pairs_of(known_jobs), fingerprints_of(known_jobs)
        changes: dict[str, object] = {}
        verdicts |= fold_all(events, jobs, same)
        # Others that a reservation competes with may belong to other partitions.
        written = {job_id: jobs[job_id] for job_id in ids if job_id in jobs}
        self.changed = written if self.expected else {}
        for chunk in _chunks([job_id for job_id in known_jobs if job_id not in written]):
            connection.execute(sql.delete(JOBS).where(JOBS.c.id.in_(chunk)))
        if written:
            if self._partitions is not None and partition == 0:
                self._partitions.ensure(connection, written)
            self._upsert.execute(connection, [_row(job) for job in written.values()])
        if written or known_jobs:
            FAILURES.change(connection, self._insert, groups, written)
            number = before.count_number + 1
            if COUNTS.change(connection, self._add_counts, pairs, written, number, partition):
                changes["count_number"] = number
        if messages[-1][0] >= position and not keeps_position:
            changes["next_offset"] = messages[-1][0] + 1
            mark = self.marks.get(partition)
            if mark is not None:
                changes |= {"mark_offset": mark.offset, "mark_digest": mark.digest}
        if changes:
            own = POSITIONS.c.stream == stream_of(partition)
            connection.execute(sql.update(POSITIONS).where(own).values(changes))
        return verdicts

    def counts(self) -> dict[tuple[str, str], int]:
        with self._engine.connect() as connection:
            return COUNTS.all(connection)

    def count(self, queue: str, state: str) -> int:
        with self._engine.connect() as connection:
            return COUNTS.of(connection, queue, state)

    def count_changes(self, since: CountMark | None) -> CountChanges:
        with self._engine.connect() as connection:
            now = count_mark_of(read_positions(connection))
            return COUNTS.changes(connection, now, since)

    def more_counts(self, page: CountChanges) -> CountChanges:
        with self._engine.connect() as connection:
            return COUNTS.page(connection, page.mark, page.after)

    def share(self, coordinator: str, *, leads: bool) -> Collection[int] | None:
        """Tell that a coordinator is there; returns the partitions that it is to fold, None for all."""
        if self._partitions is None or self._event_partitions == 1:
            return None
        with self._engine.begin() as connection:
            found = members.meet(connection, self._insert, coordinator, leads=leads)
        return members.share_of(found, coordinator, self._event_partitions)

    def leave(self, coordinator: str) -> None:
        """Leave a coordinator's partitions to the others at once."""
        with self._engine.begin() as connection:
            members.part(connection, coordinator)

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

    def _marked(self, mark: str, limit: int, after: str) -> list[tuple[str, StoredRow]]:
        select = sql.select(ROWS).where(ROWS.c.mark == mark, ROWS.c.key > after).order_by(ROWS.c.key).limit(limit)
        with self._engine.connect() as connection:
            return list(_stored_rows(connection.execute(select)).items())

    def _listed(self, prefix: str, limit: int, after: str) -> list[tuple[str, StoredRow]]:
        # Above the greatest character of a key, so it bounds all keys with the prefix.
        within = ROWS.c.key > max(prefix, after), ROWS.c.key < prefix + "\U0010ffff"
        select = sql.select(ROWS).where(*within).order_by(ROWS.c.key).limit(limit)
        with self._engine.connect() as connection:
            return list(_stored_rows(connection.execute(select)).items())

    def missing(self, job_ids: Sequence[str]) -> list[str]:
        with self._engine.connect() as connection:
            known = {row[0] for row in self._matching(connection, JOBS.c.id, JOBS.c.id, job_ids)}
        return [job_id for job_id in job_ids if job_id not in known]

    def _find(self, job_id: str) -> JobRecord | None:
        with self._engine.connect() as connection:
            return next((record_of(row) for row in self._matching(connection, JOBS, JOBS.c.id, [job_id])), None)

    def _prepare(self) -> None:
        wanted = set(self._epochs)
        with self._engine.begin() as connection:
            new = {"stream": stream_of(0), "next_offset": 0, "epoch": 1, "count_number": 0}
            connection.execute(self._insert(POSITIONS).values(new).on_conflict_do_nothing())
            positions = read_positions(connection, lock=True)
            missing = sorted(wanted - set(positions))
            self._check(len(positions))
            epoch = positions[0].epoch
            if missing:
                # Coordinators that know of fewer partitions must not go on.
                epoch = begin_epoch(connection, positions)
                add_positions(connection, missing, epoch)
        self._epochs = dict.fromkeys(self._epochs, epoch)

    def _check(self, found: int) -> None:
        """Refuse a database whose stream has more partitions. Raises DatabaseUnusable."""
        if found > self._event_partitions:
            raise DatabaseUnusable(
                f"the job state was folded from {found} event partitions, and this coordinator knows of"
                f" {self._event_partitions}: use event_partitions={found} in all programs. The number cannot be lowered"
            )

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
        """Return jobs for a fold."""
        return {row[0]: record_of(row, for_fold=True) for row in self._matching(connection, JOBS, column, values)}

    def _matching(
        self,
        connection: Connection,
        wanted: sql.Table | sql.Column[str],
        column: sql.Column[str],
        values: Sequence[object],
    ) -> Iterator[Any]:
        """Yield what is wanted of the rows whose column has one of these values."""
        if self._partitions is not None and values:
            texts = [str(value) for value in values]
            # The range lets PostgreSQL skip partitions, whatever plan it has.
            bounds = {"texts": array_of(texts), "lowest": min(texts), "highest": max(texts)}
            yield from connection.execute(_select_any(wanted, column), bounds)
            return
        for chunk in _chunks(values):
            yield from connection.execute(sql.select(wanted).where(column.in_(chunk)))

    def _load_rows(self, connection: Connection, keys: Sequence[str]) -> dict[str, StoredRow]:
        return _stored_rows(self._matching(connection, ROWS, ROWS.c.key, keys))


@functools.cache
def _select_any(wanted: sql.Table | sql.Column[str], column: sql.Column[str]) -> sql.Select[Any]:
    """Return a statement for what is wanted of the rows whose column has one of the texts of an array."""
    texts = sql.cast(sql.bindparam("texts", type_=sql.String), sql.ARRAY(sql.String))
    lowest, highest = (sql.bindparam(name, type_=column.type) for name in ("lowest", "highest"))
    return sql.select(wanted).where(column == sql.any_(texts), column >= lowest, column <= highest)


def _reservations(events: Sequence[ReceivedEvent]) -> list[ReceivedEvent]:
    return [event for event in events if event.type == "job.reserved"]


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _VALUES_PER_SELECT):
        yield values[start : start + _VALUES_PER_SELECT]


def _stored_rows(result: Iterable[Any]) -> dict[str, StoredRow]:
    return {key: StoredRow(value.encode(), mark) for key, mark, value in result}


def _row(job: JobRecord) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(job, name) for name in COLUMNS}
    row["fingerprint"] = fingerprint_of(job)
    for name in JSON_FIELDS:
        value = row[name]
        if value is not None:
            row[name] = msgspec.json.encode(value).decode()
    return row
