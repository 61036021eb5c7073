"""Preserves data when old days of bronze are dropped: their gold, and events of jobs that continue.

Silver and gold are computed from bronze. Before days are dropped, two things are kept:

- closed gold: the rows of gold up to the edge, which is the midnight before the first remaining day. They are final
  from then on, and only rows after the edge are computed;
- carried events: those of jobs that have an event after the edge or have not ended, and the workers' last reports of
  their places. Silver and gold also read these, so a job that was pushed before the edge stays complete.

Gold counts as closed when the edge itself is written, after the rows of all tables. Until then, all of them are
computed up to the previous edge: the closed rows contain those up to it, and the events that were carried for it are
still there. An event that is both carried and in bronze counts once. So a crash in between loses nothing.
"""

import calendar
from collections.abc import Sequence
from datetime import date
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.types import StructField, StructType, TimestampType

from waybill.pipeline import gold_tables, tables
from waybill.pipeline.parts import HOUR_S
from waybill.pipeline.tables import Table, TableStore

_ENDING: Final = ("job.completed", "job.discarded", "job.cancelled", "job.expired")
_CLOSED_UNTIL: Final = "closed_until"
_MICROSECONDS: Final = 1_000_000
EDGE: Final = Table("closed/edge", StructType([StructField(_CLOSED_UNTIL, TimestampType())]))
"""One row: the time up to which gold is closed, in all of its tables."""


def closed(table: Table) -> Table:
    """The name of the table with a gold table's closed rows."""
    schema = StructType([*table.schema.fields, StructField(_CLOSED_UNTIL, TimestampType())])
    return Table(f"closed/{table.name.rpartition('/')[2]}", schema)


def all_events(spark: SparkSession, store: TableStore) -> DataFrame:
    """Bronze and the carried events. After a crash an event may be in both: it counts once, like a duplicate."""
    events = store.read(spark, tables.EVENTS)
    return events.unionByName(store.read(spark, tables.CARRIED)) if store.has(tables.CARRIED) else events


def with_closed(spark: SparkSession, store: TableStore, rows: DataFrame, table: Table, edge: int | None) -> DataFrame:
    """The rows of a gold table: closed ones up to the edge of `closed_until`, and computed ones after it."""
    if edge is None or not store.has(closed(table)):
        return rows
    is_closed = F.unix_micros("bucket") < F.lit(edge)
    kept = store.read(spark, closed(table)).where(is_closed).select(*table.schema.fieldNames())
    return rows.where(~is_closed).unionByName(kept)


def closed_until(spark: SparkSession, store: TableStore) -> int | None:
    """The edge up to which gold is closed, in microseconds since 1970; None if nothing was dropped."""
    if store.has(EDGE):
        return _edge(store.read(spark, EDGE))
    if not store.has(tables.CARRIED):
        return None
    # Earlier versions did not write the edge. If one was killed between two tables, no days were dropped after it.
    edges = [_edge(store.read(spark, closed(table))) for table in gold_tables.GOLD if store.has(closed(table))]
    return min((edge for edge in edges if edge is not None), default=None)


def closed_hour(spark: SparkSession, store: TableStore) -> int:
    """The hour up to which a compaction has closed gold; 0 if none has."""
    edge = closed_until(spark, store) if store.has(EDGE) else None
    return 0 if edge is None else edge // (HOUR_S * _MICROSECONDS)


def keep_what_is_needed(
    spark: SparkSession, store: TableStore, first: date, closing: Sequence[Table] = gold_tables.GOLD
) -> int:
    """Close gold and carry events for the days before `first`, which may be dropped afterwards. Returns the edge."""
    edge = calendar.timegm(first.timetuple()) * _MICROSECONDS
    # Dropped days do not return if a later run keeps more days.
    last = max(edge, closed_until(spark, store) or 0)
    until = F.timestamp_micros(F.lit(last)).alias(_CLOSED_UNTIL)
    for table in closing:
        if store.has(table):
            rows = store.read(spark, table).where(F.unix_micros("bucket") < F.lit(last))
            store.replace(rows.select("*", until), closed(table))
    store.replace(spark.range(1, numPartitions=1).select(until), EDGE)
    # Not before: jobs that ended between the two edges need the events that were carried for the previous one.
    store.replace(_carried(spark, store, first), tables.CARRIED)
    return edge


def _edge(kept: DataFrame) -> int | None:
    row = kept.agg(F.max(F.unix_micros(_CLOSED_UNTIL))).first()
    return None if row is None else row[0]


def _carried(spark: SparkSession, store: TableStore, first: date) -> DataFrame:
    """The events to carry: from the days before `first`, and from those already carried."""
    events = all_events(spark, store)
    is_old = F.col("date") < F.lit(first)
    old = store.read(spark, tables.EVENTS).where(is_old)
    if store.has(tables.CARRIED):
        old = old.unionByName(store.read(spark, tables.CARRIED))
    # Carry an event once, even if a crash left it in both.
    old = old.dropDuplicates(["stream", "offset", "position", "event_id"])
    is_of_job = F.col("subject").isNotNull() & F.col("type").startswith("job.")
    fates = (
        events.where(is_of_job)
        .groupBy("subject")
        .agg(F.max("date").alias("last"), F.max(F.col("type").isin(*_ENDING)).alias("ended"))
    )
    reaching = fates.where((F.col("last") >= F.lit(first)) | ~F.col("ended")).select("subject")
    jobs = old.where(is_of_job).join(reaching, "subject", "left_semi")
    # Only the start of an attempt names its worker, and that may be before the edge.
    working = events.where(~is_old).select("worker_id").union(jobs.select("worker_id"))
    at_work = working.where(F.col("worker_id").isNotNull()).distinct()
    columns = tables.CARRIED.schema.fieldNames()
    places = (
        old.where("type = 'worker.started'")
        .join(at_work, "worker_id", "left_semi")
        .groupBy("worker_id")
        .agg(F.max_by(F.struct(*columns), F.struct("time", "event_id")).alias("row"))
        .select("row.*")
    )
    return jobs.select(*columns).unionByName(places.select(*columns))
