"""Compaction and retention of bronze: few large files in place of many small ones, and old days dropped.

Every trigger adds a file for each task, so that days have thousands of them, and reading them costs more than their
rows. Compaction writes bronze anew, as a version beside the old one: days with many files are read and written in few,
the files of the others are linked. Then the new version takes the old one's place in one step. A crash before that
changes nothing, and whoever reads the old version can go on.

The last batch that Spark has noted, and one that it has not, stay as they are: after a crash Spark may run them again,
and they replace themselves by their number.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from waybill.pipeline import tables
from waybill.pipeline.delta_tables import DeltaTables
from waybill.pipeline.retention import keep_what_is_needed
from waybill.pipeline.tables import Tables

_FILE_BYTES: Final = 128 << 20
_FILES_MIN: Final = 4
_COMPACTED: Final = 0
"""The number of the batch under which compacted rows are kept: Spark's first, which it never runs again by then."""


@dataclass(frozen=True)
class Compacted:
    """What compaction has done to bronze."""

    files_before: int
    files_after: int
    days_rewritten: int
    days_dropped: int


def compact(
    spark: SparkSession,
    store: Tables,
    *,
    keep_days: int | None = None,
    today: date | None = None,
    on_day: Callable[[int, int], None] | None = None,
) -> Compacted:
    """Write bronze in few files; with `keep_days`, drop the days before. `on_day` hears of days done and days in all.

    Gold of that time stays as the last run left it, and jobs that reach into the days that are kept stay whole: see
    `retention`. Jobs that had ended before are gone from silver at the next run. Raises TablesError if the pipeline
    runs.
    """
    with store.locked():
        store.prepare()
        days = sorted(path for path in store.path(tables.EVENTS).iterdir() if path.name.startswith("date="))
        before = sum(len(_files(day)) for day in days)
        edge = None if keep_days is None or today is None else today - timedelta(days=keep_days)
        first = "" if edge is None else str(edge)
        kept = [day for day in days if day.name.removeprefix("date=") >= first or not first]
        if edge is not None and len(kept) < len(days):
            keep_what_is_needed(spark, store, edge)
        fresh = store.new_version(tables.EVENTS, exists=True)
        settled = _settled_batches(store)
        rewritten = 0
        for index, day in enumerate(kept, start=1):
            rewritten += _write_day(spark, day, fresh, settled)
            if on_day is not None:
                on_day(index, len(kept))
        store.publish(fresh, tables.EVENTS)
        after = sum(len(_files(day)) for day in fresh.iterdir())
        return Compacted(before, after, rewritten, len(days) - len(kept))


def compact_delta(
    spark: SparkSession, store: DeltaTables, *, keep_days: int | None = None, today: date | None = None
) -> Compacted:
    """The same for Delta tables, by Delta's own means, which need no other writer to be kept away."""
    store.prepare()
    before = store.file_count()
    dropped = 0
    if keep_days is not None and today is not None:
        edge = today - timedelta(days=keep_days)
        keep_what_is_needed(spark, store, edge)
        dropped = store.drop_before(edge)
    rewritten = store.optimize()
    store.vacuum()
    return Compacted(before, store.file_count(), rewritten, dropped)


def _write_day(spark: SparkSession, day: Path, fresh: Path, settled: int) -> bool:
    """Bring a day to the new version. True if it was written anew."""
    batches = [path for path in day.iterdir() if path.name.startswith("batch_id=")]
    merged = [path for path in batches if int(path.name.removeprefix("batch_id=")) < settled]
    files = [file for path in merged for file in _files(path)]
    size = sum(file.stat().st_size for file in files)
    wanted = -(-size // _FILE_BYTES)
    is_worth_it = len(files) >= _FILES_MIN and wanted < len(files)
    for path in batches:
        if path not in merged or not is_worth_it:
            _link(path, fresh / day.name / path.name)
    if is_worth_it:
        columns = [field for field in tables.EVENTS.schema.fields if field.name not in tables.EVENTS.partitions]
        rows = spark.read.schema(StructType(columns)).parquet(*map(str, files))
        target = fresh / day.name / f"batch_id={_COMPACTED}"
        rows.coalesce(max(1, wanted)).sortWithinPartitions("stream", "offset").write.parquet(str(target))
    return is_worth_it


def _settled_batches(store: Tables) -> int:
    """Every batch with a lower number than this has another one after it that Spark has noted as done."""
    commits = store.checkpoint / "commits"
    numbers = [int(path.name) for path in commits.iterdir() if path.name.isdigit()] if commits.is_dir() else []
    return max(numbers, default=0)


def _files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.parquet"))


def _link(source: Path, target: Path) -> None:
    """The same files in another place, without a copy."""
    target.mkdir(parents=True)
    for file in _files(source):
        os.link(file, target / file.name)
