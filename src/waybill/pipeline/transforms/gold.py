"""Gold: attempts and jobs counted by time bucket, queue and job type.

The same functions compute the stored minutes and the finer buckets in the report of a short run.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses

from waybill.pipeline.schemas import ACTIVITY, DEAD_LETTERS, FAILURES, PERCENTILES, RETRIES
from waybill.pipeline.transforms.sums import total

UNKNOWN: Final = "unknown"
# The k of a KLL sketch: ranks are right within 0.4 %, which the 99th percentile needs.
_SKETCH_SIZE: Final = 800
_COUNTS: Final = ("enqueued", "started", "completed", "failed", "retried", "discarded")
_MEASURES: Final = ("queue_wait", "run")


def activity(jobs: DataFrame, attempts: DataFrame, bucket_seconds: int = 60) -> DataFrame:
    """What happened in each bucket (`schemas.ACTIVITY`).

    A job is counted as enqueued or discarded, an attempt as started or ended, in the bucket of that moment; its wait
    belongs to the bucket in which it started, its run time to that in which it ended.
    """
    ended = F.col("outcome") != "running"
    facts = [
        _facts(jobs, "enqueued_at", enqueued=F.lit(1)),
        _facts(jobs.where("state = 'discarded'"), "finished_at", discarded=F.lit(1)),
        _facts(attempts, "started_at", started=F.lit(1), queue_wait_ms=F.col("queue_wait_ms")),
        _facts(
            attempts.where(ended),
            "finished_at",
            completed=(F.col("outcome") == "completed").cast("int"),
            failed=(F.col("outcome") == "failed").cast("int"),
            retried=F.col("retried").cast("int"),
            run_ms=F.col("run_ms"),
        ),
    ]
    union = facts[0].unionByName(facts[1]).unionByName(facts[2]).unionByName(facts[3])
    counted = union.groupBy(_bucket(bucket_seconds), "queue", "job_type").agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS),
        F.coalesce(total(F.col("run_ms")), F.lit(0)).alias("busy_ms"),
        *(F.kll_sketch_agg_bigint(name, _SKETCH_SIZE).alias(f"{name}_sketch") for name in ("queue_wait_ms", "run_ms")),
    )
    ends = F.col("completed") + F.col("failed")
    return (
        counted.withColumns(
            {
                "completed_per_second": F.col("completed") / F.lit(float(bucket_seconds)),
                "failure_ratio": F.when(ends > 0, F.col("failed") / ends),
                "queue_wait_ms": percentiles(F.col("queue_wait_ms_sketch")),
                "run_ms": percentiles(F.col("run_ms_sketch")),
            }
        )
        .withColumnsRenamed({"queue_wait_ms_sketch": "queue_wait_sketch", "run_ms_sketch": "run_sketch"})
        .select(*ACTIVITY.fieldNames())
    )


def rolled_up(activity: DataFrame, *keys: Column | str) -> DataFrame:
    """Counts summed and sketches merged over the rows of `activity` with equal `keys`, with percentiles of each."""
    merged = activity.groupBy(*keys).agg(*summed_activity())
    return merged.withColumns({f"{name}_ms": percentiles(F.col(f"{name}_sketch")) for name in _MEASURES}).drop(
        *(f"{name}_sketch" for name in _MEASURES)
    )


def summed_activity() -> list[Column]:
    """Aggregates: the counts of `schemas.ACTIVITY` summed, and its sketches merged."""
    return [
        *(F.sum(name).alias(name) for name in _COUNTS),
        total(F.col("busy_ms")).alias("busy_ms"),
        *(merged_sketch(f"{name}_sketch") for name in _MEASURES),
    ]


def summed_recoveries() -> list[Column]:
    """Aggregates: the counts of `schemas.RETRIES` summed, and its sketches merged."""
    counts = [F.sum(name).alias(name) for name in ("ended", "completed")]
    return [*counts, merged_sketch("recovery_sketch")]


def merged_sketch(name: str) -> Column:
    """An aggregate: the sketches of a group merged to one."""
    return F.kll_merge_agg_bigint(name, _SKETCH_SIZE).alias(name)


def failures(attempts: DataFrame, bucket_seconds: int = 60) -> DataFrame:
    """Failed attempts by error type (`schemas.FAILURES`)."""
    failed = attempts.where("outcome = 'failed'").withColumns(
        {"at": F.col("finished_at"), "error_type": F.coalesce("error_type", F.lit(UNKNOWN))}
    )
    return (
        failed.groupBy(_bucket(bucket_seconds), "queue", "job_type", "error_type")
        .agg(
            F.count("*").alias("failed"),
            F.sum(F.col("retried").cast("bigint")).alias("retried"),
            *_example("error_message", F.struct("at", "job_id", "attempt")),
        )
        .select(*FAILURES.fieldNames())
    )


def dead_letters(jobs: DataFrame, bucket_seconds: int = 60) -> DataFrame:
    """Discarded jobs by the reason for which they were given up (`schemas.DEAD_LETTERS`)."""
    dead = jobs.where("state = 'discarded'").withColumns(
        {"at": F.col("finished_at"), "reason": F.coalesce("error_type", F.lit(UNKNOWN))}
    )
    return (
        dead.groupBy(_bucket(bucket_seconds), "queue", "job_type", "reason")
        .agg(
            F.count("*").alias("jobs"),
            F.sum("attempts").alias("attempts"),
            *_example("error_message", F.struct("at", "job_id")),
        )
        .select(*DEAD_LETTERS.fieldNames())
    )


def retries(attempts: DataFrame, bucket_seconds: int = 60) -> DataFrame:
    """How attempts ended, by their number (`schemas.RETRIES`): what retries achieved."""
    return recoveries(with_first_failure(attempts), bucket_seconds)


def with_first_failure(attempts: DataFrame) -> DataFrame:
    """Attempts with the moment at which the first attempt of their job failed, `first_failed_at`."""
    failed = attempts.where("outcome = 'failed'").groupBy("job_id").agg(F.min("finished_at").alias("first_failed_at"))
    return attempts.join(failed, "job_id", "left")


def recoveries(attempts: DataFrame, bucket_seconds: int = 60) -> DataFrame:
    """The same as `retries`, of attempts that have `first_failed_at`."""
    ended = attempts.where("outcome != 'running'").withColumn("at", F.col("finished_at"))
    recovery = F.unix_millis("finished_at") - F.unix_millis("first_failed_at")
    completed = F.col("outcome") == "completed"
    return (
        ended.withColumn("recovery_ms", F.when(completed & (recovery >= 0), recovery))
        .groupBy(_bucket(bucket_seconds), "queue", "job_type", "attempt")
        .agg(
            F.count("*").alias("ended"),
            F.count_if(completed).alias("completed"),
            F.kll_sketch_agg_bigint("recovery_ms", _SKETCH_SIZE).alias("recovery_sketch"),
        )
        .where("bucket is not null")
        .select(*RETRIES.fieldNames())
    )


def merged_percentiles(sketch: str, ranks: Sequence[float]) -> Column:
    """An aggregate: the percentiles of the merged sketches of a group; null if they are empty."""
    return percentiles(merged_sketch(sketch), ranks)


def percentiles(sketch: Column, wanted: Sequence[float] = PERCENTILES) -> Column:
    """The percentiles of a sketch; null for an empty one."""
    ranks = F.array(*(F.lit(rank) for rank in wanted))
    filled = F.kll_sketch_get_n_bigint(sketch) > 0
    return F.when(filled, F.kll_sketch_get_quantile_bigint(F.when(filled, sketch), ranks))


def bucket_start(time: Column, seconds: int) -> Column:
    """The start of the bucket of `seconds` that `time` falls into, counted from the epoch."""
    return F.timestamp_seconds(F.floor(F.unix_seconds(time) / F.lit(seconds)) * F.lit(seconds))


def _bucket(seconds: int) -> Column:
    return bucket_start(F.col("at"), seconds).alias("bucket")


def _facts(rows: DataFrame, time: str, **values: Column) -> DataFrame:
    """Rows of (at, queue, job_type, counts, measures), with null for what is not given."""
    measures = ("queue_wait_ms", "run_ms")
    columns = {name: values.get(name, F.lit(None)).cast("bigint") for name in (*_COUNTS, *measures)}
    moment = F.col(time).alias("at")
    return rows.where(F.col(time).isNotNull()).select(
        moment, "queue", "job_type", *(column.alias(name) for name, column in columns.items())
    )


def _example(message: str, order: Column) -> list[Column]:
    """The first job of a group, and its error."""
    return [F.min_by("job_id", order).alias("example_job_id"), F.min_by(message, order).alias("example_message")]
