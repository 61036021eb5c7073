"""Gold: how busy workers were in each minute.

A worker's places are its concurrency, which its event `worker.started` reports. Its busy time in a bucket is the part
of its attempts that lies in the bucket: an attempt of ten minutes may touch eleven buckets.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses

from waybill.pipeline.schemas import WORKERS
from waybill.pipeline.transforms.gold import UNKNOWN

# An attempt that lasted longer was left by a clock that jumped: it is counted up to here.
_LONGEST_MS: Final = 7 * 24 * 3600 * 1000


def utilisation(attempts: DataFrame, events: DataFrame, bucket_seconds: int = 60) -> DataFrame:
    """Busy time of each worker in each bucket in which it had something to do (`schemas.WORKERS`)."""
    length = F.lit(bucket_seconds * 1000)
    start, end = F.unix_millis("started_at"), F.unix_millis("finished_at")
    spans = attempts.where("started_at is not null and finished_at >= started_at").select(
        F.coalesce("worker_id", F.lit(UNKNOWN)).alias("worker_id"),
        start.alias("start"),
        F.least(end, start + F.lit(_LONGEST_MS)).alias("end"),
    )
    first, last = F.floor(F.col("start") / length), F.floor(F.col("end") / length)
    parts = spans.withColumns({"first": first, "last": last}).withColumn(
        "number", F.explode(F.sequence("first", "last"))
    )
    from_ms = F.greatest("start", F.col("number") * length)
    to_ms = F.least("end", (F.col("number") + 1) * length)
    busy = parts.groupBy("worker_id", "number").agg(
        F.count_if(F.col("number") == F.col("first")).alias("started"),
        F.count_if(F.col("number") == F.col("last")).alias("ended"),
        F.sum(to_ms - from_ms).alias("busy_ms"),
    )
    return (
        busy.join(_places(events), "worker_id", "left")
        .withColumns(
            {
                "bucket": F.timestamp_millis(F.col("number") * length),
                "utilisation": F.col("busy_ms") / (F.col("places").cast("double") * length),
            }
        )
        .select(*WORKERS.fieldNames())
    )


def _places(events: DataFrame) -> DataFrame:
    """The concurrency of each worker, as last reported."""
    concurrency: Column = F.get_json_object("event", "$.data.concurrency").try_cast("int")
    return (
        events.where("type = 'worker.started' and worker_id is not null")
        .withColumn("places", F.when(concurrency > 0, concurrency))
        .groupBy("worker_id")
        .agg(F.max_by("places", F.struct("time", "event_id")).alias("places"))
    )
