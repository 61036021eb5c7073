"""Rollups, which reports read instead of all minutes, attempts and jobs.

    gold/activity_hours, gold/retries_hours      the minutes of an hour in one row: counts added, sketches merged
    gold/job_totals, gold/attempt_totals         jobs and attempts of a part of silver, counted
    gold/*_days                                  these and other minutes, summed by day; one file per day

A refresh recomputes them for the changed hours and parts, and for their days. So they equal a full computation, at the
cost of the changes. `bucket` and `last` are the first and the last minute of a row; totals of silver have no times.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from waybill.pipeline import gold_tables, schemas, tables
from waybill.pipeline.event_counts import EVENT_COUNTS
from waybill.pipeline.parquet_files import read_table
from waybill.pipeline.part_files import NUMBER, read_files, write_parts
from waybill.pipeline.parts import PART, PART_FIELD, hour_of
from waybill.pipeline.snapshots import Draft
from waybill.pipeline.tables import Table
from waybill.pipeline.transforms import gold, totals
from waybill.pipeline.transforms.sums import LARGEST

LAST: Final = StructField("last", TimestampType())
HOURS_OF_A_DAY: Final = 24
_PARTS_OF_A_DAY: Final = 2 * HOURS_OF_A_DAY
# The hours and parts of a step: those of a month.
_AT_ONCE: Final = 31 * (HOURS_OF_A_DAY + _PARTS_OF_A_DAY)
_TIMES: Final = ("bucket", "last")


def _rolled(name: str, of: StructType, *without: str) -> Table:
    kept = [field for field in of.fields if field.name not in without]
    return Table(name, StructType([*kept, LAST]))


_OF_A_MINUTE: Final = ("completed_per_second", "failure_ratio", "queue_wait_ms", "run_ms")
ACTIVITY_HOURS: Final = _rolled("gold/activity_hours", schemas.ACTIVITY, *_OF_A_MINUTE)
RETRIES_HOURS: Final = _rolled("gold/retries_hours", schemas.RETRIES)
JOB_TOTALS: Final = Table("gold/job_totals", totals.JOB_TOTALS)
ATTEMPT_TOTALS: Final = Table("gold/attempt_totals", totals.ATTEMPT_TOTALS)
ACTIVITY_DAYS: Final = Table("gold/activity_days", ACTIVITY_HOURS.schema)
RETRIES_DAYS: Final = Table("gold/retries_days", RETRIES_HOURS.schema)
JOB_DAYS: Final = Table("gold/job_days", JOB_TOTALS.schema)
ATTEMPT_DAYS: Final = Table("gold/attempt_days", ATTEMPT_TOTALS.schema)
FAILURE_DAYS: Final = _rolled("gold/failure_days", schemas.FAILURES)
DEAD_LETTER_DAYS: Final = _rolled("gold/dead_letter_days", schemas.DEAD_LETTERS)
OBJECTIVE_DAYS: Final = _rolled("gold/objective_days", schemas.OBJECTIVES, "attainment")
WORKER_DAYS: Final = _rolled("gold/worker_days", schemas.WORKERS, "started", "ended", "utilisation")
EVENT_DAYS: Final = _rolled("gold/event_days", EVENT_COUNTS.schema)
# The most attempts of a job type that were started in a minute of the day.
PEAK_DAYS: Final = Table(
    "gold/peak_days",
    StructType([schemas.ACTIVITY["bucket"], schemas.ACTIVITY["job_type"], StructField("started", LongType()), LAST]),
)


@dataclass(frozen=True)
class _Days:
    """How rows of `source` are aggregated to one row for each day and `keys`, and such rows again."""

    table: Table
    source: Table
    keys: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    long_sums: tuple[str, ...] = ()
    """Sums of milliseconds, which could overflow: see `transforms.sums`."""
    least: tuple[str, ...] = ()
    largest: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    """Columns taken from the first row."""
    prepare: Callable[[pa.Table], pa.Table] | None = None
    """Transforms rows before they are summed: those of each file, then all."""

    @property
    def is_timed(self) -> bool:
        return LAST.name in self.table.schema.fieldNames()

    @property
    def read(self) -> list[str]:
        """The columns of `source` that are needed."""
        own = [*self.keys, *self.sums, *self.long_sums, *self.least, *self.largest, *self.examples]
        return [*own, "bucket"] if self.is_timed and "bucket" not in own else own

    def of(self, files: Iterable[Path]) -> pa.Table | None:
        """The rows for some files, which are read one by one; None if there are none."""
        found = []
        for file in files:
            rows = read_table(file, columns=self.read)
            if self.is_timed:
                rows = rows.append_column("last", rows["bucket"])
            found.append(self._summed(rows) if self.prepare is None else self.prepare(rows))
        if not any(rows.num_rows for rows in found):
            return None
        whole = pa.concat_tables(rows for rows in found if rows.num_rows)
        return self._summed(whole if self.prepare is None else self.prepare(whole))

    def _summed(self, rows: pa.Table) -> pa.Table:
        for name in self.long_sums:
            rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(pa.float64(), safe=False))
        wanted: list[tuple[str, str, pc.FunctionOptions | None]] = [
            *((name, "sum", None) for name in (*self.sums, *self.long_sums)),
            *((name, "min", None) for name in self.least),
            *((name, "max", None) for name in self.largest),
            *((name, "first", pc.ScalarAggregateOptions(skip_nulls=False)) for name in self.examples),
        ]
        if self.is_timed:
            wanted += [("bucket", "min", None), ("last", "max", None)]
        if self.examples:
            rows = rows.sort_by("bucket")
        # "first" requires sorted rows and one thread.
        summed = rows.group_by(list(self.keys), use_threads=not self.examples).aggregate(wanted)
        columns = {name: summed[name] for name in self.keys}
        columns |= {name: summed[f"{name}_{how}"] for name, how, _ in wanted}
        for name in self.long_sums:
            columns[name] = pc.min_element_wise(columns[name], LARGEST).cast(pa.int64())
        return pa.table({name: columns[name] for name in self.table.schema.fieldNames()})


def _started_by_type(minutes: pa.Table) -> pa.Table:
    """How many attempts of a job type were started in each minute, in all queues."""
    summed = minutes.group_by(["bucket", "job_type"]).aggregate([("started", "sum"), ("last", "max")])
    return pa.table(
        {
            "bucket": summed["bucket"],
            "job_type": summed["job_type"],
            "started": summed["started_sum"],
            "last": summed["last_max"],
        }
    )


_JOB_KEYS: Final = ("job_type", "queue")
_DAYS_OF_MINUTES: Final = (
    _Days(
        FAILURE_DAYS,
        gold_tables.FAILURES,
        ("queue", "job_type", "error_type"),
        sums=("failed", "retried"),
        examples=("example_job_id", "example_message"),
    ),
    _Days(
        DEAD_LETTER_DAYS,
        gold_tables.DEAD_LETTERS,
        ("queue", "job_type", "reason"),
        sums=("jobs", "attempts"),
        examples=("example_job_id", "example_message"),
    ),
    _Days(
        OBJECTIVE_DAYS, gold_tables.OBJECTIVES, ("queue", "job_type"), sums=("ended", "in_time"), largest=("target_ms",)
    ),
    _Days(WORKER_DAYS, gold_tables.WORKERS, ("worker_id",), sums=("busy_ms",), largest=("places",)),
    _Days(PEAK_DAYS, gold_tables.ACTIVITY, ("job_type",), largest=("started",), prepare=_started_by_type),
    _Days(EVENT_DAYS, EVENT_COUNTS, sums=("events",), least=("first_at",), largest=("last_at",)),
)
_DAYS_OF_TOTALS: Final = (
    _Days(JOB_DAYS, JOB_TOTALS, _JOB_KEYS, sums=totals.JOB_COUNTS),
    _Days(ATTEMPT_DAYS, ATTEMPT_TOTALS, ("worker_id",), sums=totals.ATTEMPT_COUNTS, long_sums=("busy_ms",)),
)


@dataclass(frozen=True)
class _Sketched:
    """A table with sketches, which only Spark can merge: minutes to hours, hours to days."""

    minutes: Table
    hours: Table
    days: Table
    keys: tuple[str, ...]
    aggregates: Callable[[], list[Column]]


_SKETCHED: Final = (
    _Sketched(gold_tables.ACTIVITY, ACTIVITY_HOURS, ACTIVITY_DAYS, ("queue", "job_type"), gold.summed_activity),
    _Sketched(
        gold_tables.RETRIES, RETRIES_HOURS, RETRIES_DAYS, ("queue", "job_type", "attempt"), gold.summed_recoveries
    ),
)
# The columns of silver that are counted.
_JOBS: Final = Table(
    tables.JOBS.name,
    StructType(
        [
            schemas.JOBS[name]
            for name in ("job_type", "queue", "state", "enqueued_at", "completions", "failures", "retries")
        ]
        + [PART_FIELD]
    ),
)
_ATTEMPTS: Final = Table(
    tables.ATTEMPTS.name,
    StructType([schemas.ATTEMPTS[name] for name in ("worker_id", "outcome", "starts", "run_ms")] + [PART_FIELD]),
)
DAYS: Final = (*(one.days for one in _SKETCHED), *(one.table for one in (*_DAYS_OF_MINUTES, *_DAYS_OF_TOTALS)))
ROLLUPS: Final = (*(one.hours for one in _SKETCHED), JOB_TOTALS, ATTEMPT_TOTALS, *DAYS)


def roll(spark: SparkSession, draft: Draft, *, hours: Collection[int] = (), parts: Collection[int] = ()) -> None:
    """Recompute the rollups of a draft for hours whose gold has changed, and for changed parts of silver."""
    for new_hours, new_parts in _steps(hours, parts):
        _roll_hours(spark, draft, new_hours)
        _roll_totals(spark, draft, new_parts)
        roll_days(
            spark,
            draft,
            of_gold=sorted({_day(hour) for hour in new_hours}),
            of_silver=sorted({part // _PARTS_OF_A_DAY for part in new_parts}),
        )


def _steps(hours: Collection[int], parts: Collection[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The hours and parts of whole days: many days if these have few, since each step costs several queries."""
    by_day: dict[int, tuple[list[int], list[int]]] = {}
    for hour in sorted(hours):
        by_day.setdefault(_day(hour), ([], []))[0].append(hour)
    for part in sorted(parts):
        by_day.setdefault(part // _PARTS_OF_A_DAY, ([], []))[1].append(part)
    step: tuple[list[int], list[int]] = ([], [])
    for day in sorted(by_day):
        of_day = by_day[day]
        if sum(map(len, step)) + sum(map(len, of_day)) > _AT_ONCE:
            yield step
            step = ([], [])
        step[0].extend(of_day[0])
        step[1].extend(of_day[1])
    if any(step):
        yield step


def roll_days(spark: SparkSession, draft: Draft, *, of_gold: Sequence[int], of_silver: Sequence[int]) -> None:
    """Recompute the rows of days, numbered since 1970, from those of hours, minutes and parts."""
    for one in _SKETCHED if of_gold else ():
        rows = read_files(spark, one.hours, draft.files(one.hours, _hourly_parts(of_gold)))
        number = (F.floor(hour_of("bucket") / HOURS_OF_A_DAY) * _PARTS_OF_A_DAY).cast("int")
        summed = rows.groupBy(number.alias(NUMBER), *one.keys).agg(
            *one.aggregates(), F.min("bucket").alias("bucket"), F.max("last").alias("last")
        )
        draft.replace(one.days, map(part_of_day, of_gold), write_parts(summed, one.days, draft))
    for day in of_gold:
        for table in _DAYS_OF_MINUTES:
            _store(draft, table, day, _hourly_parts([day]))
    for day in of_silver:
        for table in _DAYS_OF_TOTALS:
            _store(draft, table, day, range(day * _PARTS_OF_A_DAY, (day + 1) * _PARTS_OF_A_DAY))


def part_of_day(day: int) -> int:
    """The part for the rows of a day: its first."""
    return day * _PARTS_OF_A_DAY


def _day(hour: int) -> int:
    return hour // HOURS_OF_A_DAY


def _hourly_parts(days: Iterable[int]) -> list[int]:
    return [part for day in days for part in range(day * _PARTS_OF_A_DAY, (day + 1) * _PARTS_OF_A_DAY, 2)]


def _roll_hours(spark: SparkSession, draft: Draft, hours: Sequence[int]) -> None:
    parts = [2 * hour for hour in hours]
    for one in _SKETCHED if hours else ():
        rows = read_files(spark, one.minutes, draft.files(one.minutes, parts))
        summed = rows.groupBy((hour_of("bucket") * 2).alias(NUMBER), *one.keys).agg(
            *one.aggregates(), F.min("bucket").alias("bucket"), F.max("bucket").alias("last")
        )
        draft.replace(one.hours, parts, write_parts(summed, one.hours, draft))


def _roll_totals(spark: SparkSession, draft: Draft, parts: Sequence[int]) -> None:
    if not parts:
        return
    number = F.col(PART).alias(NUMBER)
    jobs = totals.job_totals(read_files(spark, _JOBS, draft.files(_JOBS, parts)), number)
    attempts = totals.attempt_totals(read_files(spark, _ATTEMPTS, draft.files(_ATTEMPTS, parts)), number)
    for table, rows in ((JOB_TOTALS, jobs), (ATTEMPT_TOTALS, attempts)):
        draft.replace(table, parts, write_parts(rows, table, draft))


def _store(draft: Draft, days: _Days, day: int, parts: Iterable[int]) -> None:
    rows = days.of(draft.files(days.source, parts))
    place = draft.scratch / days.table.name.replace("/", "-")
    written = place / f"{NUMBER}={part_of_day(day)}"
    if rows is not None:
        written.mkdir(parents=True)
        pq.write_table(rows, written / "day.parquet", compression="zstd")
    draft.replace(days.table, [part_of_day(day)], place)
