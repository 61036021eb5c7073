"""The places of the tables, and how they are written so that they survive a crash at any time.

    DIR/bronze/events/date=2026-01-31/batch_id=7/*.parquet     by batch; a repeated batch replaces itself
    DIR/bronze/carried, DIR/closed/*                           preserved data of dropped days, see `retention`
    DIR/quarantine/events/batch_id=7/*.parquet                 likewise
    DIR/bronze/events/_files, and in other tables              which files there are, see `file_lists`
    DIR/lock                                                   held by the writer
    DIR/bronze/events                                          a link to the current version below DIR/versions
    DIR/silver/*, DIR/gold/*                                   links into the current snapshot, see `snapshots`
    DIR/checkpoint                                             Spark's own: offsets and commits of the batches

Compaction rewrites bronze. A new version is written beside the old one, and the link is moved to it in one step, so a
reader sees one or the other. The old version stays until the next one is written.
"""

import shutil
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses
from pyspark.sql.types import StructType

from waybill.pipeline import schemas
from waybill.pipeline.event_files import EventFiles, are_written, local_batches, rows_of
from waybill.pipeline.file_lists import add_batch, check_list, list_all
from waybill.pipeline.file_lock import locked
from waybill.pipeline.listing import numbers_in
from waybill.pipeline.parquet_files import row_count

_VERSION_DIGITS: Final = 8
# Dictionaries are useless for columns of distinct values, and higher levels of zstd take longer for hardly smaller
# files.
WRITTEN_QUICKLY: Final = {
    **{f"parquet.enable.dictionary#{column}": "false" for column in ("event", "event_id", "subject", "offset", "time")},
    "parquet.compression.codec.zstd.level": "1",
}


@dataclass(frozen=True)
class Table:
    """A table's path below the data directory, its schema, and its partitions if it is appended to."""

    name: str
    schema: StructType
    partitions: tuple[str, ...] = ()


EVENTS: Final = Table("bronze/events", schemas.BRONZE_EVENTS, schemas.BRONZE_PARTITIONS)
QUARANTINE: Final = Table("quarantine/events", schemas.QUARANTINE, schemas.QUARANTINE_PARTITIONS)
ATTEMPTS: Final = Table("silver/attempts", schemas.ATTEMPTS)
JOBS: Final = Table("silver/jobs", schemas.JOBS)
# Events of dropped days, of jobs that continue: see `retention`.
CARRIED: Final = Table("bronze/carried", schemas.BRONZE_EVENTS)
BEFORE_GOLD: Final = (EVENTS, CARRIED, QUARANTINE, ATTEMPTS, JOBS)
"""All tables but those of `gold_tables`."""


class TablesError(RuntimeError):
    """The data directory cannot be used; the message says what to do."""


class TableStore:
    """The store of the pipeline's tables: `Tables`, or `lake_tables.LakeTables`."""

    versions_kept: int = 5
    """The number of snapshots to keep, including the current one."""

    @property
    def state(self) -> Path | None:
        """The directory of the snapshots of silver and gold (`snapshots`).

        None: there are no snapshots, so each refresh computes these tables from all events.
        """
        raise NotImplementedError

    def checkpoint_location(self) -> str:
        """The place of Spark's checkpoint."""
        raise NotImplementedError

    def locked(self) -> AbstractContextManager[None]:
        """Lock out other writers. Raises TablesError if there is one."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Create missing directories, and check that the tables match the checkpoint. Raises TablesError."""
        raise NotImplementedError

    def has(self, table: Table) -> bool:
        """Whether `table` was ever written."""
        raise NotImplementedError

    def has_files(self, table: Table) -> bool:
        """Whether files of `table` exist, even if it does not."""
        raise NotImplementedError

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        """The rows of `table`; none if nothing was written yet."""
        raise NotImplementedError

    def write_batch(self, rows: DataFrame, table: Table, batch_id: int) -> None:
        """Add the rows of one batch. Writing a batch again replaces it."""
        raise NotImplementedError

    def replace(self, rows: DataFrame, table: Table) -> None:
        """Replace all rows of `table` by `rows`, all or nothing."""
        raise NotImplementedError

    def event_files(self, after: int, complete: Collection[int] = ()) -> Iterator[EventFiles] | None:
        """The batches of bronze after batch `after`, in order; -1 for all.

        None if a file has events from both sides of `after`, or there is no such batch. `complete`: batches known to
        be written.
        """
        raise NotImplementedError

    def carried_files(self) -> EventFiles | None:
        """The carried events of dropped days."""
        raise NotImplementedError

    def has_more_than(self, rows: int, files: int) -> bool:
        """Whether bronze has more events, or as many files."""
        raise NotImplementedError

    def commit_snapshot(self) -> None:
        """Make the tables that readers see the same as the published snapshot."""
        raise NotImplementedError


class Tables(TableStore):
    """The tables of a local data directory, as Parquet files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()

    @property
    def state(self) -> Path:
        return self.directory

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    def checkpoint_location(self) -> str:
        return str(self.checkpoint)

    def path(self, table: Table) -> Path:
        """Where to read `table`: for silver and gold the current version, even if a newer one is written meanwhile."""
        return (self.directory / table.name).resolve()

    def exists(self, table: Table) -> bool:
        return self.path(table).is_dir()

    def has(self, table: Table) -> bool:
        return self.exists(table)

    def has_files(self, table: Table) -> bool:
        return self.exists(table)

    def locked(self) -> AbstractContextManager[None]:
        return locked(
            self.directory, TablesError(f"{self.directory} is in use by another process: wait for it, or stop it")
        )

    def prepare(self) -> None:
        """Create the directory and remove files of interrupted writes. Raises TablesError.

        Batch ids come from the checkpoint: without it they would start from 0 again and replace other events.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.exists(EVENTS):
            self.publish(self.new_version(EVENTS, exists=True), EVENTS)
        elif any(self.path(EVENTS).iterdir()) and not self.checkpoint.is_dir():
            raise TablesError(
                f"{self.directory} has events but no checkpoint, so their position in the stream is unknown: "
                "restore the directory 'checkpoint', or start with an empty directory."
            )
        for table in (EVENTS, QUARANTINE):
            for staging in self.path(table).glob(".spark-staging-*"):
                shutil.rmtree(staging)

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        if not self.exists(table):
            return spark.createDataFrame([], table.schema)
        self.check_files(table)
        # Silver and gold are partitioned by month, which is a column for other readers.
        return spark.read.schema(table.schema).parquet(str(self.path(table))).select(*table.schema.fieldNames())

    def write_batch(self, rows: DataFrame, table: Table, batch_id: int) -> None:
        """Add the rows of one batch, replacing those of an earlier attempt.

        Its number is written as a string, because Spark would generate and compile new code for each number. The names
        of the directories are the same.
        """
        rows = rows.withColumn("batch_id", F.lit(str(batch_id)))
        writer = rows.write.mode("overwrite").options(partitionOverwriteMode="dynamic", **WRITTEN_QUICKLY)
        writer.partitionBy(*table.partitions).parquet(str(self.directory / table.name))
        of_batch = "*/" * (len(table.partitions) - 1) + f"batch_id={batch_id}/*.parquet"
        add_batch(self.path(table), batch_id, self.path(table).glob(of_batch))

    def check_files(self, table: Table, after: int = -1, complete: Collection[int] = ()) -> None:
        """Raise DamagedFileError if a file of the table is lost or truncated.

        Only batches after `after` are checked, and none that may be written at this time; see `event_files`.
        """
        is_written = are_written(self.checkpoint, complete)
        if self.exists(table):
            check_list(self.path(table), lambda batch: batch < 0 or (batch > after and is_written(batch)))

    def replace(self, rows: DataFrame, table: Table) -> None:
        fresh = self.new_version(table)
        rows.write.mode("error").parquet(str(fresh))
        list_all(fresh)
        self.publish(fresh, table)

    def event_files(self, after: int, complete: Collection[int] = ()) -> Iterator[EventFiles]:
        self.check_files(EVENTS, after, complete)
        return local_batches(self.path(EVENTS), self.checkpoint, after, complete)

    def carried_files(self) -> EventFiles | None:
        self.check_files(CARRIED)
        files = tuple(map(str, sorted(self.path(CARRIED).glob("*.parquet")))) if self.has(CARRIED) else ()
        return EventFiles(-1, (), rows_of(files), files) if files else None

    def has_more_than(self, rows: int, files: int) -> bool:
        found = 0
        for count, file in enumerate(self.path(EVENTS).rglob("*.parquet")):
            found += row_count(file)
            if found > rows or count >= files:
                return True
        return False

    def commit_snapshot(self) -> None:
        """Do nothing: the tables are links into the current snapshot."""

    def new_version(self, table: Table, *, exists: bool = False) -> Path:
        """Where to write the next version of `table`; files of an interrupted write are removed."""
        versions = self.directory / "versions" / table.name.replace("/", "-")
        current = self.path(table)
        number = int(current.name) if current.parent == versions else 0
        fresh = versions / f"{number + 1:0{_VERSION_DIGITS}}"
        shutil.rmtree(fresh, ignore_errors=True)
        (fresh if exists else versions).mkdir(parents=True, exist_ok=True)
        return fresh

    def publish(self, fresh: Path, table: Table) -> None:
        """Make `fresh`, of `new_version`, the current version in one step; the previous one stays for its readers."""
        previous = self.path(table)
        link = self.directory / table.name
        link.parent.mkdir(parents=True, exist_ok=True)
        draft = link.with_name(f".{link.name}.next")
        draft.unlink(missing_ok=True)
        draft.symlink_to(Path("..") / fresh.relative_to(self.directory), target_is_directory=True)
        draft.replace(link)
        for number in numbers_in(fresh.parent):
            version = fresh.parent / f"{number:0{_VERSION_DIGITS}}"
            if version not in (fresh, previous):
                shutil.rmtree(version)
