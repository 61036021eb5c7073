"""Totals of jobs and attempts for reports. Totals of parts can be added."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses
from pyspark.sql.types import LongType, StringType, StructField, StructType

from waybill.pipeline.transforms.gold import UNKNOWN
from waybill.pipeline.transforms.sums import total

JOB_COUNTS: Final = (
    *("jobs", "pushed", "completed", "recovered", "discarded", "cancelled", "open", "repeated"),
    *("failures", "retries"),
)
ATTEMPT_COUNTS: Final = ("attempts", "redelivered", "completed", "failed")


def _table(keys: tuple[str, ...], counts: tuple[str, ...]) -> StructType:
    texts = [StructField(name, StringType()) for name in keys]
    return StructType([*texts, *(StructField(name, LongType()) for name in counts)])


JOB_TOTALS: Final = _table(("job_type", "queue"), JOB_COUNTS)
ATTEMPT_TOTALS: Final = _table(("worker_id",), (*ATTEMPT_COUNTS, "busy_ms"))


def job_totals(jobs: DataFrame, *more: Column | str) -> DataFrame:
    """Jobs counted by type and queue (`JOB_TOTALS`), and by `more`.

    `pushed` are jobs whose push was seen; `recovered` completed after a failure, `repeated` more than once.
    """
    state = F.col("state")
    conditions = {
        "pushed": F.col("enqueued_at").isNotNull(),
        "completed": state == "completed",
        "recovered": (state == "completed") & (F.col("failures") > 0),
        "discarded": state == "discarded",
        "cancelled": state.isin("cancelled", "expired"),
        "open": ~state.isin("completed", "discarded", "cancelled", "expired"),
        "repeated": F.col("completions") > 1,
    }
    return jobs.groupBy("job_type", "queue", *more).agg(
        F.count("*").alias("jobs"),
        *(F.count_if(test).alias(name) for name, test in conditions.items()),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("failures", "retries")),
    )


def attempt_totals(attempts: DataFrame, *more: Column | str) -> DataFrame:
    """Attempts counted by worker (`ATTEMPT_TOTALS`), and by `more`; `redelivered` were started more than once."""
    outcome = F.col("outcome")
    named = attempts.withColumn("worker_id", F.coalesce("worker_id", F.lit(UNKNOWN)))
    return named.groupBy("worker_id", *more).agg(
        F.count("*").alias("attempts"),
        F.count_if(F.col("starts") > 1).alias("redelivered"),
        F.count_if(outcome == "completed").alias("completed"),
        F.count_if(outcome == "failed").alias("failed"),
        F.coalesce(total(F.col("run_ms")), F.lit(0)).alias("busy_ms"),
    )
