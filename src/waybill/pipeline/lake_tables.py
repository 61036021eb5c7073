"""The tables as Delta or Iceberg tables, in a directory or a bucket.

    ROOT/bronze/events, ROOT/silver/jobs, ...      tables: ROOT/bronze/events/data/WRITE/day=2026-03-01/*.parquet
    ROOT/checkpoint                                Spark's own: offsets and commits of the batches

Spark writes files, each write below a unique name. Then one commit to the table's log adds them, so nothing is renamed,
and files of a crash are in no table. The commit of a batch also records its number, so a batch that runs again after a
crash is skipped.

There is no lock. If two runs use one checkpoint, Spark ends the one that finds the other's entry in the log of offsets,
and committing an existing batch fails.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.types import StructType

from waybill.pipeline import gold_tables, tables
from waybill.pipeline.storage import Storage
from waybill.pipeline.table_log import DAY, DataFile, OpenLog, TableLog
from waybill.pipeline.tables import WRITTEN_QUICKLY, Table, TablesError, TableStore

_DATA: Final = "data"
_CHECKPOINT: Final = "checkpoint"
_FILE_BYTES: Final = 128 << 20
_FILES_MIN: Final = 4


class LakeTables(TableStore):
    """The tables below a root. `open_log` opens a log of the format."""

    def __init__(self, spark: SparkSession, storage: Storage, open_log: OpenLog) -> None:
        self._spark = spark
        self._storage = storage
        self._open_log = open_log

    @property
    def root(self) -> str:
        return self._storage.root

    def checkpoint_location(self) -> str:
        return f"{self.root}/{_CHECKPOINT}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Do nothing: see above."""
        yield

    def prepare(self) -> None:
        """Raise TablesError for events without their checkpoint: batches would be numbered from 0 again."""
        if self.has(tables.EVENTS) and not self._storage.has(_CHECKPOINT):
            raise TablesError(
                f"{self.root} has events but no checkpoint, so their position in the stream is unknown: "
                "restore 'checkpoint', or start with an empty location."
            )

    def has(self, table: Table) -> bool:
        return self._log(table).exists()

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
        added = self._write(rows, table, log)
        if added:
            log.commit(added, batch=batch_id)

    def replace(self, rows: DataFrame, table: Table) -> None:
        log = self._log(table)
        removed = log.files()
        log.commit(self._write(rows, table, log), removed)

    def last_batch(self) -> int:
        """The last batch of events; -1 if there is none."""
        return self._log(tables.EVENTS).batch()

    def refreshed_batch(self) -> int:
        """The last batch that silver and gold have; -1 if that is unknown."""
        return self._log(tables.JOBS).batch()

    def note_refreshed(self, batch: int) -> None:
        """Record that silver and gold, which were all written, have the events up to this batch."""
        log = self._log(tables.JOBS)
        if batch > log.batch():
            log.commit((), batch=batch)

    def days_before(self, first: date) -> int:
        """The number of days before `first` with events."""
        return len({file.day for file in self._files_before(first)})

    def file_count(self) -> int:
        """The number of files of events."""
        return len(self._log(tables.EVENTS).files())

    def merge_files(self) -> int:
        """Merge the files of days with many files. Returns the number of rewritten days."""
        log = self._log(tables.EVENTS)
        by_day: dict[date | None, list[DataFile]] = {}
        for file in log.files():
            by_day.setdefault(file.day, []).append(file)
        merged = 0
        for files in by_day.values():
            wanted = max(1, -(-sum(file.size for file in files) // _FILE_BYTES))
            if len(files) >= _FILES_MIN and wanted < len(files):
                rows = self._rows(self._spark, tables.EVENTS, files).coalesce(wanted)
                added = self._write(rows.sortWithinPartitions("stream", "offset"), tables.EVENTS, log)
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
        for table in gold_tables.ALL:
            self._log(table).clean()

    def _files_before(self, first: date) -> list[DataFile]:
        return [file for file in self._log(tables.EVENTS).files() if file.day is not None and file.day < first]

    def _log(self, table: Table) -> TableLog:
        return self._open_log(table.name, table.schema, DAY in table.partitions)

    def _rows(self, spark: SparkSession, table: Table, files: Sequence[DataFile]) -> DataFrame:
        """The rows of some files. Columns that older files lack are null."""
        root = f"{self._storage.uri}/{table.name}"
        names = [file.name if file.name.startswith(("/", "s3:", "file:")) else f"{root}/{file.name}" for file in files]
        schema = table.schema
        if DAY in table.partitions:
            # The files may lack this column.
            schema = StructType([field for field in schema.fields if field.name != DAY])
        rows = spark.read.schema(schema).parquet(*(self._storage.for_spark(name) for name in names))
        return (
            rows.withColumn(DAY, F.to_date("time")).select(*table.schema.fieldNames())
            if DAY in table.partitions
            else rows
        )

    def _write(self, rows: DataFrame, table: Table, log: TableLog) -> list[DataFile]:
        """Write rows to new files, which are not in a log yet."""
        place = f"{_DATA}/{uuid.uuid4().hex}"
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


def _is_data(name: str) -> bool:
    return name.endswith(".parquet") and not name.rpartition("/")[2].startswith((".", "_"))
