"""Counts independent of jobs: events by minute, and the places of workers.

Both are small, and computed in the driver: a row for each minute of a batch, and one for each start of a worker.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from waybill.pipeline import gold_tables
from waybill.pipeline.job_index import Hashes, hashes_of
from waybill.pipeline.listing import names_in
from waybill.pipeline.parquet_files import read_table
from waybill.pipeline.parts import HOUR_S
from waybill.pipeline.schemas import FIRST_TIME, TIMES_END
from waybill.pipeline.snapshots import Draft, Snapshot
from waybill.pipeline.storage import read_columns
from waybill.pipeline.tables import Table

EVENT_COUNTS: Final = Table(
    "gold/events",
    StructType(
        [
            StructField("bucket", TimestampType()),
            StructField("events", LongType()),
            StructField("first_at", TimestampType()),
            StructField("last_at", TimestampType()),
        ]
    ),
)
"""Events by minute as they came, with the first and last time; without a bucket those whose time cannot be counted."""
_MOMENT: Final = pa.timestamp("us", tz="UTC")
_COUNTS: Final = pa.schema([("bucket", _MOMENT), ("events", pa.int64()), ("first_at", _MOMENT), ("last_at", _MOMENT)])
_REPORTS: Final = pa.schema(
    [("worker_id", pa.string()), ("time", _MOMENT), ("event_id", pa.string()), ("places", pa.int32())]
)
_BUCKET_US: Final = 60_000_000
_HOUR_US: Final = HOUR_S * 1_000_000
_FIRST: Final = pa.scalar(FIRST_TIME, _MOMENT)
_END: Final = pa.scalar(TIMES_END, _MOMENT)


@dataclass(frozen=True)
class Arrivals:
    """The content of bronze files: the hashes of the jobs of events, whether workers reported, events by minute."""

    jobs: Hashes
    has_reports: bool
    counts: pa.Table

    @classmethod
    def of(cls, files: Iterable[str], counted: Collection[str]) -> "Arrivals":
        """Read files one by one. Only events of the files `counted` are counted."""
        jobs = [hashes_of([])]
        has_reports = False
        counts = _COUNTS.empty_table()
        for file in files:
            rows = read_columns(file, ["subject", "type", "time"])
            jobs.append(hashes_of(pc.unique(rows["subject"]).drop_null().to_pylist()))
            has_reports = has_reports or bool(pc.any(pc.equal(rows["type"], "worker.started")).as_py())
            if file in counted:
                counts = _summed(pa.concat_tables([counts, _by_minute(rows["time"])]))
        return cls(np.unique(np.concatenate(jobs)), has_reports, counts)


def count_events(fresh: pa.Table, base: Snapshot | None, draft: Draft, closed: int | None) -> set[int]:
    """Add the events of a batch to the counts, except for hours before `closed`. Returns the changed hours."""
    hours = _hours(fresh["bucket"])
    changed = set()
    for hour in pc.unique(hours).to_pylist():
        if closed is not None and 0 < hour < closed:
            continue
        changed.add(hour)
        rows = fresh.filter(pc.equal(hours, hour))
        old = [] if base is None else base.files(EVENT_COUNTS, [hour * 2])
        whole = pa.concat_tables([rows, *(read_table(file, schema=_COUNTS) for file in old)])
        place = draft.scratch / "events" / f"number={hour * 2}"
        place.mkdir(parents=True)
        pq.write_table(_summed(whole), place / "part.parquet", compression="zstd")
    written = draft.scratch / "events"
    if written.is_dir():
        parts = [int(name.removeprefix("number=")) for name in names_in(written)]
        draft.replace(EVENT_COUNTS, parts, written)
    return changed


def store_reports(reports: DataFrame, base: Snapshot | None, draft: Draft) -> set[int]:
    """Store the reports of workers in a batch; returns the changed hours of gold."""
    fresh = reports.distinct().toArrow().cast(_REPORTS)
    if not fresh.num_rows:
        return set()
    old = draft.there("workers", "reports.parquet")
    known = read_table(old, schema=_REPORTS) if old is not None else _REPORTS.empty_table()
    whole = pa.concat_tables([known, fresh]).group_by(_REPORTS.names).aggregate([]).select(_REPORTS.names)
    pq.write_table(whole, draft.put("workers", "reports.parquet"), compression="zstd")
    return set() if base is None else _busy_hours(fresh, base)


def _busy_hours(fresh: pa.Table, base: Snapshot) -> set[int]:
    """The hours, from the first of the reports on, in which one of their workers was busy."""
    first = pc.min(fresh["time"]).cast(pa.int64()).as_py() // _HOUR_US
    names = pc.unique(fresh["worker_id"])
    found = set()
    for part in base.all_parts(gold_tables.WORKERS, max(0, first * 2)):
        for file in base.files(gold_tables.WORKERS, [part]):
            if _has_one_of(file, names):
                found.add(part // 2)
    return found


def _has_one_of(file: Path, names: pa.Array) -> bool:
    busy = read_table(file, columns=["worker_id"])["worker_id"]
    return bool(pc.any(pc.is_in(busy, value_set=names)).as_py())


def _hours(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    """The numbers of the hours of moments; 0 for none."""
    return pc.fill_null(pc.divide(pc.cast(moments, pa.int64()), _HOUR_US), 0)


def _by_minute(times: pa.ChunkedArray) -> pa.Table:
    moments = times.cast(_MOMENT)
    is_counted = pc.and_(pc.greater_equal(moments, _FIRST), pc.less(moments, _END))
    counted = pc.if_else(is_counted, moments, pa.scalar(None, _MOMENT))
    microseconds = counted.cast(pa.int64())
    buckets = pc.multiply(pc.divide(microseconds, _BUCKET_US), _BUCKET_US).cast(_MOMENT)
    ones = pa.array(np.ones(len(times), np.int64))
    return pa.table([buckets, ones, counted, counted], schema=_COUNTS)


def _summed(counts: pa.Table) -> pa.Table:
    summed = counts.group_by("bucket").aggregate([("events", "sum"), ("first_at", "min"), ("last_at", "max")])
    return summed.select(["bucket", "events_sum", "first_at_min", "last_at_max"]).rename_columns(_COUNTS.names)
