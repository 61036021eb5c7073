"""Facts: what attempts and jobs contribute to the gold of one hour.

A job may be pushed in one hour and end in another. It has a row of facts for each hour, with only the values that count
in that hour. So gold of an hour is computed from the facts of that hour, and a changed job only affects the hours whose
facts have changed.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from waybill.pipeline.parts import HOUR_MS, hour_of, hour_of_ms
from waybill.pipeline.schemas import ATTEMPTS, JOBS
from waybill.pipeline.transforms.workers import LONGEST_MS

HOUR: Final = "hour"
_HOUR_FIELD: Final = StructField(HOUR, IntegerType())
_ENDED_JOB: Final = ("state", "finished_at", "attempts", "error_type", "error_message")
_ENDED_ATTEMPT: Final = ("outcome", "finished_at", "run_ms", "retried", "error_type", "error_message")
FIRST_FAILED: Final = StructField("first_failed_at", TimestampType())


def _fields(schema: StructType, *names: str) -> list[StructField]:
    return [StructField(name, schema[name].dataType) for name in names]


JOB_FACTS: Final = StructType(
    [
        *_fields(JOBS, "job_id", "job_type", "queue", "enqueued_at", *_ENDED_JOB),
        StructField("since", TimestampType()),
        _HOUR_FIELD,
    ]
)
ATTEMPT_FACTS: Final = StructType(
    [
        *_fields(ATTEMPTS, "job_id", "attempt", "job_type", "queue", "started_at", "queue_wait_ms", *_ENDED_ATTEMPT),
        FIRST_FAILED,
        StructField("worker_id", StringType()),
        StructField("start_ms", LongType()),
        StructField("end_ms", LongType()),
        _HOUR_FIELD,
    ]
)


def job_facts(jobs: DataFrame) -> DataFrame:
    """The facts of jobs (`JOB_FACTS`), with other columns of `jobs` after them."""
    pushed, ended = hour_of("enqueued_at"), hour_of("finished_at")
    others = [name for name in jobs.columns if name not in JOBS.fieldNames()]
    rows = jobs.withColumn(HOUR, F.explode(F.array_distinct(F.array_compact(F.array(pushed, ended)))))
    in_it = hour_of("finished_at") == F.col(HOUR)
    columns = {
        "since": F.when(in_it, F.greatest("enqueued_at", "scheduled_at")),
        "enqueued_at": F.when(hour_of("enqueued_at") == F.col(HOUR), F.col("enqueued_at")),
        **{name: F.when(in_it, F.col(name)) for name in _ENDED_JOB if name != "finished_at"},
        "finished_at": F.when(in_it, F.col("finished_at")),
    }
    kept = [name for name in JOB_FACTS.fieldNames() if name not in columns]
    return rows.select(*kept, *others, *(column.alias(name) for name, column in columns.items())).select(
        *JOB_FACTS.fieldNames(), *others
    )


def attempt_facts(attempts: DataFrame) -> DataFrame:
    """The facts of attempts (`ATTEMPT_FACTS`), with other columns of `attempts` after them.

    An attempt occupies a place of its worker in all hours from its start to its end.
    """
    start = F.unix_millis("started_at")
    end = F.least(F.unix_millis("finished_at"), start + F.lit(LONGEST_MS))
    others = [name for name in attempts.columns if name not in {*ATTEMPTS.fieldNames(), FIRST_FAILED.name}]
    is_span = F.col("started_at").isNotNull() & (F.col("finished_at") >= F.col("started_at"))
    spanned = attempts.withColumns({"start_ms": F.when(is_span, start), "end_ms": F.when(is_span, end)})
    first, last = hour_of_ms(F.col("start_ms")), hour_of_ms(F.col("end_ms"))
    none = F.array().cast("array<int>")
    hours = F.concat(
        F.array_compact(F.array(hour_of("started_at"), hour_of("finished_at"))),
        F.coalesce(F.when(is_span, F.sequence(first, last)), none),
    )
    rows = spanned.withColumn(HOUR, F.explode(F.array_distinct(hours)))
    began, ended = hour_of("started_at") == F.col(HOUR), hour_of("finished_at") == F.col(HOUR)
    busy = F.col("start_ms").isNotNull() & F.col(HOUR).between(first, last)
    conditions: dict[str, Column] = {
        **dict.fromkeys(("started_at", "queue_wait_ms"), began),
        **dict.fromkeys((*_ENDED_ATTEMPT, FIRST_FAILED.name), ended),
        **dict.fromkeys(("worker_id", "start_ms", "end_ms"), busy),
    }
    columns = [
        F.when(conditions[name], F.col(name)).alias(name) if name in conditions else F.col(name)
        for name in ATTEMPT_FACTS.fieldNames()
    ]
    return rows.select(*columns, *others)


def changed(old: DataFrame, new: DataFrame, columns: list[str]) -> DataFrame:
    """The hours whose facts differ between `old` and `new`, which have a column `is_home`.

    `differs`: gold of the hour changes. `strays`: so do the rows stored apart from their jobs (`is_home` false).
    """
    signed = new.withColumn("sign", F.lit(1)).unionByName(old.withColumn("sign", F.lit(-1)))
    summed = signed.groupBy(*columns).agg(
        F.sum("sign").alias("differs"), F.sum(F.when(~F.col("is_home"), F.col("sign")).otherwise(0)).alias("strays")
    )
    return (
        summed.groupBy(HOUR)
        .agg(F.max(F.col("differs") != 0), F.max(F.col("strays") != 0))
        .toDF(HOUR, "differs", "strays")
    )


def timed_jobs_of(facts: DataFrame) -> DataFrame:
    """The facts of ended jobs, with the time since which each could have started."""
    return facts.withColumns({"enqueued_at": F.col("since"), "scheduled_at": F.col("since")})


def minutes_of(facts: DataFrame, bucket_ms: int) -> DataFrame:
    """The spans of busy places of workers: the first and last bucket in the hour of the row."""
    length = F.lit(bucket_ms)
    in_hour = HOUR_MS // bucket_ms
    begin = (F.col(HOUR).cast("bigint") * in_hour).alias("begin")
    first, last = F.floor(F.col("start_ms") / length), F.floor(F.col("end_ms") / length)
    spans = facts.where(F.col("start_ms").isNotNull()).select(
        "worker_id",
        F.col("start_ms").alias("start"),
        F.col("end_ms").alias("end"),
        first.alias("first"),
        last.alias("last"),
        begin,
    )
    return spans.withColumns(
        {"from": F.greatest("first", "begin"), "to": F.least("last", F.col("begin") + (in_hour - 1))}
    ).drop("begin")
