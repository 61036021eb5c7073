"""Updates silver and gold: folds new batches, or all of bronze.

Each step makes a snapshot. An update publishes each snapshot, so it can be stopped at any time. A rebuild publishes
only the last one, which replaces the previous tables.

Spark records a batch before it writes it, and again when it is done. A batch in between may be incomplete: it is left
to the next refresh, unless the caller knows that it is complete.
"""

import logging
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from waybill.pipeline import tables
from waybill.pipeline.event_counts import EVENT_COUNTS
from waybill.pipeline.folding import (
    IN_SNAPSHOTS,
    JOB_EVENTS,
    SILVER,
    STORED_JOBS,
    STRAY_ATTEMPTS,
    STRAY_JOBS,
    Folding,
)
from waybill.pipeline.gold_tables import GOLD, GOLD_TABLES, OBJECTIVES
from waybill.pipeline.job_index import JobIndex
from waybill.pipeline.listing import names_in
from waybill.pipeline.parts import HOUR_S, hour_of
from waybill.pipeline.progress_reports import Progress, TableWritten
from waybill.pipeline.refreshed import doubtful, noted
from waybill.pipeline.retention import EDGE, closed, closed_until
from waybill.pipeline.rollups import roll
from waybill.pipeline.snapshots import Contents, Draft, Snapshot, Snapshots
from waybill.pipeline.tables import Tables
from waybill.pipeline.transforms.objectives import Objectives

_LOG: Final = logging.getLogger(__name__)
ROWS_PER_STEP: Final = 2_000_000
"""The maximum number of events of a step of several batches, to limit memory and local disk."""
_MICROSECONDS: Final = 1_000_000
_FEW: Final = 50
_LIVED: Final = (JOB_EVENTS, *SILVER)


@dataclass(frozen=True)
class _Files:
    """Files of bronze, up to a batch. `carried`: events of dropped days, which are folded and not counted."""

    batch: int
    events: tuple[Path, ...]
    rows: int
    carried: tuple[Path, ...] = ()


SMALL_ROWS: Final = 1_000_000
_SMALL_FILES: Final = 500


def is_small(store: Tables) -> bool:
    """Whether bronze is so small that recomputing everything is as fast as an update."""
    if Snapshots(store.directory).current() is not None:
        return False
    rows = 0
    for count, file in enumerate(store.path(tables.EVENTS).rglob("*.parquet")):
        rows += pq.read_metadata(file).num_rows
        if rows > SMALL_ROWS or count >= _SMALL_FILES:
            return False
    return True


def update(
    spark: SparkSession,
    store: Tables,
    objectives: Objectives,
    progress: Progress,
    *,
    complete: Collection[int] = (),
    rows_per_step: int = ROWS_PER_STEP,
) -> None:
    """Fold the batches that the current snapshot lacks. `complete`: batches known to be written.

    Rebuilds everything if there is no snapshot that this version can update.
    """
    snapshots = Snapshots(store.directory, kept=store.versions_kept)
    base = snapshots.current()
    if base is None or base.contents.batch < 0 or not _is_whole(base):
        rebuild(spark, store, objectives, progress, complete=complete, rows_per_step=rows_per_step)
        return
    if not base.has_rollups:
        base = _roll_all(spark, snapshots, base)
    base = _close_as_noted(spark, store, snapshots, base)
    if dict(base.contents.objectives) != _as_text(objectives):
        base = _count_again(spark, snapshots, base, objectives)
    for files in _grouped(_batches(store, base.contents.batch, complete), rows_per_step):
        base = _step(spark, snapshots, base, files, objectives, base.contents.closed, progress)
        snapshots.publish(base, IN_SNAPSHOTS)


def rebuild(
    spark: SparkSession,
    store: Tables,
    objectives: Objectives,
    progress: Progress,
    *,
    complete: Collection[int] = (),
    rows_per_step: int = ROWS_PER_STEP,
) -> None:
    """Fold all of bronze, and the carried events of dropped days."""
    snapshots = Snapshots(store.directory, kept=store.versions_kept)
    number = snapshots.next_number()
    before = snapshots.current()
    edge = closed_until(spark, store)
    hour = None if edge is None else edge // (HOUR_S * _MICROSECONDS)
    draft = snapshots.draft(None, number=number)
    replaced = _all_months(before)
    if edge is not None:
        _adopt_closed(spark, store, draft, edge)
    base = draft.finish(Contents(-1, _as_text(objectives), hour), IN_SNAPSHOTS, replaced=replaced)
    batches = list(_batches(store, -1, complete))
    carried = _carried(store)
    if carried:
        batches.insert(0, _Files(-1, (), _row_count(carried), carried))
    for files in _grouped(iter(batches), rows_per_step):
        base = _step(spark, snapshots, base, files, objectives, hour, progress)
        # Only the last snapshot is published.
        snapshots.prune(below=base.number, above=number)
    snapshots.publish(base, IN_SNAPSHOTS)


def forget(spark: SparkSession, store: Tables, edge_us: int) -> None:
    """Drop jobs that ended before the edge, a midnight in microseconds; their gold stays, and is final."""
    snapshots = Snapshots(store.directory, kept=store.versions_kept)
    base = snapshots.current()
    if base is None:
        return
    hour = edge_us // (HOUR_S * _MICROSECONDS)
    draft = snapshots.draft(base, number=snapshots.next_number())
    ended = {table: [part for part in base.all_parts(table) if part < hour * 2 and part % 2 == 0] for table in _LIVED}
    for table, parts in ended.items():
        draft.drop(table, parts)
    for table in (STRAY_JOBS, STRAY_ATTEMPTS):
        draft.drop(table, [part for part in base.all_parts(table) if part < hour * 2])
    if base.has_rollups:
        roll(spark, draft, parts={part for parts in ended.values() for part in parts})
    else:
        _roll(spark, base, draft)
    contents = base.contents
    last = hour if contents.closed is None else max(hour, contents.closed)
    snapshots.publish(draft.finish(Contents(contents.batch, contents.objectives, last), IN_SNAPSHOTS), IN_SNAPSHOTS)


def _step(
    spark: SparkSession,
    snapshots: Snapshots,
    base: Snapshot,
    files: _Files,
    objectives: Objectives,
    hour: int | None,
    progress: Progress,
) -> Snapshot:
    number = base.number + 1
    if snapshots.current_number() == base.number:
        number = snapshots.next_number()
    draft = snapshots.draft(base, number=number)
    folding = Folding(spark, base, draft, objectives, hour)
    counted = files.events if files.carried else None
    if files.events or files.carried:
        folding.fold((*files.carried, *files.events), f"{number:08}", counted=counted)
    done = draft.finish(Contents(files.batch, _as_text(objectives), hour), IN_SNAPSHOTS)
    for table in (*SILVER, *GOLD):
        if table.name in folding.seconds:
            progress(TableWritten(table.name, folding.seconds[table.name]))
    return done


def _count_again(spark: SparkSession, snapshots: Snapshots, base: Snapshot, objectives: Objectives) -> Snapshot:
    """Recompute all minutes with new objectives."""
    draft = snapshots.draft(base, number=snapshots.next_number())
    hours = {part // 2 for table in (STORED_JOBS, STRAY_JOBS) for part in base.all_parts(table)}
    wanted = [one for one in GOLD_TABLES if one.table == OBJECTIVES]
    Folding(spark, base, draft, objectives, base.contents.closed).count(wanted, hours)
    roll(spark, draft, hours=hours)
    contents = Contents(base.contents.batch, _as_text(objectives), base.contents.closed)
    done = draft.finish(contents, IN_SNAPSHOTS)
    snapshots.publish(done, IN_SNAPSHOTS)
    return done


def _close_as_noted(spark: SparkSession, store: Tables, snapshots: Snapshots, base: Snapshot) -> Snapshot:
    """Count no more events of days that a compaction has closed, even if it was killed before it dropped them."""
    edge = closed_until(spark, store) if store.has(EDGE) else None
    hour = 0 if edge is None else edge // (HOUR_S * _MICROSECONDS)
    contents = base.contents
    if hour <= (contents.closed or 0):
        return base
    draft = snapshots.draft(base, number=snapshots.next_number())
    done = draft.finish(Contents(contents.batch, contents.objectives, hour), IN_SNAPSHOTS)
    snapshots.publish(done, IN_SNAPSHOTS)
    return done


def _adopt_closed(spark: SparkSession, store: Tables, draft: Draft, edge_us: int) -> None:
    """Add the gold of dropped days."""
    adopted: set[int] = set()
    for table in (*GOLD, EVENT_COUNTS):
        if not store.has(closed(table)):
            continue
        rows = store.read(spark, closed(table)).where(F.unix_micros("bucket") < F.lit(edge_us))
        rows = rows.select(*table.schema.fieldNames()).withColumn("number", hour_of("bucket") * 2)
        place = draft.scratch / table.name.replace("/", "-")
        rows.repartition("number").write.partitionBy("number").parquet(str(place))
        parts = [int(path.name.partition("=")[2]) for path in place.glob("number=*")]
        draft.replace(table, parts, place)
        adopted |= {part // 2 for part in parts}
        shutil.rmtree(place)
    roll(spark, draft, hours=adopted)


def _roll_all(spark: SparkSession, snapshots: Snapshots, base: Snapshot) -> Snapshot:
    """Make the rollups of a snapshot from an earlier version."""
    draft = snapshots.draft(base, number=snapshots.next_number())
    _roll(spark, base, draft)
    done = draft.finish(base.contents, IN_SNAPSHOTS)
    snapshots.publish(done, IN_SNAPSHOTS)
    return done


def _roll(spark: SparkSession, base: Snapshot, draft: Draft) -> None:
    hours = {part // 2 for table in (*GOLD, EVENT_COUNTS) for part in base.all_parts(table)}
    roll(spark, draft, hours=hours, parts={part for table in SILVER for part in base.all_parts(table)})


def _is_whole(base: Snapshot) -> bool:
    """Whether the index is intact: it is after a kill, but maybe not after a power failure."""
    try:
        JobIndex(base)
    except (OSError, ValueError) as problem:
        _LOG.warning("snapshot %d cannot be updated, recomputing all tables: %s", base.number, problem)
        return False
    return True


def _as_text(objectives: Objectives) -> Mapping[str, int]:
    return {"": objectives.default_ms, **dict(objectives.by_type)}


def _all_months(before: Snapshot | None) -> list[str]:
    """All paths of a snapshot, relative to the data directory."""
    if before is None:
        return []
    places = [before.place / table.name for table in IN_SNAPSHOTS] + [before.place / "index", before.place / "workers"]
    found = [path.resolve() for place in places if place.is_dir() for path in place.iterdir()]
    return [str(path.relative_to(before.directory)) for path in found]


def _carried(store: Tables) -> tuple[Path, ...]:
    return tuple(sorted(store.path(tables.CARRIED).glob("*.parquet"))) if store.has(tables.CARRIED) else ()


def _grouped(batches: Iterator[_Files], rows_per_step: int) -> Iterator[_Files]:
    """Group whole batches up to a number of rows."""
    group: list[_Files] = []
    rows = 0
    for files in batches:
        if group and rows + files.rows > rows_per_step:
            yield _joined(group)
            group, rows = [], 0
        group.append(files)
        rows += files.rows
    if group:
        yield _joined(group)


def _joined(group: list[_Files]) -> _Files:
    return _Files(
        max(files.batch for files in group),
        tuple(file for files in group for file in files.events),
        sum(files.rows for files in group),
        tuple(file for files in group for file in files.carried),
    )


def _batches(store: Tables, after: int, complete: Collection[int]) -> Iterator[_Files]:
    """The batches after `after`, in order. Compacted ones have the number 0, and a step for each day."""
    left_out = doubtful(store.checkpoint, complete)
    root = store.path(tables.EVENTS)
    days = sorted(path for path in root.iterdir() if path.name.startswith("date=")) if root.is_dir() else []
    numbers = _numbers(store.checkpoint, days, after)
    for number in sorted(numbers - left_out):
        places = [place for day in days if (place := day / f"batch_id={number}").is_dir()]
        if number > 0 or after >= 0:
            files = tuple(file for place in places for file in sorted(place.glob("*.parquet")))
            if files:
                yield _Files(number, files, _row_count(files))
            continue
        for place in places:
            files = tuple(sorted(place.glob("*.parquet")))
            yield _Files(number, files, _row_count(files))


def _numbers(checkpoint: Path, days: Iterable[Path], after: int) -> set[int]:
    """The numbers of the batches after `after`: from Spark's records if these are few, else from all days."""
    known = noted(checkpoint / "offsets") | noted(checkpoint / "commits")
    last = max(known, default=-1)
    if after >= 0 and known and last - after < _FEW:
        return set(range(after + 1, last + 1))
    names = [name for day in days for name in names_in(day) if name.startswith("batch_id=")]
    return {number for name in names if (number := int(name.partition("=")[2])) > after}


def _row_count(files: Iterable[Path]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)
