"""Preserves data when old days of bronze are dropped: their gold, and events of jobs that continue.

Silver and gold are computed from bronze. Before days are dropped, two things are kept:

- closed gold: the rows of gold up to the edge, which is the midnight before the first remaining day. They are final
  from then on, and only rows after the edge are computed;
- carried events: those of jobs that have an event after the edge or have not ended, and the workers' last reports of
  their places. Silver and gold also read these, so a job that was pushed before the edge stays complete.

The tables are right after each step: closed gold equals what would be computed, and an event that is both carried and
in bronze counts once. So a crash in between loses nothing.
"""

import calendar
from collections.abc import Sequence
from datetime import date
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation
from pyspark.sql.types import StructField, StructType, TimestampType

from waybill.pipeline import gold_tables, tables
from waybill.pipeline.tables import Table, TableStore

_ENDING: Final = ("job.completed", "job.discarded", "job.cancelled", "job.expired")
_CLOSED_UNTIL: Final = "closed_until"
_MICROSECONDS: Final = 1_000_000


def closed(table: Table) -> Table:
    """The name of the table with a gold table's closed rows."""
    schema = StructType([*table.schema.fields, StructField(_CLOSED_UNTIL, TimestampType())])
    return Table(f"closed/{table.name.rpartition('/')[2]}", schema)


def all_events(spark: SparkSession, store: TableStore) -> DataFrame:
    """Bronze and the carried events. After a crash an event may be in both: it counts once, like a duplicate."""
    events = store.read(spark, tables.EVENTS)
    return events.unionByName(store.read(spark, tables.CARRIED)) if store.has(tables.CARRIED) else events


def with_closed(spark: SparkSession, store: TableStore, rows: DataFrame, table: Table) -> DataFrame:
    """The rows of a gold table: closed ones up to the edge, and computed ones after it."""
    if not store.has(closed(table)):
        return rows
    kept = store.read(spark, closed(table))
    edge = _edge(kept)
    if edge is None:
        return rows
    return rows.where(F.unix_micros("bucket") >= F.lit(edge)).unionByName(kept.select(*table.schema.fieldNames()))


def closed_until(spark: SparkSession, store: TableStore) -> int | None:
    """The edge up to which gold is closed, in microseconds since 1970; None if nothing was dropped."""
    edges = [_edge(store.read(spark, closed(table))) for table in gold_tables.GOLD if store.has(closed(table))]
    return max((edge for edge in edges if edge is not None), default=None)


def keep_what_is_needed(
    spark: SparkSession, store: TableStore, first: date, closing: Sequence[Table] = gold_tables.GOLD
) -> int:
    """Close gold and carry events for the days before `first`, which may be dropped afterwards. Returns the edge."""
    edge = calendar.timegm(first.timetuple()) * _MICROSECONDS
    for table in closing:
        if store.has(table):
            _close(spark, store, table, edge)
    store.replace(_carried(spark, store, first), tables.CARRIED)
    return edge


def _close(spark: SparkSession, store: TableStore, table: Table, edge: int) -> None:
    if store.has(closed(table)):
        before = _edge(store.read(spark, closed(table)))
        # Dropped days do not return if a later run keeps more days.
        edge = edge if before is None else max(edge, before)
    rows = store.read(spark, table).where(F.unix_micros("bucket") < F.lit(edge))
    store.replace(rows.withColumn(_CLOSED_UNTIL, F.timestamp_micros(F.lit(edge))), closed(table))


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
