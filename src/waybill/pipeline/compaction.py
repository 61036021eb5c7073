"""Compaction and retention of bronze: merge many small files into a few large ones, and drop old days.

Each trigger adds a file per task, so a day may have thousands, and opening them costs more than reading their rows.
Compaction writes a new version of bronze beside the old one: days with many files are rewritten in a few, the files of
the others are linked. Then the new version replaces the old one in one step. A crash before that changes nothing, and
readers of the old version can continue.

The last batch that Spark has recorded, and one that it has not, stay as they are: after a crash Spark may run them
again, and they replace themselves by their number.
"""

import os
from collections.abc import Callable, Collection
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from waybill.pipeline import gold_tables, tables
from waybill.pipeline.checkpoint_check import check_events
from waybill.pipeline.event_counts import EVENT_COUNTS
from waybill.pipeline.event_files import batch_of, noted
from waybill.pipeline.file_lists import write_list
from waybill.pipeline.incremental import forget
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.progress_reports import Compacted
from waybill.pipeline.refreshed import check_is_refreshed, refreshed_batch
from waybill.pipeline.retention import keep_what_is_needed
from waybill.pipeline.tables import Tables

_FILE_BYTES: Final = 128 << 20
_FILES_MIN: Final = 4
_COMPACTED: Final = 0
"""The batch number of compacted rows: Spark's first, which never runs again at that time."""


def compact(
    spark: SparkSession,
    store: Tables,
    *,
    keep_days: int | None = None,
    today: date | None = None,
    on_day: Callable[[int, int], None] | None = None,
) -> Compacted:
    """Rewrite bronze in few files; with `keep_days`, drop older days. Calls `on_day` with days done and total days.

    Gold of the dropped days stays, and jobs that extend into later days stay complete: see `retention`.
    Jobs that had ended before disappear from silver at the next run. Raises TablesError if the pipeline runs, and
    NotRefreshedError if days are to be dropped and gold lacks events.
    """
    with store.locked():
        return compact_held(spark, store, keep_days=keep_days, today=today, on_day=on_day)


def compact_held(
    spark: SparkSession,
    store: Tables,
    *,
    keep_days: int | None = None,
    today: date | None = None,
    on_day: Callable[[int, int], None] | None = None,
    complete: Collection[int] = (),
) -> Compacted:
    """The same for a caller that holds the lock of `store`, and writes no batch meanwhile.

    `complete`: batches known to be written and refreshed.
    """
    check_events(store)
    store.prepare()
    days = sorted(path for path in store.path(tables.EVENTS).iterdir() if path.name.startswith("date="))
    before = sum(len(_files(day)) for day in days)
    edge = None if keep_days is None or today is None else today - timedelta(days=keep_days)
    first = "" if edge is None else str(edge)
    kept = [day for day in days if day.name.removeprefix("date=") >= first or not first]
    if edge is not None and len(kept) < len(days):
        check_is_refreshed(store, complete)
        forget(spark, store, keep_what_is_needed(spark, store, edge, (*gold_tables.GOLD, EVENT_COUNTS)))
    fresh = store.new_version(tables.EVENTS, exists=True)
    settled = _settled_batches(store)
    rewritten = 0
    for index, day in enumerate(kept, start=1):
        rewritten += _write_day(spark, day, fresh, settled)
        if on_day is not None:
            on_day(index, len(kept))
    write_list(fresh, _by_batch(fresh))
    store.publish(fresh, tables.EVENTS)
    after = sum(len(_files(day)) for day in fresh.iterdir())
    return Compacted(before, after, rewritten, len(days) - len(kept))


def compact_lake(
    spark: SparkSession, store: LakeTables, *, keep_days: int | None = None, today: date | None = None
) -> Compacted:
    """The same for Delta and Iceberg tables. Their readers can continue; writers can, too, if the store has no state.

    The caller holds the lock of `store`.
    """
    store.prepare()
    # A refresh may have ended before this. An older copy of the state would remove gold of dropped days.
    if not store.lacks_dropped_days():
        store.commit_snapshot()
    before = store.file_count()
    dropped = 0
    if keep_days is not None and today is not None:
        edge = today - timedelta(days=keep_days)
        if store.days_before(edge):
            check_is_refreshed(store)
            edge_us = keep_what_is_needed(spark, store, edge, (*gold_tables.GOLD, EVENT_COUNTS))
            if store.state is not None:
                forget(spark, store, edge_us)
            dropped = store.drop_before(edge)
    rewritten = store.merge_files(refreshed_batch(store))
    store.clean()
    return Compacted(before, store.file_count(), rewritten, dropped)


def _write_day(spark: SparkSession, day: Path, fresh: Path, settled: int) -> bool:
    """Bring a day into the new version. True if it was rewritten."""
    batches = {path: number for path in day.iterdir() if (number := batch_of(path.name)) is not None}
    merged = [path for path, number in batches.items() if number < settled]
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
    """A batch number. Spark has recorded a later batch than each lower one as done, and all of these are in gold.

    Or none is: then there is nothing to keep apart.
    """
    last, refreshed = max(noted(store.checkpoint / "commits"), default=0), refreshed_batch(store)
    return last if refreshed < 0 else min(last, refreshed + 1)


def _files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.parquet"))


def _by_batch(root: Path) -> dict[int, list[Path]]:
    """The files of bronze by their batches."""
    found: dict[int, list[Path]] = {}
    for place in root.glob("date=*/batch_id=*"):
        batch = batch_of(place.name)
        if batch is not None:
            found.setdefault(batch, []).extend(_files(place))
    return found


def _link(source: Path, target: Path) -> None:
    """Link the same files in another place, without copying, and their checksums, by which Spark finds damage."""
    target.mkdir(parents=True)
    for file in _files(source):
        os.link(file, target / file.name)
        checksum = file.with_name(f".{file.name}.crc")
        if checksum.exists():
            os.link(checksum, target / checksum.name)
