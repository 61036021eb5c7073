"""The pipeline: reads events from the stream into bronze, folds bronze into silver, and aggregates silver into gold.

Bronze gets each event of the stream exactly once. Spark's checkpoint records the offsets of a batch before the batch
runs, the source reads the same messages for the same offsets, and writing a batch replaces the files of an earlier
attempt: so a crash at any point leads to the same files.
"""

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.streaming.query import StreamingQuery

from waybill.client.ranges import check_number, check_whole
from waybill.pipeline import tables
from waybill.pipeline.checkpoint_check import check_checkpoint, check_events
from waybill.pipeline.compaction import compact_held, compact_lake
from waybill.pipeline.file_lists import list_all
from waybill.pipeline.folding import computed_once
from waybill.pipeline.gold_tables import GOLD, GOLD_TABLES, Silver
from waybill.pipeline.incremental import is_folded, rebuild, update
from waybill.pipeline.lag import lag
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.options import chosen_stream
from waybill.pipeline.progress_reports import BatchWritten, Compacted, Pace, Progress, Step, TableWritten
from waybill.pipeline.refreshed import NotRefreshedError, last_batch
from waybill.pipeline.retention import all_events, closed_until, with_closed
from waybill.pipeline.snapshots import VERSIONS_KEPT, Snapshots
from waybill.pipeline.source import EVENT_STREAM
from waybill.pipeline.table_formats import PARQUET, open_store
from waybill.pipeline.tables import Table, Tables, TableStore
from waybill.pipeline.task_errors import spark_error
from waybill.pipeline.transforms import bronze, silver
from waybill.pipeline.transforms.objectives import Objectives

_POLL_S: Final = 0.2
_HOUR_S: Final = 3600


@dataclass(frozen=True)
class Settings:
    """The stream to read, and the place and format of the tables (`table_formats`)."""

    uri: str
    directory: Path | str
    stream: str = EVENT_STREAM
    """An event stream, which is read with all of its partitions, or a comma-separated list of streams."""
    table_format: str = PARQUET
    catalog: str | None = None
    """The catalog of Iceberg tables, in pyiceberg's settings. None: one in the directory."""
    state: Path | None = None
    """The directory of the state of refreshes, for tables in a bucket. None: refreshes compute all tables again."""
    objectives: Objectives = field(default_factory=Objectives)
    max_offsets_per_trigger: int = 500_000
    trigger_seconds: float = 5.0
    versions_kept: int = VERSIONS_KEPT
    compact_hours: float | None = None
    """Hours between compactions of a run that follows the stream. None: it does not compact."""
    keep_days: int | None = None
    """Days that such a compaction keeps. None: all."""

    def __post_init__(self) -> None:
        """Raises ValueError for a number out of range."""
        check_whole("max_offsets_per_trigger", self.max_offsets_per_trigger, 1, 2**63 - 1)
        check_number("trigger_seconds", self.trigger_seconds, 0, 86_400)
        check_whole("versions_kept", self.versions_kept, 1, 1000)
        if self.compact_hours is not None:
            check_number("compact_hours", self.compact_hours, 0, 8760)
        if self.keep_days is not None:
            check_whole("keep_days", self.keep_days, 0, 36_500)


class PipelineError(RuntimeError):
    """Reading the stream failed. The message is that of the source."""


def run_once(spark: SparkSession, settings: Settings, progress: Progress) -> None:
    """Update all tables to the current end of the stream.

    Raises TablesError and PipelineError. Batches written before are complete, and the next run continues from there.
    """
    store = _open(spark, settings)
    with store.locked():
        _ingest(spark, settings, store, progress)
        refresh(spark, store, progress, settings.objectives)


def ingest(spark: SparkSession, settings: Settings, progress: Progress) -> None:
    """Update bronze and quarantine to the current end of the stream. Raises TablesError and PipelineError."""
    store = _open(spark, settings)
    with store.locked():
        _ingest(spark, settings, store, progress)


def run_continuously(spark: SparkSession, settings: Settings, progress: Progress) -> None:
    """Follow the stream until interrupted. Refresh silver and gold after each trigger with events, and compact."""
    store = _open(spark, settings)
    following = _Following(spark, settings, store, progress)
    with store.locked():
        check_checkpoint(store)
        store.prepare()
        query = _start(spark, settings, store, following.note, once=False, writing=following.writing)
        try:
            _await(query, following.between, progress)
        finally:
            query.stop()


@dataclass
class _Following:
    """The work between the batches of a query that follows the stream."""

    spark: SparkSession
    settings: Settings
    store: TableStore
    progress: Progress
    writing: Lock = field(default_factory=Lock)
    """Held while a batch is written or bronze is compacted: a compaction would miss new files."""
    written: int = -1
    refreshed: int = -1
    compacted_s: float = field(default_factory=time.monotonic)

    def note(self, step: Step) -> None:
        if isinstance(step, BatchWritten):
            self.written = step.batch_id
        self.progress(step)

    def between(self) -> None:
        self._refresh()
        hours = self.settings.compact_hours
        if hours is None or time.monotonic() - self.compacted_s < hours * _HOUR_S:
            return
        with self.writing:
            # Gold must have all events of days before they are dropped, also those of an earlier run.
            self._refresh(always=self.refreshed < 0)
            # Spark has yet to write the batch again in which an earlier run was killed.
            with suppress(NotRefreshedError):
                self.progress(self._compact())
        self.compacted_s = time.monotonic()

    def _refresh(self, *, always: bool = False) -> None:
        written = self.written
        if always or written != self.refreshed:
            self.refreshed = written
            refresh(self.spark, self.store, self.progress, self.settings.objectives, complete=(written,))

    def _compact(self) -> Compacted:
        keep_days, today = self.settings.keep_days, datetime.now(UTC).date()
        if isinstance(self.store, Tables):
            complete = (self.written,)
            return compact_held(self.spark, self.store, keep_days=keep_days, today=today, complete=complete)
        if isinstance(self.store, LakeTables):
            return compact_lake(self.spark, self.store, keep_days=keep_days, today=today)
        raise TypeError(f"tables of {type(self.store).__name__} are not compacted")


def _open(spark: SparkSession, settings: Settings) -> TableStore:
    store = open_store(spark, settings.directory, settings.table_format, catalog=settings.catalog, state=settings.state)
    store.versions_kept = settings.versions_kept
    return store


def _ingest(spark: SparkSession, settings: Settings, store: TableStore, progress: Progress) -> None:
    check_checkpoint(store)
    store.prepare()
    query = _start(spark, settings, store, progress, once=True)
    try:
        _await(query, lambda: None, progress)
    finally:
        query.stop()


@dataclass(frozen=True)
class _Refresh:
    """Where the inputs of silver and gold are."""

    spark: SparkSession
    store: TableStore
    objectives: Objectives
    place: Path | None = None
    """Where unpublished silver was written. None: in the store."""

    @property
    def events(self) -> DataFrame:
        return all_events(self.spark, self.store)

    def silver(self) -> Silver:
        """Silver as it was just written."""
        return Silver(self._read(tables.JOBS), self._read(tables.ATTEMPTS), self.objectives, self.events)

    def _read(self, table: Table) -> DataFrame:
        if self.place is None:
            return self.store.read(self.spark, table)
        return self.spark.read.schema(table.schema).parquet(str(self.place / table.name))


_SILVER: Final[dict[Table, Callable[[DataFrame], DataFrame]]] = {
    tables.ATTEMPTS: silver.attempts,
    tables.JOBS: silver.jobs,
}
REFRESHED: Final = (*_SILVER, *GOLD)
"""The tables that `refresh` updates, in this order."""


def refresh(
    spark: SparkSession,
    store: TableStore,
    progress: Progress,
    objectives: Objectives | None = None,
    *,
    complete: Collection[int] = (),
) -> None:
    """Update silver and gold from bronze: fold its new batches. `complete`: batches known to be written."""
    if is_folded(store):
        update(spark, store, objectives or Objectives(), progress, complete=complete)
    else:
        _compute_all(spark, store, progress, objectives or Objectives(), last_batch(store, complete))


def backfill(spark: SparkSession, store: TableStore, progress: Progress, objectives: Objectives | None = None) -> None:
    """Compute silver and gold from all of bronze."""
    check_events(store)
    if is_folded(store):
        rebuild(spark, store, objectives or Objectives(), progress)
    else:
        _compute_all(spark, store, progress, objectives or Objectives(), last_batch(store))


def _compute_all(
    spark: SparkSession, store: TableStore, progress: Progress, objectives: Objectives, batch: int
) -> None:
    """Compute silver and gold from all events. In a directory, all tables change at the same time.

    `batch`: the last batch before the events are read. Another may be written meanwhile.
    """
    if isinstance(store, LakeTables):
        _write_all(_Refresh(spark, store, objectives), store.replace, progress)
        store.note_refreshed(batch)
    if not isinstance(store, Tables):
        return
    snapshots = Snapshots(store.directory, kept=store.versions_kept)
    snapshot = snapshots.whole(batch)

    def write(rows: DataFrame, table: Table) -> None:
        rows.write.mode("error").parquet(str(snapshot.place / table.name))
        list_all(snapshot.place / table.name)

    _write_all(_Refresh(spark, store, objectives, snapshot.place), write, progress)
    snapshots.publish(snapshot, REFRESHED)


def _write_all(given: _Refresh, write: Callable[[DataFrame, Table], None], progress: Progress) -> None:
    def timed(rows: DataFrame, table: Table) -> None:
        began = time.monotonic()
        write(rows, table)
        progress(TableWritten(table.name, time.monotonic() - began))

    _write_silver(given, timed)
    computed = given.silver()
    edge = closed_until(given.spark, given.store)
    for one in GOLD_TABLES:
        timed(with_closed(given.spark, given.store, one.from_silver(computed), one.table, edge), one.table)


def refresh_silver(spark: SparkSession, store: TableStore) -> None:
    """Compute silver from bronze: both tables are derived from the slots."""
    _write_silver(_Refresh(spark, store, Objectives()), store.replace)


def _write_silver(given: _Refresh, write: Callable[[DataFrame, Table], None]) -> None:
    with computed_once(silver.slots(given.events)) as slots:
        for table, rows in _SILVER.items():
            write(rows(slots), table)


def write_bronze(source: DataFrame, batch_id: int, store: TableStore) -> BatchWritten:
    """Write one batch of the event source: usable events to bronze, the others to quarantine.

    Both are counted while bronze is written. Quarantine is rare: reading its few rows again is cheaper than caching
    every batch.
    """
    counts = Observation()
    observed = source.observe(
        counts, F.count("*").alias("all"), F.count(F.when(F.col("malformed").isNotNull(), 1)).alias("malformed")
    )
    store.write_batch(bronze.bronze_events(observed, batch_id), tables.EVENTS, batch_id)
    malformed = int(counts.get["malformed"])
    if malformed:
        store.write_batch(bronze.quarantined(source, batch_id), tables.QUARANTINE, batch_id)
    return BatchWritten(batch_id, int(counts.get["all"]) - malformed, malformed)


def _start(
    spark: SparkSession,
    settings: Settings,
    store: TableStore,
    progress: Progress,
    *,
    once: bool,
    writing: AbstractContextManager[object] = nullcontext(),  # noqa: B008 - it has no state
) -> StreamingQuery:
    source = (
        spark.readStream.format("ojs")
        .option("uri", settings.uri)
        .option(*chosen_stream(settings.stream))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(settings.max_offsets_per_trigger))
        .option("minPartitions", str(spark.sparkContext.defaultParallelism))
        .load()
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        with writing:
            progress(write_bronze(batch, batch_id, store))

    writer = source.writeStream.foreachBatch(write).option("checkpointLocation", store.checkpoint_location())
    trigger = {"availableNow": True} if once else {"processingTime": f"{settings.trigger_seconds} seconds"}
    return writer.queryName("bronze").trigger(**trigger).start()


def _await(query: StreamingQuery, between: Callable[[], None], progress: Progress) -> None:
    """Wait for the end of `query`, and report and refresh meanwhile. Raises PipelineError if it failed."""
    reported = -1
    while query.isActive:
        between()
        reported = _report_pace(query, reported, progress)
        with suppress(StreamingQueryException):
            query.awaitTermination(_POLL_S)  # type: ignore[arg-type] # it takes fractions of a second too
    between()
    _report_pace(query, reported, progress)
    failure = query.exception()
    if failure is not None:
        raise PipelineError(spark_error(str(failure)))


def _report_pace(query: StreamingQuery, reported: int, progress: Progress) -> int:
    """Report the pace of the last batch once. Returns the number of the batch reported last."""
    last = query.lastProgress
    if last is None or last.batchId == reported or not last.numInputRows:
        return reported
    progress(Pace(last.processedRowsPerSecond, sum(lag(last).values())))
    return int(last.batchId)
