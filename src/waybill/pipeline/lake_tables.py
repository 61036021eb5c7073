"""The tables as Delta or Iceberg tables, in a directory or a bucket.

    ROOT/bronze/events, ROOT/silver/jobs, ...      tables: ROOT/bronze/events/data/WRITE/day=2026-03-01/*.parquet
    ROOT/checkpoint                                Spark's own: offsets and commits of the batches

Spark writes files, each write below a unique name. Then one commit to the table's log adds them, so nothing is renamed,
and files of a crash are in no table. The commit of a batch also records its number, so a batch that runs again after a
crash is skipped.

Refreshes have a state, in a local directory: snapshots of silver and gold, as for Parquet tables. It is made from all
events if it is missing. Without a directory for it, each refresh computes silver and gold from all events.

There is no lock except on the state. If two runs use one checkpoint, Spark ends the one that finds the other's entry in
the log of offsets, and committing an existing batch fails.
"""

import re
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.types import StructType

from waybill.pipeline import gold_tables, tables
from waybill.pipeline.event_counts import EVENT_COUNTS
from waybill.pipeline.event_files import EventFiles
from waybill.pipeline.file_lists import check_sizes
from waybill.pipeline.file_lock import locked
from waybill.pipeline.retention import closed_hour
from waybill.pipeline.snapshot_commits import commit_files
from waybill.pipeline.snapshots import Snapshots
from waybill.pipeline.storage import Storage
from waybill.pipeline.table_log import DAY, DataFile, OpenLog, TableLog
from waybill.pipeline.tables import WRITTEN_QUICKLY, Table, TablesError, TableStore

_DATA: Final = "data"
_CHECKPOINT: Final = "checkpoint"
_FILE_BYTES: Final = 128 << 20
_FILES_MIN: Final = 4
_STATE: Final = "state"
_BATCHES: Final = re.compile(r"/batches-(\d+)-(\d+)-[0-9a-f]{32}/")


class LakeTables(TableStore):
    """The tables below a root. `open_log` opens a log of the format."""

    def __init__(self, spark: SparkSession, storage: Storage, open_log: OpenLog, state: Path | None = None) -> None:
        """`state`: a directory for snapshots; for tables in a directory, it is `ROOT/state` by default."""
        self._spark = spark
        self._storage = storage
        self._open_log = open_log
        self._states = state if state is not None or storage.is_remote else Path(storage.root) / _STATE
        self._identity: str | None = None

    @property
    def state(self) -> Path | None:
        """A directory that belongs to this table of events: another one at the same place has other batches."""
        if self._states is None:
            return None
        self._identity = self._identity or self._log(tables.EVENTS).identity()
        return self._states / (self._identity or "new")

    @property
    def root(self) -> str:
        return self._storage.root

    def checkpoint_location(self) -> str:
        return f"{self.root}/{_CHECKPOINT}"

    def locked(self) -> AbstractContextManager[None]:
        """Lock the state: see above. Raises TablesError also if the tables need a state, and there is none."""
        if self._states is None:
            if self.has(EVENT_COUNTS):
                raise TablesError(
                    f"{self.root} was refreshed with a state: give its directory with --state. "
                    "If it is lost, an empty directory will do."
                )
            return nullcontext()
        refusal = TablesError(f"{self._states} is in use by another process: wait for it, or stop it")
        return locked(self._states, refusal)

    def prepare(self) -> None:
        """Raise TablesError for events without their checkpoint: batches would be numbered from 0 again."""
        if self.has(tables.EVENTS) and not self._storage.has(_CHECKPOINT):
            raise TablesError(
                f"{self.root} has events but no checkpoint, so their position in the stream is unknown: "
                "restore 'checkpoint', or start with an empty location."
            )

    def has(self, table: Table) -> bool:
        return self._log(table).exists()

    def has_files(self, table: Table) -> bool:
        return bool(self._storage.files(f"{table.name}/{_DATA}"))

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        files = self._log(table).files()
        return self._rows(spark, table, files) if files else spark.createDataFrame([], table.schema)

    def write_batch(self, rows: DataFrame, table: Table, batch_id: int) -> None:
        log = self._log(table)
        last = log.batch()
        if last == batch_id:
            # Observations of the rows wait for an action.
            rows.write.format("noop").mode("overwrite").save()
            return
        log.check_order(batch_id, last)
        # Also without rows: the number tells a lost end of the log (`checkpoint_check`).
        log.commit(self._write(rows, table, log, _label(batch_id, batch_id)), batch=batch_id)

    def replace(self, rows: DataFrame, table: Table) -> None:
        log = self._log(table)
        removed = log.files()
        log.commit(self._write(rows, table, log), removed)

    def last_batch(self) -> int:
        """The last batch of events; -1 if there is none."""
        return self._log(tables.EVENTS).batch()

    def refreshed_batch(self) -> int:
        """The last batch that silver and gold have; -1 if that is unknown."""
        snapshots = None if self.state is None else Snapshots(self.state)
        if snapshots is not None and snapshots.current_number() is not None:
            # Not what a run without the state has noted: the tables become those of the state.
            return snapshots.batch()
        return self._log(tables.JOBS).batch()

    def lacks_dropped_days(self) -> bool:
        """Whether the state lacks gold of dropped days: it is an older copy, or a compaction was killed."""
        snapshot = None if self.state is None else Snapshots(self.state).current()
        return snapshot is not None and closed_hour(self._spark, self) > (snapshot.contents.closed or 0)

    def note_refreshed(self, batch: int) -> None:
        """Record that silver and gold, which were all written, have the events up to this batch."""
        log = self._log(tables.JOBS)
        if batch > log.batch():
            log.commit((), batch=batch)

    def days_before(self, first: date) -> int:
        """The number of days before `first` with events."""
        return len({file.day for file in self._files_before(first)})

    def event_files(self, after: int, complete: Collection[int] = ()) -> Iterator[EventFiles] | None:
        """The batches by the names of their files; a file of several merged batches is with its last one."""
        log = self._log(tables.EVENTS)
        if after > log.batch():
            # The table was set back to an earlier version.
            return None
        by_batch: dict[int, list[DataFile]] = {}
        for file in log.files():
            first, last = _batches_in(file.name)
            if first <= after < last:
                return None
            if last > after:
                by_batch.setdefault(last, []).append(file)
        return (self._found(number, tables.EVENTS, by_batch[number]) for number in sorted(by_batch))

    def carried_files(self) -> EventFiles | None:
        files = self._log(tables.CARRIED).files()
        if not files:
            return None
        found = self._found(-1, tables.CARRIED, files)
        return EventFiles(-1, (), found.rows, found.events)

    def has_more_than(self, rows: int, files: int) -> bool:
        found = self._log(tables.EVENTS).files()
        return len(found) > files or sum(file.rows for file in found) > rows

    def commit_snapshot(self) -> None:
        snapshot = None if self.state is None else Snapshots(self.state).current()
        if snapshot is not None:
            commit_files(snapshot, self._storage, self._open_log)

    def file_count(self) -> int:
        """The number of files of events."""
        return len(self._log(tables.EVENTS).files())

    def merge_files(self, refreshed: int = -1) -> int:
        """Merge the files of days with many files. Returns the number of rewritten days.

        `refreshed`: only up to this batch, as a refresh reads the files of later ones; -1 for all.
        """
        log = self._log(tables.EVENTS)
        by_day: dict[date | None, list[DataFile]] = {}
        for file in log.files():
            if refreshed < 0 or _batches_in(file.name)[1] <= refreshed:
                by_day.setdefault(file.day, []).append(file)
        merged = 0
        for files in by_day.values():
            wanted = max(1, -(-sum(file.size for file in files) // _FILE_BYTES))
            if len(files) >= _FILES_MIN and wanted < len(files):
                rows = self._rows(self._spark, tables.EVENTS, files).coalesce(wanted)
                first, last = zip(*(_batches_in(file.name) for file in files), strict=True)
                label = _label(min(first), max(last))
                added = self._write(rows.sortWithinPartitions("stream", "offset"), tables.EVENTS, log, label)
                log.commit(added, files)
                merged += 1
        return merged

    def drop_before(self, first: date) -> int:
        """Drop the events of days before `first`. Returns the number of dropped days."""
        old = self._files_before(first)
        if old:
            self._log(tables.EVENTS).commit((), old)
        return len({file.day for file in old})

    def clean(self) -> None:
        """Delete files that are in no version of the last week."""
        for table in (*gold_tables.ALL, EVENT_COUNTS):
            self._log(table).clean()

    def _files_before(self, first: date) -> list[DataFile]:
        return [file for file in self._log(tables.EVENTS).files() if file.day is not None and file.day < first]

    def _log(self, table: Table) -> TableLog:
        return self._open_log(table.name, table.schema, DAY in table.partitions)

    def _found(self, batch: int, table: Table, files: Sequence[DataFile]) -> EventFiles:
        return EventFiles(batch, tuple(self._names(table, files)), sum(file.rows for file in files))

    def _names(self, table: Table, files: Sequence[DataFile]) -> list[str]:
        """The names of files for Spark. Raises DamagedFileError if one in a directory is lost or truncated."""
        root = f"{self._storage.uri}/{table.name}"
        names = [file.name if file.name.startswith(("/", "s3:", "file:")) else f"{root}/{file.name}" for file in files]
        found = [self._storage.for_spark(name) for name in names]
        if not self._storage.is_remote:
            # Spark skips empty files.
            check_sizes((name, file.size) for name, file in zip(found, files, strict=True))
        return found

    def _rows(self, spark: SparkSession, table: Table, files: Sequence[DataFile]) -> DataFrame:
        """The rows of some files. Columns that older files lack are null."""
        schema = table.schema
        if DAY in table.partitions:
            # The files may lack this column.
            schema = StructType([field for field in schema.fields if field.name != DAY])
        rows = spark.read.schema(schema).parquet(*self._names(table, files))
        return (
            rows.withColumn(DAY, F.to_date("time")).select(*table.schema.fieldNames())
            if DAY in table.partitions
            else rows
        )

    def _write(self, rows: DataFrame, table: Table, log: TableLog, label: str = "") -> list[DataFile]:
        """Write rows to new files, which are not in a log yet."""
        place = f"{_DATA}/{label}{uuid.uuid4().hex}"
        options = {**WRITTEN_QUICKLY, "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
        divided = log.directory
        if divided not in (None, DAY):
            rows = rows.withColumn(divided, F.col(DAY))
        writer = rows.write.mode("error").options(**options)
        if divided is not None:
            writer = writer.partitionBy(divided)
        writer.parquet(f"{self.root}/{table.name}/{place}")
        found = self._storage.files(f"{table.name}/{place}")
        written = [self._described(table, f"{place}/{name}", size) for name, size in found if _is_data(name)]
        return [file for file in written if file.rows]

    def _described(self, table: Table, name: str, size: int) -> DataFile:
        with self._storage.filesystem.open_input_file(self._storage.path(f"{table.name}/{name}")) as file:
            rows = pq.read_metadata(file).num_rows
        _, has_day, after = name.partition("=")
        return DataFile(name, size, rows, date.fromisoformat(after.partition("/")[0]) if has_day else None)


def _label(first: int, last: int) -> str:
    """The start of the name of a write that has these batches."""
    return f"batches-{first}-{last}-"


def _batches_in(name: str) -> tuple[int, int]:
    """The first and the last batch of a file. Earlier versions did not tell it: their files were folded at first."""
    found = _BATCHES.search(name)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _is_data(name: str) -> bool:
    return name.endswith(".parquet") and not name.rpartition("/")[2].startswith((".", "_"))
