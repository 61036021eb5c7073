"""Gold: how busy workers were in each minute.

A worker's places are its concurrency, as reported in `worker.started`; for a minute, the last report before its end
counts. Its busy time in a bucket is the part of its attempts in that bucket: an attempt of ten minutes may span eleven
buckets.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from waybill.pipeline.schemas import WORKERS
from waybill.pipeline.transforms.gold import UNKNOWN

# Longer attempts are due to clock jumps, and are capped.
LONGEST_MS: Final = 7 * 24 * 3600 * 1000


def utilisation(attempts: DataFrame, events: DataFrame, bucket_seconds: int = 60) -> DataFrame:
    """Busy time of each worker in each bucket in which it was busy (`schemas.WORKERS`)."""
    length = F.lit(bucket_seconds * 1000)
    start, end = F.unix_millis("started_at"), F.unix_millis("finished_at")
    spans = attempts.where("started_at is not null and finished_at >= started_at").select(
        "worker_id", start.alias("start"), F.least(end, start + F.lit(LONGEST_MS)).alias("end")
    )
    first, last = F.floor(F.col("start") / length), F.floor(F.col("end") / length)
    pieces = spans.withColumns({"first": first, "last": last, "from": first, "to": last})
    return busy_minutes(pieces, reports(events), bucket_seconds)


def busy_minutes(spans: DataFrame, reports: DataFrame, bucket_seconds: int = 60) -> DataFrame:
    """The same, from spans.

    `start` and `end` are milliseconds, `first` and `last` their buckets; the buckets `from` to `to` are counted.
    """
    length = F.lit(bucket_seconds * 1000)
    named = spans.withColumn("worker_id", F.coalesce("worker_id", F.lit(UNKNOWN)))
    parts = named.withColumn("number", F.explode(F.sequence("from", "to")))
    from_ms = F.greatest("start", F.col("number") * length)
    to_ms = F.least("end", (F.col("number") + 1) * length)
    busy = parts.groupBy("worker_id", "number").agg(
        F.count_if(F.col("number") == F.col("first")).alias("started"),
        F.count_if(F.col("number") == F.col("last")).alias("ended"),
        F.sum(to_ms - from_ms).alias("busy_ms"),
    )
    return (
        _with_places(busy, reports, length)
        .withColumns(
            {
                "bucket": F.timestamp_millis(F.col("number") * length),
                "utilisation": F.col("busy_ms") / (F.col("places").cast("double") * length),
            }
        )
        .select(*WORKERS.fieldNames())
    )


def reports(events: DataFrame) -> DataFrame:
    """The concurrency that workers have reported: worker_id, time, event_id, places (null for no such number)."""
    concurrency: Column = F.get_json_object("event", "$.data.concurrency").try_cast("int")
    reported = events.where("type = 'worker.started' and worker_id is not null")
    return reported.select("worker_id", "time", "event_id", F.when(concurrency > 0, concurrency).alias("places"))


def _with_places(busy: DataFrame, reports: DataFrame, length: Column) -> DataFrame:
    """`busy` with `places` of the last report of the worker up to the end of the bucket."""
    reported = reports.groupBy("worker_id", F.floor(F.unix_millis("time") / length).alias("number")).agg(
        F.max_by(F.struct("places"), F.struct("time", "event_id", "places")).alias("reported")
    )
    both = busy.unionByName(reported, allowMissingColumns=True)
    before = Window.partitionBy("worker_id").orderBy("number", F.col("busy_ms").isNotNull())
    latest = F.last("reported", ignorenulls=True).over(before.rowsBetween(Window.unboundedPreceding, 0))
    return both.withColumn("places", latest["places"]).where("busy_ms is not null").drop("reported")
