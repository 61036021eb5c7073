"""The inputs of a report: the rollups of the current snapshot, or all rows of the tables if there are no rollups.

Both have the same columns and give the same report except for percentiles: a merged sketch differs from the sketch of
all values. Ranks are accurate within 0.4 % in both. The `bucket` of a rollup's row is its first minute.
"""

from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from waybill.pipeline import gold_tables, rollups, tables
from waybill.pipeline.event_counts import EVENT_COUNTS
from waybill.pipeline.part_files import read_files
from waybill.pipeline.parts import HOUR_S, parts_of_hours
from waybill.pipeline.retention import all_events
from waybill.pipeline.snapshots import Snapshot, Snapshots
from waybill.pipeline.tables import Table, TableStore
from waybill.pipeline.transforms import gold, silver, totals

MINUTE_S: Final = 60
DAY_S: Final = 24 * HOUR_S


class Inputs:
    """All rows of the tables of `store`."""

    def __init__(self, spark: SparkSession, store: TableStore) -> None:
        self.spark = spark
        self.store = store

    @cached_property
    def jobs(self) -> DataFrame:
        """Jobs, counted (`totals.JOB_TOTALS`)."""
        return totals.job_totals(self._read(tables.JOBS))

    @cached_property
    def attempts(self) -> DataFrame:
        """Attempts, counted (`totals.ATTEMPT_TOTALS`)."""
        return totals.attempt_totals(self._read(tables.ATTEMPTS))

    @cached_property
    def activity(self) -> DataFrame:
        return self._read(gold_tables.ACTIVITY)

    @cached_property
    def failures(self) -> DataFrame:
        return self._read(gold_tables.FAILURES)

    @cached_property
    def dead_letters(self) -> DataFrame:
        return self._read(gold_tables.DEAD_LETTERS)

    @cached_property
    def retries(self) -> DataFrame:
        return self._read(gold_tables.RETRIES)

    @cached_property
    def objectives(self) -> DataFrame:
        return self._read(gold_tables.OBJECTIVES)

    @cached_property
    def workers(self) -> DataFrame:
        """Busy time of workers, from the minute `bucket` to the minute `last`."""
        return self._read(gold_tables.WORKERS).withColumn("last", F.col("bucket"))

    @cached_property
    def peaks(self) -> DataFrame:
        """The attempts of a `job_type` that `started` in a minute; for several minutes, in the busiest one."""
        return self.activity.groupBy("job_type", "bucket").agg(F.sum("started").alias("started"))

    @cached_property
    def quarantine(self) -> DataFrame:
        return self.store.read(self.spark, tables.QUARANTINE)

    def timeline(self, seconds: int, latest: datetime) -> DataFrame:
        """The activity up to `latest`, in buckets that lie within buckets of `seconds`."""
        rows = self.activity
        if seconds < MINUTE_S:
            rows = gold.activity(self._read(tables.JOBS), self._read(tables.ATTEMPTS), seconds)
        return rows.where(F.col("bucket") <= F.lit(latest))

    def events(self, latest: datetime) -> dict[str, Any]:
        """The number of `events` and of those `ahead`; the `start` and `end` of the others."""
        if self.store.has(EVENT_COUNTS):
            return _counted(self._read(EVENT_COUNTS), latest)
        events = all_events(self.spark, self.store)
        ahead = F.col("time") > F.lit(latest)
        time = F.when(silver.plausible("time") & ~ahead, F.col("time"))
        row = events.agg(
            F.count("*").alias("events"),
            F.count_if(ahead).alias("ahead"),
            F.min(time).alias("start"),
            F.max(time).alias("end"),
        ).first()
        return {} if row is None else row.asDict()

    def _read(self, table: Table) -> DataFrame:
        return self.store.read(self.spark, table)


class RolledInputs(Inputs):
    """The rollups of a snapshot: however long the history, a few rows for each day."""

    def __init__(self, spark: SparkSession, store: TableStore, snapshot: Snapshot) -> None:
        super().__init__(spark, store)
        self._snapshot = snapshot

    @cached_property
    def jobs(self) -> DataFrame:
        return self._read(rollups.JOB_DAYS)

    @cached_property
    def attempts(self) -> DataFrame:
        return self._read(rollups.ATTEMPT_DAYS)

    @cached_property
    def activity(self) -> DataFrame:
        return self._read(rollups.ACTIVITY_DAYS)

    @cached_property
    def failures(self) -> DataFrame:
        return self._read(rollups.FAILURE_DAYS)

    @cached_property
    def dead_letters(self) -> DataFrame:
        return self._read(rollups.DEAD_LETTER_DAYS)

    @cached_property
    def retries(self) -> DataFrame:
        return self._read(rollups.RETRIES_DAYS)

    @cached_property
    def objectives(self) -> DataFrame:
        return self._read(rollups.OBJECTIVE_DAYS)

    @cached_property
    def workers(self) -> DataFrame:
        return self._read(rollups.WORKER_DAYS)

    @cached_property
    def peaks(self) -> DataFrame:
        return self._read(rollups.PEAK_DAYS)

    def timeline(self, seconds: int, latest: datetime) -> DataFrame:
        if seconds < MINUTE_S:
            return super().timeline(seconds, latest)
        if seconds < HOUR_S:
            return self._read(gold_tables.ACTIVITY).where(F.col("bucket") <= F.lit(latest))
        if seconds < DAY_S:
            return self._up_to(self._read(rollups.ACTIVITY_HOURS), gold_tables.ACTIVITY, latest, HOUR_S)
        return self._up_to(self.activity, gold_tables.ACTIVITY, latest, DAY_S)

    def events(self, latest: datetime) -> dict[str, Any]:
        return _counted(self._up_to(self._read(rollups.EVENT_DAYS), EVENT_COUNTS, latest, DAY_S, others=True), latest)

    def _up_to(
        self, rolled: DataFrame, of: Table, latest: datetime, period_s: int, *, others: bool = False
    ) -> DataFrame:
        """The rows of periods before that of `latest`, and the minutes of that period up to `latest`.

        With `others`, also the later minutes of that period, and the rows of later periods and of none.
        """
        start_s = int(latest.timestamp()) // period_s * period_s
        start = datetime.fromtimestamp(start_s, UTC)
        end = datetime.fromtimestamp(start_s + period_s, UTC)
        bucket = F.col("bucket")
        wanted = bucket < F.lit(start)
        if others:
            wanted = wanted | (bucket >= F.lit(end)) | bucket.isNull()
        rows = rolled.where(wanted).drop(rollups.LAST.name)
        files = self._snapshot.files(of, parts_of_hours(range(start_s // HOUR_S, (start_s + period_s) // HOUR_S)))
        if not files:
            return rows
        minutes = read_files(self.spark, of, files)
        if not others:
            minutes = minutes.where(bucket <= F.lit(latest))
        return rows.unionByName(minutes.select(*rows.columns))

    def _read(self, table: Table) -> DataFrame:
        return read_files(self.spark, table, self._snapshot.files(table, self._snapshot.all_parts(table)))


def inputs_of(spark: SparkSession, store: TableStore) -> Inputs:
    """The rollups of `store`; its tables if there are none: for small histories, and for tables without a state."""
    snapshot = None if store.state is None else Snapshots(store.state).current()
    if snapshot is None or not snapshot.has_rollups:
        return Inputs(spark, store)
    return RolledInputs(spark, store, snapshot)


def _counted(counts: DataFrame, latest: datetime) -> dict[str, Any]:
    """The figures of `Inputs.events` from counts by minute or day: one is ahead if its first event is."""
    ahead = F.coalesce(F.col("first_at") > F.lit(latest), F.lit(False))  # noqa: FBT003 - Spark's name
    row = counts.agg(
        F.coalesce(F.sum("events"), F.lit(0)).alias("events"),
        F.coalesce(F.sum(F.when(ahead, F.col("events"))), F.lit(0)).alias("ahead"),
        F.min(F.when(~ahead, F.col("first_at"))).alias("start"),
        F.max(F.when(~ahead, F.least("last_at", F.lit(latest)))).alias("end"),
    ).first()
    return {} if row is None else row.asDict()
