"""The figures of a report, collected from silver and gold with a few small queries.

Everything after this file works on plain values: neither the terminal nor the page knows Spark.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from waybill.pipeline import tables
from waybill.pipeline.event_counts import EVENT_COUNTS
from waybill.pipeline.report.recommendations import Recommendation, recommend
from waybill.pipeline.report.words import clipped
from waybill.pipeline.retention import all_events
from waybill.pipeline.tables import TableStore
from waybill.pipeline.transforms import gold, silver
from waybill.pipeline.transforms.sums import total

# A time axis has at most this many buckets, each of one of these lengths.
_BUCKETS_MAX: Final = 120
_BUCKET_SECONDS: Final = (
    1,
    2,
    5,
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    10_800,
    21_600,
    86_400,
    604_800,
    2_592_000,
)
_STORED_BUCKET_S: Final = 60
# Clocks of machines differ. Events further ahead of this one's are counted, but not drawn.
_AHEAD: Final = timedelta(hours=1)
# The rows of a list. In longer ones, the last row sums up the rest.
_ROWS_MAX: Final = 50
OTHERS: Final = "others"
# Texts of jobs, as examples, and how many names are listed in a row.
_TEXT_MAX: Final = 500
_NAMES_MAX: Final = 12


@dataclass(frozen=True)
class Percentiles:
    """The median, 95th and 99th percentile, in milliseconds."""

    p50: int
    p95: int
    p99: int


@dataclass(frozen=True)
class Totals:
    """Counts of everything that was read.

    `pushed` are jobs whose push was seen. `redelivered` are attempts that were started more than once, `repeated` jobs
    that were completed more than once. `open` are jobs that had not ended yet. `ahead` are events whose time is more
    than an hour ahead of the clock of this machine: they are counted, and not drawn.
    """

    events: int
    malformed: int
    jobs: int
    pushed: int
    completed: int
    discarded: int
    cancelled: int
    open: int
    attempts: int
    failures: int
    retries: int
    recovered: int
    redelivered: int
    repeated: int
    queue_wait: Percentiles | None
    run: Percentiles | None
    ahead: int = 0


@dataclass(frozen=True)
class JobType:
    """One job type in one queue. `recovered` jobs completed after at least one retry.

    Of the jobs that `ended`, `in_time` were completed within `target_ms`.
    """

    job_type: str
    queue: str
    pushed: int
    completed: int
    recovered: int
    discarded: int
    open: int
    failures: int
    retries: int
    queue_wait: Percentiles | None
    run: Percentiles | None
    target_ms: int
    ended: int
    in_time: int


@dataclass(frozen=True)
class Bucket:
    """Counts of one bucket: the `bucket_seconds` of the report from `start` on."""

    start: datetime
    enqueued: int
    completed: int
    failed: int
    discarded: int
    queue_wait: Percentiles | None
    run: Percentiles | None


@dataclass(frozen=True)
class Failure:
    """Failed attempts of one job type with one error type, and how many of them were retried."""

    job_type: str
    error_type: str
    failed: int
    retried: int
    example_message: str | None


@dataclass(frozen=True)
class ErrorTotal:
    """Failed attempts with one error type, of all job types."""

    error_type: str
    failed: int
    retried: int


@dataclass(frozen=True)
class DeadLetters:
    """Jobs that were discarded for one reason, with one of them as an example."""

    reason: str
    jobs: int
    attempts: int
    job_types: list[str]
    example_job_id: str
    example_message: str | None


@dataclass(frozen=True)
class WorkerShare:
    """The attempts of one worker.

    `utilisation` is the share of the time of all its `places` that it was busy, from its first minute to its last; None
    if it never said how many it has.
    """

    worker_id: str
    attempts: int
    completed: int
    failed: int
    busy_ms: int
    places: int | None
    utilisation: float | None


@dataclass(frozen=True)
class Report:
    """Everything that a report shows. Times are UTC; `start` and `end` are those of the first and last event.

    Lists have at most 50 rows, whose last one, `others`, holds the rest: so they add up to the totals.
    """

    start: datetime | None
    end: datetime | None
    bucket_seconds: int
    totals: Totals
    job_types: list[JobType]
    timeline: list[Bucket]
    failures: list[Failure]
    dead_letters: list[DeadLetters]
    workers: list[WorkerShare]
    recommendations: list[Recommendation]
    malformed_reasons: dict[str, int]
    errors: list[ErrorTotal] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """The report as JSON types, times in RFC 3339."""
        plain = _plain(asdict(self))
        if not isinstance(plain, dict):
            raise TypeError("a report is an object")
        return plain


def collect(spark: SparkSession, store: TableStore, now: datetime | None = None) -> Report:
    """Read the tables of `store`. A pipeline that has not run yet gives a report of zeros. `now`: the reader's time."""
    jobs = store.read(spark, tables.JOBS)
    attempts = store.read(spark, tables.ATTEMPTS)
    activity = store.read(spark, tables.ACTIVITY)
    failures = store.read(spark, tables.FAILURES)
    malformed, reasons = _quarantined(store.read(spark, tables.QUARANTINE))
    latest = (now or datetime.now(UTC)) + _AHEAD
    events = _events(spark, store, latest)
    drawn = activity.where(F.col("bucket") <= F.lit(latest))
    start, end = _span(events["start"], events["end"], drawn)
    seconds = _bucket_seconds(start, end)
    if seconds < _STORED_BUCKET_S:
        drawn = gold.activity(jobs, attempts, seconds).where(F.col("bucket") <= F.lit(latest))
    totals = _totals(jobs, attempts, activity, events=events["events"], malformed=malformed, ahead=events["ahead"])
    return Report(
        start=start,
        end=end,
        bucket_seconds=seconds,
        totals=totals,
        job_types=_job_types(jobs, activity, store.read(spark, tables.OBJECTIVES), totals),
        timeline=_timeline(drawn, seconds),
        failures=_failures(failures),
        dead_letters=_dead_letters(store.read(spark, tables.DEAD_LETTERS)),
        workers=_workers(attempts, store.read(spark, tables.WORKERS)),
        recommendations=recommend(spark, store),
        malformed_reasons=reasons,
        errors=_errors(failures),
    )


def _quarantined(rows: DataFrame) -> tuple[int, dict[str, int]]:
    """How many events are there, and the most frequent reasons: with their places in texts there are any number."""
    counted = rows.groupBy("reason").count()
    top = counted.orderBy(F.desc("count"), "reason").limit(_ROWS_MAX).collect()
    reasons = {clipped(row["reason"]): int(row["count"]) for row in top}
    return (rows.count() if len(top) == _ROWS_MAX else sum(int(row["count"]) for row in top)), reasons


def _events(spark: SparkSession, store: TableStore, latest: datetime) -> dict[str, Any]:
    """How many events there are, how many of them are ahead, and the first and last time of the others."""
    if store.has(EVENT_COUNTS):
        return _counted_events(store.read(spark, EVENT_COUNTS), latest)
    events = all_events(spark, store)
    ahead = F.col("time") > F.lit(latest)
    time = F.when(silver.plausible("time") & ~ahead, F.col("time"))
    row = events.agg(
        F.count("*").alias("events"),
        F.count_if(ahead).alias("ahead"),
        F.min(time).alias("start"),
        F.max(time).alias("end"),
    ).first()
    return {"events": 0, "ahead": 0, "start": None, "end": None} if row is None else row.asDict()


def _counted_events(counts: DataFrame, latest: datetime) -> dict[str, Any]:
    """The same from the counts by minute: a minute is ahead if its first event is."""
    ahead = F.coalesce(F.col("first_at") > F.lit(latest), F.lit(False))  # noqa: FBT003 - Spark's name
    row = counts.agg(
        F.coalesce(F.sum("events"), F.lit(0)).alias("events"),
        F.coalesce(F.sum(F.when(ahead, F.col("events"))), F.lit(0)).alias("ahead"),
        F.min(F.when(~ahead, F.col("first_at"))).alias("start"),
        F.max(F.when(~ahead, F.least("last_at", F.lit(latest)))).alias("end"),
    ).first()
    return {"events": 0, "ahead": 0, "start": None, "end": None} if row is None else row.asDict()


def _span(start: datetime | None, end: datetime | None, drawn: DataFrame) -> tuple[datetime | None, datetime | None]:
    """The times of the first and last event, or of the first bucket: gold is kept longer than events are."""
    row = drawn.agg(F.min("bucket")).first()
    first = None if row is None else row[0]
    if start is None or end is None or first is None:
        return start, end
    return (start if first > start - timedelta(seconds=_STORED_BUCKET_S) else first), end


def _bucket_seconds(start: datetime | None, end: datetime | None) -> int:
    """The shortest bucket with which the whole span fits the axis."""
    if start is None or end is None:
        return _STORED_BUCKET_S
    span = (end - start).total_seconds()
    fitting = next((seconds for seconds in _BUCKET_SECONDS if span / seconds <= _BUCKETS_MAX), None)
    # Of so long a span, the longest bucket as often as it takes.
    return fitting or _BUCKET_SECONDS[-1] * math.ceil(span / (_BUCKETS_MAX * _BUCKET_SECONDS[-1]))


def _job_counts() -> list[Column]:
    """What is counted of jobs, in all and by type."""
    state = F.col("state")
    ended = state.isin("completed", "discarded", "cancelled", "expired")
    conditions = {
        "pushed": F.col("enqueued_at").isNotNull(),
        "completed": state == "completed",
        "recovered": (state == "completed") & (F.col("failures") > 0),
        "discarded": state == "discarded",
        "cancelled": state.isin("cancelled", "expired"),
        "open": ~ended,
        "repeated": F.col("completions") > 1,
    }
    sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("failures", "retries")]
    return [F.count("*").alias("jobs"), *(F.count_if(test).alias(name) for name, test in conditions.items()), *sums]


def _totals(
    jobs: DataFrame, attempts: DataFrame, activity: DataFrame, *, events: int, malformed: int, ahead: int
) -> Totals:
    counted = _only(jobs.agg(*_job_counts()))
    tried = _only(attempts.agg(F.count("*").alias("attempts"), F.count_if(F.col("starts") > 1).alias("redelivered")))
    rolled = gold.rolled_up(activity, F.lit(1).alias("all")).first()
    return Totals(
        events=events,
        malformed=malformed,
        **{name: int(value) for name, value in (counted | tried).items()},
        queue_wait=_percentiles(rolled, "queue_wait_ms"),
        run=_percentiles(rolled, "run_ms"),
        ahead=ahead,
    )


def _job_types(jobs: DataFrame, activity: DataFrame, objectives: DataFrame, totals: Totals) -> list[JobType]:
    keys = ("job_type", "queue")
    counted = jobs.groupBy(*keys).agg(*_job_counts()).orderBy(F.desc("jobs"), *keys).limit(_ROWS_MAX + 1).collect()
    shown, is_cut = _cut(counted)
    one_of = _among(shown, keys)
    ended, drawn = (objectives.where(one_of), activity.where(one_of)) if is_cut else (objectives, activity)
    attained = ended.groupBy(*keys).agg(F.max("target_ms"), F.sum("ended"), F.sum("in_time")).collect()
    in_time = {(row[0], row[1]): (int(row[2]), int(row[3]), int(row[4])) for row in attained}
    rolled = {(row["job_type"], row["queue"]): row for row in gold.rolled_up(drawn, *keys).collect()}
    names = ("pushed", "completed", "recovered", "discarded", "open", "failures", "retries")
    rows = [
        JobType(
            job_type=row["job_type"] or gold.UNKNOWN,
            queue=row["queue"] or gold.UNKNOWN,
            **{name: int(row[name]) for name in names},
            queue_wait=_percentiles(rolled.get((row["job_type"], row["queue"])), "queue_wait_ms"),
            run=_percentiles(rolled.get((row["job_type"], row["queue"])), "run_ms"),
            **_attained(in_time.get((row["job_type"], row["queue"]))),
        )
        for row in shown
    ]
    if not is_cut:
        return rows
    rest = {name: getattr(totals, name) - sum(getattr(row, name) for row in rows) for name in names}
    others = objectives.where(~one_of).agg(F.lit(0), F.sum("ended"), F.sum("in_time")).first()
    ends = None if others is None or others[1] is None else (0, int(others[1]), int(others[2]))
    rolled_rest = gold.rolled_up(activity.where(~one_of), F.lit(1).alias("all")).first()
    waits = _percentiles(rolled_rest, "queue_wait_ms"), _percentiles(rolled_rest, "run_ms")
    return [*rows, JobType(OTHERS, OTHERS, **rest, queue_wait=waits[0], run=waits[1], **_attained(ends))]


def _cut(rows: list[Row]) -> tuple[list[Row], bool]:
    """The rows that are shown, of one more than there is room for, and whether others are summed up in the last."""
    return (rows[: _ROWS_MAX - 1], True) if len(rows) > _ROWS_MAX else (rows, False)


def _among(rows: list[Row], keys: Sequence[str]) -> Column:
    """Whether a row has the keys of one of these, null being a key like others."""
    found = F.lit(False)  # noqa: FBT003 - Spark's name
    for row in rows:
        same = F.lit(True)  # noqa: FBT003 - Spark's name
        for key in keys:
            same = same & F.col(key).eqNullSafe(F.lit(row[key]))
        found = found | same
    return found


def _attained(found: tuple[int, int, int] | None) -> dict[str, int]:
    """The objective of a job type, how many jobs ended, and how many of these in time."""
    return dict(zip(("target_ms", "ended", "in_time"), found or (0, 0, 0), strict=True))


def _timeline(activity: DataFrame, seconds: int) -> list[Bucket]:
    """One entry per bucket, including empty ones, so that pauses are visible."""
    start = gold.bucket_start(F.col("bucket"), seconds).alias("start")
    found = {row["start"]: row for row in gold.rolled_up(activity, start).collect()}
    if not found:
        return []
    step = timedelta(seconds=seconds)
    count = (max(found) - min(found)) // step + 1
    return [_bucket(min(found) + step * index, found.get(min(found) + step * index)) for index in range(count)]


def _bucket(start: datetime, row: Row | None) -> Bucket:
    counts = {name: int(row[name]) if row else 0 for name in ("enqueued", "completed", "failed", "discarded")}
    return Bucket(start, **counts, queue_wait=_percentiles(row, "queue_wait_ms"), run=_percentiles(row, "run_ms"))


def _failures(failures: DataFrame) -> list[Failure]:
    keys = ("job_type", "error_type")
    grouped = failures.groupBy(*keys).agg(
        F.sum("failed").alias("failed"),
        F.sum("retried").alias("retried"),
        _short(F.min_by("example_message", F.struct("bucket", "queue"))).alias("example_message"),
    )
    found = grouped.orderBy(F.desc("failed"), *keys).limit(_ROWS_MAX + 1).collect()
    shown, is_cut = _cut(found)
    rows = [Failure(**row.asDict()) for row in shown]
    if is_cut:
        rest = _rest(failures, shown, keys, "failed", "retried")
        rows.append(Failure(OTHERS, OTHERS, rest["failed"], rest["retried"], None))
    return rows


def _errors(failures: DataFrame) -> list[ErrorTotal]:
    grouped = failures.groupBy("error_type").agg(F.sum("failed").alias("failed"), F.sum("retried").alias("retried"))
    shown, is_cut = _cut(grouped.orderBy(F.desc("failed"), "error_type").limit(_ROWS_MAX + 1).collect())
    rows = [ErrorTotal(**row.asDict()) for row in shown]
    if is_cut:
        rest = _rest(failures, shown, ("error_type",), "failed", "retried")
        rows.append(ErrorTotal(OTHERS, rest["failed"], rest["retried"]))
    return rows


def _dead_letters(dead_letters: DataFrame) -> list[DeadLetters]:
    first = F.struct("bucket", "queue", "job_type")
    grouped = dead_letters.groupBy("reason").agg(
        F.sum("jobs").alias("jobs"),
        F.sum("attempts").alias("attempts"),
        F.slice(F.sort_array(F.collect_set("job_type")), 1, _NAMES_MAX).alias("job_types"),
        _short(F.min_by("example_job_id", first)).alias("example_job_id"),
        _short(F.min_by("example_message", first)).alias("example_message"),
    )
    shown, is_cut = _cut(grouped.orderBy(F.desc("jobs"), "reason").limit(_ROWS_MAX + 1).collect())
    rows = [DeadLetters(**row.asDict()) for row in shown]
    if is_cut:
        rest = _rest(dead_letters, shown, ("reason",), "jobs", "attempts")
        rows.append(DeadLetters(OTHERS, rest["jobs"], rest["attempts"], [], "", None))
    return rows


def _workers(attempts: DataFrame, utilisation: DataFrame) -> list[WorkerShare]:
    minutes = F.timestamp_diff("minute", F.min("bucket"), F.max("bucket")) + 1
    room_ms = F.max("places").cast("double") * minutes * F.lit(_STORED_BUCKET_S * 1000)
    busy = utilisation.groupBy("worker_id").agg(
        F.max("places").alias("places"), (F.sum("busy_ms") / room_ms).alias("utilisation")
    )
    named = attempts.withColumn("worker_id", F.coalesce("worker_id", F.lit(gold.UNKNOWN)))
    counts = [
        F.count("*").alias("attempts"),
        F.count_if(F.col("outcome") == "completed").alias("completed"),
        F.count_if(F.col("outcome") == "failed").alias("failed"),
        F.coalesce(total(F.col("run_ms")), F.lit(0)).alias("busy_ms"),
    ]
    joined = named.groupBy("worker_id").agg(*counts).join(busy, "worker_id", "left")
    shown, is_cut = _cut(joined.orderBy(F.desc("attempts"), "worker_id").limit(_ROWS_MAX + 1).collect())
    rows = [WorkerShare(**row.asDict()) for row in shown]
    if is_cut:
        rest = _only(named.where(~_among(shown, ("worker_id",))).agg(*counts))
        rows.append(WorkerShare(OTHERS, **rest, places=None, utilisation=None))
    return rows


def _short(text: Column) -> Column:
    """The beginning of a text: texts of jobs may have any length."""
    return F.left(text, F.lit(_TEXT_MAX))


def _rest(rows: DataFrame, shown: list[Row], keys: Sequence[str], *names: str) -> dict[str, int]:
    """The sums over the rows that are not among those `shown`."""
    return _only(rows.where(~_among(shown, keys)).agg(*(F.sum(name).alias(name) for name in names)))


def _only(aggregate: DataFrame) -> dict[str, int]:
    """The single row of an aggregate without keys."""
    row = aggregate.first()
    return {} if row is None else row.asDict()


def _percentiles(row: Row | None, column: str) -> Percentiles | None:
    values = None if row is None else row[column]
    return None if values is None else Percentiles(*(int(value) for value in values))


def _plain(value: object) -> object:
    """Dataclasses turned to dictionaries, with their moments as text."""
    if isinstance(value, datetime):
        return value.isoformat() + "Z"
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
