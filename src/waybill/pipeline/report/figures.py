"""The figures of a report, collected with a few small queries.

The terminal and the page only use these plain values, not Spark.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from waybill.pipeline.report.alert_rows import AlertRow, recent_alerts
from waybill.pipeline.report.formatting import clipped
from waybill.pipeline.report.inputs import MINUTE_S, Inputs, inputs_of
from waybill.pipeline.report.recommendations import Recommendation, recommend
from waybill.pipeline.tables import TableStore
from waybill.pipeline.transforms import gold
from waybill.pipeline.transforms.sums import total
from waybill.pipeline.transforms.totals import JOB_COUNTS

# The maximum number of buckets of a time axis, and their possible lengths.
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
# Clocks differ. Events further ahead of this machine's clock are counted, but not drawn.
_AHEAD: Final = timedelta(hours=1)
# The maximum rows of a list; the last one sums up the rest.
_ROWS_MAX: Final = 50
OTHERS: Final = "others"
# The maximum length of example texts, and the maximum names in a row.
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
    """Counts of all data.

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
class DeadLetterRow:
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
    if it never reported its places.
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
    dead_letters: list[DeadLetterRow]
    workers: list[WorkerShare]
    recommendations: list[Recommendation]
    malformed_reasons: dict[str, int]
    errors: list[ErrorTotal] = field(default_factory=list)
    alerts: list[AlertRow] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """The report as JSON types, times in RFC 3339."""
        plain = _plain(asdict(self))
        if not isinstance(plain, dict):
            raise TypeError("a report is an object")
        return plain


def collect(spark: SparkSession, store: TableStore, now: datetime | None = None) -> Report:
    """Read the tables of `store`. A pipeline that has not run yet gives a report of zeros. `now`: the reader's time."""
    return report_of(inputs_of(spark, store), now, recent_alerts(store, _ROWS_MAX))


def report_of(inputs: Inputs, now: datetime | None = None, alerts: Sequence[AlertRow] = ()) -> Report:
    """The report of these inputs."""
    malformed, reasons = _quarantined(inputs.quarantine)
    latest = (now or datetime.now(UTC)) + _AHEAD
    events = inputs.events(latest)
    start, end = _span(events["start"], events["end"], inputs.activity.where(F.col("bucket") <= F.lit(latest)))
    seconds = _bucket_seconds(start, end)
    totals = _totals(inputs, events=events["events"], malformed=malformed, ahead=events["ahead"])
    return Report(
        start=start,
        end=end,
        bucket_seconds=seconds,
        totals=totals,
        job_types=_job_types(inputs, totals),
        timeline=_timeline(inputs.timeline(seconds, latest), seconds),
        failures=_failures(inputs.failures),
        dead_letters=_dead_letters(inputs.dead_letters),
        workers=_workers(inputs),
        recommendations=recommend(inputs),
        malformed_reasons=reasons,
        errors=_errors(inputs.failures),
        alerts=list(alerts),
    )


def _quarantined(rows: DataFrame) -> tuple[int, dict[str, int]]:
    """The number of events in quarantine, and the most frequent reasons. Reasons quote events, so they may be many."""
    counted = rows.groupBy("reason").agg(F.count("*").alias("events"))
    shown, is_cut = _cut(counted.orderBy(F.desc("events"), "reason").limit(_ROWS_MAX + 1).collect())
    reasons: Counter[str] = Counter()
    for row in shown:
        # Several may be the same when truncated.
        reasons[clipped(row["reason"])] += row["events"]
    if is_cut:
        reasons[OTHERS] += rows.count() - reasons.total()
    return reasons.total(), dict(reasons)


def _span(start: datetime | None, end: datetime | None, drawn: DataFrame) -> tuple[datetime | None, datetime | None]:
    """The times of the first and last event, or of the first bucket: gold is kept longer than events are."""
    row = drawn.agg(F.min("bucket")).first()
    first = None if row is None else row[0]
    if start is None or end is None or first is None:
        return start, end
    return (start if first > start - timedelta(seconds=MINUTE_S) else first), end


def _bucket_seconds(start: datetime | None, end: datetime | None) -> int:
    """The shortest bucket with which the whole span fits the axis."""
    if start is None or end is None:
        return MINUTE_S
    span = (end - start).total_seconds()
    fitting = next((seconds for seconds in _BUCKET_SECONDS if span / seconds <= _BUCKETS_MAX), None)
    # For longer spans, use a multiple of the longest bucket.
    return fitting or _BUCKET_SECONDS[-1] * math.ceil(span / (_BUCKETS_MAX * _BUCKET_SECONDS[-1]))


def _totals(inputs: Inputs, *, events: int, malformed: int, ahead: int) -> Totals:
    counted = _single_row(inputs.jobs.agg(*_sums(JOB_COUNTS)))
    tried = _single_row(inputs.attempts.agg(*_sums(("attempts", "redelivered"))))
    rolled = gold.rolled_up(inputs.activity, F.lit(1).alias("all")).first()
    return Totals(
        events=events,
        malformed=malformed,
        **{name: int(value) for name, value in (counted | tried).items()},
        queue_wait=_percentiles(rolled, "queue_wait_ms"),
        run=_percentiles(rolled, "run_ms"),
        ahead=ahead,
    )


def _sums(names: Iterable[str]) -> list[Column]:
    return [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]


def _job_types(inputs: Inputs, totals: Totals) -> list[JobType]:
    keys = ("job_type", "queue")
    activity, objectives = inputs.activity, inputs.objectives
    summed = inputs.jobs.groupBy(*keys).agg(*_sums(JOB_COUNTS))
    shown, is_cut = _cut(summed.orderBy(F.desc("jobs"), *keys).limit(_ROWS_MAX + 1).collect())
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
    """The rows to show, and whether there are others, which need a last row with their sums."""
    return (rows[: _ROWS_MAX - 1], True) if len(rows) > _ROWS_MAX else (rows, False)


def _among(rows: list[Row], keys: Sequence[str]) -> Column:
    """Whether a row has the same keys as one of `rows`. Null equals null."""
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


def _dead_letters(dead_letters: DataFrame) -> list[DeadLetterRow]:
    first = F.struct("bucket", "queue", "job_type")
    grouped = dead_letters.groupBy("reason").agg(
        F.sum("jobs").alias("jobs"),
        F.sum("attempts").alias("attempts"),
        _short(F.min_by("example_job_id", first)).alias("example_job_id"),
        _short(F.min_by("example_message", first)).alias("example_message"),
    )
    shown, is_cut = _cut(grouped.orderBy(F.desc("jobs"), "reason").limit(_ROWS_MAX + 1).collect())
    job_types = _first_job_types(dead_letters, shown)
    rows = [DeadLetterRow(job_types=job_types.get(row["reason"], []), **row.asDict()) for row in shown]
    if is_cut:
        rest = _rest(dead_letters, shown, ("reason",), "jobs", "attempts")
        rows.append(DeadLetterRow(OTHERS, rest["jobs"], rest["attempts"], [], "", None))
    return rows


def _first_job_types(dead_letters: DataFrame, reasons: list[Row]) -> dict[str, list[str]]:
    """The first job types of each reason, by name. A set of all of them might not fit in memory."""
    pairs = dead_letters.where(_among(reasons, ("reason",)) & F.col("job_type").isNotNull())
    place = F.row_number().over(Window.partitionBy("reason").orderBy("job_type"))
    numbered = pairs.select("reason", "job_type").distinct().withColumn("place", place)
    found: dict[str, list[str]] = {}
    for row in numbered.where(F.col("place") <= _NAMES_MAX).orderBy("reason", "place").collect():
        found.setdefault(row["reason"], []).append(row["job_type"])
    return found


def _workers(inputs: Inputs) -> list[WorkerShare]:
    minutes = F.timestamp_diff("minute", F.min("bucket"), F.max("last")) + 1
    room_ms = F.max("places").cast("double") * minutes * F.lit(MINUTE_S * 1000)
    busy = inputs.workers.groupBy("worker_id").agg(
        F.max("places").alias("places"), (F.sum("busy_ms") / room_ms).alias("utilisation")
    )
    busy_ms = F.coalesce(total(F.col("busy_ms")), F.lit(0)).alias("busy_ms")
    counts = [*_sums(("attempts", "completed", "failed")), busy_ms]
    joined = inputs.attempts.groupBy("worker_id").agg(*counts).join(busy, "worker_id", "left")
    shown, is_cut = _cut(joined.orderBy(F.desc("attempts"), "worker_id").limit(_ROWS_MAX + 1).collect())
    rows = [WorkerShare(**row.asDict()) for row in shown]
    if is_cut:
        rest = _single_row(inputs.attempts.where(~_among(shown, ("worker_id",))).agg(*counts))
        rows.append(WorkerShare(OTHERS, **rest, places=None, utilisation=None))
    return rows


def _short(text: Column) -> Column:
    """A text, truncated: texts of jobs may have any length."""
    return F.left(text, F.lit(_TEXT_MAX))


def _rest(rows: DataFrame, shown: list[Row], keys: Sequence[str], *names: str) -> dict[str, int]:
    """The sums over the rows that are not among those `shown`."""
    return _single_row(rows.where(~_among(shown, keys)).agg(*(F.sum(name).alias(name) for name in names)))


def _single_row(aggregate: DataFrame) -> dict[str, int]:
    """The single row of an aggregate without keys."""
    row = aggregate.first()
    return {} if row is None else row.asDict()


def _percentiles(row: Row | None, column: str) -> Percentiles | None:
    values = None if row is None else row[column]
    return None if values is None else Percentiles(*(int(value) for value in values))


def _plain(value: object) -> object:
    """Convert dataclasses to dictionaries, and times to strings."""
    if isinstance(value, datetime):
        return value.isoformat() + "Z"
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
