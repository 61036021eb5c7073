"""Folds new events into silver and gold, and rewrites only the changed parts.

1. The index finds the parts of silver that may contain the jobs of the new events, with their earlier events.
2. These jobs are folded again from all of their events. The order in which events arrived does not matter.
3. The old and the new parts of these jobs are rewritten.
4. The jobs' facts are compared with the previous ones. Gold is recomputed for the hours that differ.
5. The rollups of these hours and parts, and of their days, are recomputed.

The cost does not depend on the size of other parts. An unfinished draft changes nothing.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.types import ByteType, StructField, StructType

from waybill.pipeline import schemas, tables
from waybill.pipeline.event_counts import EVENT_COUNTS, Arrivals, count_events, store_reports
from waybill.pipeline.gold_tables import GOLD, GOLD_TABLES, GoldTable, HourFacts
from waybill.pipeline.job_index import JobIndex, entries_of
from waybill.pipeline.part_files import NUMBER, read_files, write_parts
from waybill.pipeline.parts import PART, PART_FIELD, hour_of, part_of, parts_of_hours
from waybill.pipeline.rollups import ROLLUPS, roll
from waybill.pipeline.snapshots import Draft, Snapshot
from waybill.pipeline.tables import Table
from waybill.pipeline.transforms import facts, gold, silver, workers
from waybill.pipeline.transforms.objectives import Objectives

_COUNTED: Final = ("event_id", "time", "job_type", "queue", "worker_id", "attempt", "priority", "duration_ms")
_MORE: Final = ("scheduled_at", "next_retry_at", "error_type", "error_message", "error_retryable")
_EVENT_FIELDS: Final = [schemas.EVENT[name] for name in (*_COUNTED, *_MORE)]
_ID: Final = schemas.JOBS["job_id"]
JOB_EVENTS: Final = Table(
    "state/job_events", StructType([_ID, StructField("kind", ByteType()), *_EVENT_FIELDS, PART_FIELD])
)
STORED_JOBS: Final = Table(tables.JOBS.name, StructType([*schemas.JOBS.fields, PART_FIELD]))
STORED_ATTEMPTS: Final = Table(
    tables.ATTEMPTS.name, StructType([*schemas.ATTEMPTS.fields, facts.FIRST_FAILED, PART_FIELD])
)
# Facts of other hours than the hours of their jobs.
STRAY_JOBS: Final = Table("state/stray_jobs", facts.JOB_FACTS)
STRAY_ATTEMPTS: Final = Table("state/stray_attempts", facts.ATTEMPT_FACTS)
REPORTS: Final = Table(
    "workers/reports",
    StructType(
        [
            *(schemas.EVENT[name] for name in ("worker_id", "time", "event_id")),
            schemas.WORKERS["places"],
        ]
    ),
)
SILVER: Final = (STORED_ATTEMPTS, STORED_JOBS)
IN_SNAPSHOTS: Final = (JOB_EVENTS, *SILVER, STRAY_JOBS, STRAY_ATTEMPTS, *GOLD, EVENT_COUNTS, *ROLLUPS)
_BRONZE: Final = StructType(
    [column for column in schemas.BRONZE_EVENTS.fields if column.name not in schemas.BRONZE_PARTITIONS]
)


@dataclass
class _Touched:
    """The hours and parts that a batch touches."""

    parts: set[int] = field(default_factory=set)
    gold: set[int] = field(default_factory=set)
    strays: dict[str, set[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Folding:
    """Folds one batch of events into a draft. `closed`: gold before this hour is final."""

    spark: SparkSession
    base: Snapshot | None
    draft: Draft
    objectives: Objectives
    closed: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """The time for writing each table."""

    def fold(self, files: Sequence[str], name: str, *, counted: Sequence[str] | None = None) -> None:
        """Fold the events of bronze files. `counted`: the files whose events are counted (default: all)."""
        arrivals = Arrivals.of(files, frozenset(files if counted is None else counted))
        arrived = count_events(arrivals.counts, self.base, self.draft, self.closed)
        events = self.spark.read.schema(_BRONZE).parquet(*files)
        parts: set[int] = set()
        hours = store_reports(workers.reports(events), self.base, self.draft) if arrivals.has_reports else set()
        if len(arrivals.jobs):
            index = JobIndex(self.base)
            known = index.lookup(arrivals.jobs)
            fresh = silver.job_events(events)
            touched = self._fold_jobs(fresh, fresh.select("job_id").distinct(), index, known, name)
            hours |= touched.gold
            parts = touched.parts
        self.count(GOLD_TABLES, hours)
        roll(self.spark, self.draft, hours=hours | arrived, parts=parts)

    def count(self, wanted: Sequence[GoldTable], hours: set[int]) -> None:
        """Compute gold tables for these hours."""
        open_hours = {hour for hour in hours if self.closed is None or hour >= self.closed}
        if not open_hours:
            return
        parts = parts_of_hours(open_hours)
        given = self._facts(open_hours)
        with computed_once(given.jobs) as jobs, computed_once(given.attempts) as attempts:
            computed = replace(given, jobs=jobs, attempts=attempts)
            for one in wanted:
                rows = one.from_facts(computed).withColumn(NUMBER, hour_of("bucket") * 2)
                self.draft.replace(one.table, parts, self._written(rows, one.table))

    def _fold_jobs(self, fresh: DataFrame, ids: DataFrame, index: JobIndex, known: np.ndarray, name: str) -> _Touched:
        candidates = [int(part) for part in np.unique(known["part"])]
        whole = self._of(ids, JOB_EVENTS, candidates).drop(PART).unionByName(fresh)
        with computed_once(silver.folded(whole)) as slots:
            part = part_of(hour_of("last_at"), silver.is_open())
            jobs = silver.jobs_with_last_event(slots).withColumn(PART, part).drop("last_at")
            homes = jobs.select("job_id", PART)
            attempts = gold.with_first_failure(silver.attempts(slots)).join(homes, "job_id")
            hashes, parts = entries_of(homes)
            index.add(self.draft, name, hashes, parts, known)
            touched = self._touched(ids, candidates, jobs, attempts)
            touched.parts |= set(np.unique(parts).tolist())
            self._write_silver(
                ids, touched, {JOB_EVENTS: whole.join(homes, "job_id"), STORED_ATTEMPTS: attempts, STORED_JOBS: jobs}
            )
            for table, rows in ((STRAY_JOBS, facts.job_facts(jobs)), (STRAY_ATTEMPTS, facts.attempt_facts(attempts))):
                self._write_strays(ids, table, rows, touched.strays.get(table.name, set()))
        return touched

    def _of(self, ids: DataFrame, table: Table, parts: Sequence[int]) -> DataFrame:
        """The rows of some jobs before the batch."""
        return self._before(table, parts).join(ids, "job_id", "left_semi")

    def _before(self, table: Table, parts: Sequence[int]) -> DataFrame:
        files = [] if self.base is None else self.base.files(table, parts)
        return self._read(table, files)

    def _read(self, table: Table, files: Sequence[Path]) -> DataFrame:
        return read_files(self.spark, table, files)

    def _touched(self, ids: DataFrame, candidates: list[int], jobs: DataFrame, attempts: DataFrame) -> _Touched:
        """The previous parts of the jobs, and the hours whose facts have changed."""
        if self.base is None or not self.base.files(STORED_JOBS, candidates):
            return self._all_new(jobs, attempts)
        old_jobs = self._of(ids, STORED_JOBS, candidates)
        old_attempts = self._of(ids, STORED_ATTEMPTS, candidates)
        pairs = (
            (STRAY_JOBS, facts.job_facts(old_jobs), facts.job_facts(jobs)),
            (STRAY_ATTEMPTS, facts.attempt_facts(old_attempts), facts.attempt_facts(attempts)),
        )
        no = F.lit(False)  # noqa: FBT003 - Spark's name
        found = old_jobs.select(F.lit("").alias("table"), F.col(PART).alias(facts.HOUR), no, no).distinct()
        for table, before, after in pairs:
            differing = facts.changed(_placed(before), _placed(after), table.schema.fieldNames())
            found = found.union(differing.select(F.lit(table.name), facts.HOUR, "differs", "strays"))
        touched = _Touched()
        for name, number, differs, strays in found.collect():
            if not name:
                touched.parts.add(number)
            if differs:
                touched.gold.add(number)
            if strays:
                touched.strays.setdefault(name, set()).add(number)
        return touched

    def _all_new(self, jobs: DataFrame, attempts: DataFrame) -> _Touched:
        """The same if all jobs are new."""
        touched = _Touched()
        found = None
        for table, rows in ((STRAY_JOBS, facts.job_facts(jobs)), (STRAY_ATTEMPTS, facts.attempt_facts(attempts))):
            hours = _placed(rows).select(F.lit(table.name).alias("table"), facts.HOUR, "is_home")
            found = hours if found is None else found.union(hours)
        for name, hour, is_home in [] if found is None else found.distinct().collect():
            touched.gold.add(hour)
            if not is_home:
                touched.strays.setdefault(name, set()).add(hour)
        return touched

    def _write_silver(self, ids: DataFrame, touched: _Touched, fresh: Mapping[Table, DataFrame]) -> None:
        parts = sorted(touched.parts)
        for table, rows in fresh.items():
            others = self._before(table, parts).join(ids, "job_id", "left_anti")
            whole = others.unionByName(rows.select(*table.schema.fieldNames()))
            self.draft.replace(table, parts, self._written(whole.withColumn(NUMBER, F.col(PART)), table))

    def _write_strays(self, ids: DataFrame, table: Table, rows: DataFrame, hours: set[int]) -> None:
        if not hours:
            return
        parts = parts_of_hours(hours)
        others = self._before(table, parts).join(ids, "job_id", "left_anti")
        strays = _placed(rows).where(~F.col("is_home")).select(*table.schema.fieldNames())
        whole = others.unionByName(strays).withColumn(NUMBER, F.col(facts.HOUR) * 2)
        self.draft.replace(table, parts, self._written(whole, table))

    def _facts(self, hours: set[int]) -> HourFacts:
        """All facts of some hours, of jobs in these hours and elsewhere."""
        homes = [part for hour in hours for part in (2 * hour, 2 * hour + 1)]

        def of(stored: Table, strays: Table, make: Callable[[DataFrame], DataFrame]) -> DataFrame:
            rows = _placed(make(self._read(stored, self.draft.files(stored, homes)))).where("is_home")
            others = self._read(strays, self.draft.files(strays, parts_of_hours(hours)))
            return rows.select(*strays.schema.fieldNames()).unionByName(others)

        reports = self.draft.there("workers", "reports.parquet")
        return HourFacts(
            of(STORED_JOBS, STRAY_JOBS, facts.job_facts),
            of(STORED_ATTEMPTS, STRAY_ATTEMPTS, facts.attempt_facts),
            self.objectives,
            self._read(REPORTS, [reports] if reports else []),
        )

    def _written(self, rows: DataFrame, table: Table) -> Path:
        """Write rows; returns their place, with a directory for each `number`."""
        began = time.monotonic()
        place = write_parts(rows, table, self.draft)
        self.seconds[table.name] = time.monotonic() - began
        return place


@contextmanager
def computed_once(rows: DataFrame) -> Iterator[DataFrame]:
    """Compute rows once, even if they are read several times. Rows beyond the memory are on the local disk.

    This is a local checkpoint, because Spark's columnar cache costs more than computing the rows again. If executors
    can be lost, rows are computed each time, because local checkpoints would be lost, too.
    """
    if not str(rows.sparkSession.sparkContext.master).startswith("local["):
        yield rows
        return
    checkpointed = rows.localCheckpoint(eager=False, storageLevel=StorageLevel.MEMORY_AND_DISK)
    try:
        yield checkpointed
    finally:
        # Spark itself frees them at the next garbage collection, which may be hours later.
        checkpointed._jdf.logicalPlan().rdd().unpersist(True)  # noqa: FBT003, SLF001 - there is no public way


def _placed(rows: DataFrame) -> DataFrame:
    """Facts with `is_home`: whether they are of the hour of their job."""
    home: Column = F.floor(F.col(PART) / F.lit(2)).cast("int")
    return rows.withColumn("is_home", home == F.col(facts.HOUR)).drop(PART)
