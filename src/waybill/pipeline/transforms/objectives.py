"""Gold: how many jobs completed in time, by the objective of their job type.

The time of a job begins when it could have started (the push, or its scheduled time) and ends with its completion. It
includes all attempts and waits, as a person who waits for the job experiences it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses

from waybill.pipeline.schemas import OBJECTIVES
from waybill.pipeline.transforms.gold import bucket_start

DEFAULT_MS: Final = 60_000


@dataclass(frozen=True)
class Objectives:
    """Milliseconds within which a job should complete; `by_type` for job types with their own objective."""

    default_ms: int = DEFAULT_MS
    by_type: Mapping[str, int] = field(default_factory=dict)

    def target(self) -> Column:
        """The objective of a row, by its column `job_type`."""
        target = F.lit(self.default_ms)
        for job_type, milliseconds in self.by_type.items():
            target = F.when(F.col("job_type") == job_type, milliseconds).otherwise(target)
        return target.cast("bigint")


def attainment(jobs: DataFrame, objectives: Objectives, bucket_seconds: int = 60) -> DataFrame:
    """Jobs that ended, and those that completed in time (`schemas.OBJECTIVES`), by the bucket of their end.

    A job that was discarded or expired was not in time. A job that was cancelled, or whose push was not seen, does not
    count.
    """
    since = F.greatest("enqueued_at", "scheduled_at")
    took_ms = F.unix_millis("finished_at") - F.unix_millis(since)
    ended = jobs.where(F.col("state").isin("completed", "discarded", "expired") & since.isNotNull())
    rows = ended.withColumns({"target_ms": objectives.target(), "took_ms": took_ms})
    in_time = (F.col("state") == "completed") & (F.col("took_ms") <= F.col("target_ms"))
    bucket = bucket_start(F.col("finished_at"), bucket_seconds).alias("bucket")
    counted = rows.groupBy(bucket, "queue", "job_type").agg(
        F.max("target_ms").alias("target_ms"),
        F.count("*").alias("ended"),
        F.count_if(in_time).alias("in_time"),
    )
    return counted.withColumn("attainment", F.col("in_time") / F.col("ended")).select(*OBJECTIVES.fieldNames())
