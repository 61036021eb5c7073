"""What stays when old days of bronze are dropped: gold of that time as it is, and events of jobs that reach further.

Silver and gold are computed from bronze. Before days are dropped, two things are kept:

- closed gold: the rows of gold up to the edge, the midnight before the first day that is kept. From then on they are
  taken as they are, and only what comes after the edge is computed;
- carried events: those of jobs that have an event after the edge, or have not ended, and what workers said last of
  their places. Silver and gold read them beside bronze: a job that was pushed before the edge is whole after it.

Each step leaves tables that are right: closed gold is what would be computed, and an event that is both carried and in
bronze counts once. So a crash in between loses nothing.
"""

import calendar
from datetime import date
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses
from pyspark.sql.types import StructField, StructType, TimestampType

from waybill.pipeline import tables
from waybill.pipeline.tables import Store, Table

_ENDING: Final = ("job.completed", "job.discarded", "job.cancelled", "job.expired")
_CLOSED_UNTIL: Final = "closed_until"
_MICROSECONDS: Final = 1_000_000


def closed(table: Table) -> Table:
    """Where the closed rows of a table of gold are kept."""
    schema = StructType([*table.schema.fields, StructField(_CLOSED_UNTIL, TimestampType())])
    return Table(f"closed/{table.name.rpartition('/')[2]}", schema)


def all_events(spark: SparkSession, store: Store) -> DataFrame:
    """Bronze and the carried events. One that a crash left in both is here twice, like one that was published twice."""
    events = store.read(spark, tables.EVENTS)
    return events.unionByName(store.read(spark, tables.CARRIED)) if store.has(tables.CARRIED) else events


def with_closed(spark: SparkSession, store: Store, rows: DataFrame, table: Table) -> DataFrame:
    """The rows of a table of gold that were computed, with the closed ones in the place of those up to the edge."""
    if not store.has(closed(table)):
        return rows
    kept = store.read(spark, closed(table))
    edge = _edge(kept)
    if edge is None:
        return rows
    return rows.where(F.unix_micros("bucket") >= F.lit(edge)).unionByName(kept.select(*table.schema.fieldNames()))


def keep_what_is_needed(spark: SparkSession, store: Store, first: date) -> None:
    """Do both for the days before `first`, which may be dropped after it."""
    edge = calendar.timegm(first.timetuple()) * _MICROSECONDS
    for table in tables.GOLD:
        if store.has(table):
            _close(spark, store, table, edge)
    store.replace(_carried(spark, store, first), tables.CARRIED)


def _close(spark: SparkSession, store: Store, table: Table, edge: int) -> None:
    if store.has(closed(table)):
        before = _edge(store.read(spark, closed(table)))
        # Days that are gone do not come back when more of them are to be kept.
        edge = edge if before is None else max(edge, before)
    rows = store.read(spark, table).where(F.unix_micros("bucket") < F.lit(edge))
    store.replace(rows.withColumn(_CLOSED_UNTIL, F.timestamp_micros(F.lit(edge))), closed(table))


def _edge(kept: DataFrame) -> int | None:
    row = kept.agg(F.max(F.unix_micros(_CLOSED_UNTIL))).first()
    return None if row is None else row[0]


def _carried(spark: SparkSession, store: Store, first: date) -> DataFrame:
    """The events to carry: of the days before `first`, and of those that are carried already."""
    events = all_events(spark, store)
    is_old = F.col("date") < F.lit(first)
    old = store.read(spark, tables.EVENTS).where(is_old)
    if store.has(tables.CARRIED):
        old = old.unionByName(store.read(spark, tables.CARRIED))
    # What a crash left in both is carried once.
    old = old.dropDuplicates(["stream", "offset", "position", "event_id"])
    is_of_job = F.col("subject").isNotNull() & F.col("type").startswith("job.")
    fates = (
        events.where(is_of_job)
        .groupBy("subject")
        .agg(F.max("date").alias("last"), F.max(F.col("type").isin(*_ENDING)).alias("ended"))
    )
    reaching = fates.where((F.col("last") >= F.lit(first)) | ~F.col("ended")).select("subject")
    at_work = events.where(~is_old & F.col("worker_id").isNotNull()).select("worker_id").distinct()
    columns = tables.CARRIED.schema.fieldNames()
    places = (
        old.where("type = 'worker.started'")
        .join(at_work, "worker_id", "left_semi")
        .groupBy("worker_id")
        .agg(F.max_by(F.struct(*columns), F.struct("time", "event_id")).alias("row"))
        .select("row.*")
    )
    jobs = old.where(is_of_job).join(reaching, "subject", "left_semi")
    return jobs.select(*columns).unionByName(places.select(*columns))
