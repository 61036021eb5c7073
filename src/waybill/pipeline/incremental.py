"""Updates silver and gold: folds new batches, or all of bronze.

Each step makes a snapshot. An update publishes each snapshot, so it can be stopped at any time. A rebuild publishes
only the last one, which replaces the previous tables.
"""

import logging
import shutil
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from waybill.pipeline.event_counts import EVENT_COUNTS
from waybill.pipeline.event_files import EventFiles, grouped
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
from waybill.pipeline.parts import HOUR_S, hour_of
from waybill.pipeline.progress_reports import Progress, TableWritten
from waybill.pipeline.retention import closed, closed_hour, closed_until
from waybill.pipeline.rollups import roll
from waybill.pipeline.snapshots import Contents, Draft, Snapshot, Snapshots
from waybill.pipeline.tables import Tables, TableStore
from waybill.pipeline.transforms.objectives import Objectives

_LOG: Final = logging.getLogger(__name__)
ROWS_PER_STEP: Final = 2_000_000
"""The maximum number of events of a step of several batches, to limit memory and local disk."""
_MICROSECONDS: Final = 1_000_000
_LIVED: Final = (JOB_EVENTS, *SILVER)


SMALL_ROWS: Final = 1_000_000
_SMALL_FILES: Final = 500


def is_folded(store: TableStore) -> bool:
    """Whether silver and gold are updated: not if bronze is so small that recomputing everything is as fast."""
    if store.state is None:
        return False
    # Counts of events are there if tables were updated, and their state is lost.
    is_updated = Snapshots(store.state).current() is not None or store.has(EVENT_COUNTS)
    return is_updated or store.has_more_than(SMALL_ROWS, _SMALL_FILES)


def update(
    spark: SparkSession,
    store: TableStore,
    objectives: Objectives,
    progress: Progress,
    *,
    complete: Collection[int] = (),
    rows_per_step: int = ROWS_PER_STEP,
) -> None:
    """Fold the batches that the current snapshot lacks. `complete`: batches known to be written.

    Rebuilds everything if there is no snapshot that this version can update.
    """
    snapshots = _snapshots(store)
    base = snapshots.current()
    hour = closed_hour(spark, store)
    is_behind = base is not None and hour > (base.contents.closed or 0)
    # The state of Delta and Iceberg tables may be an older copy, without the gold of dropped days.
    is_old = is_behind and not isinstance(store, Tables)
    fresh = None
    if base is not None and base.contents.batch >= 0 and _is_whole(base) and not is_old:
        fresh = store.event_files(base.contents.batch, complete)
    if base is None or fresh is None:
        rebuild(spark, store, objectives, progress, complete=complete, rows_per_step=rows_per_step)
        return
    if not base.has_rollups:
        base = _roll_all(spark, snapshots, base)
    if is_behind:
        base = _close(snapshots, base, hour)
    if dict(base.contents.objectives) != _as_text(objectives):
        base = _count_again(spark, snapshots, base, objectives)
    for files in grouped(fresh, rows_per_step):
        base = _step(spark, snapshots, base, files, objectives, base.contents.closed, progress)
        snapshots.publish(base, IN_SNAPSHOTS)
    # Also without new events: an earlier refresh may have ended before this.
    store.commit_snapshot()


def rebuild(
    spark: SparkSession,
    store: TableStore,
    objectives: Objectives,
    progress: Progress,
    *,
    complete: Collection[int] = (),
    rows_per_step: int = ROWS_PER_STEP,
) -> None:
    """Fold all of bronze, and the carried events of dropped days."""
    snapshots = _snapshots(store)
    number = snapshots.next_number()
    before = snapshots.current()
    edge = closed_until(spark, store)
    hour = None if edge is None else edge // (HOUR_S * _MICROSECONDS)
    draft = snapshots.draft(None, number=number)
    replaced = _all_months(before)
    if edge is not None:
        _adopt_closed(spark, store, draft, edge)
    base = draft.finish(Contents(-1, _as_text(objectives), hour), IN_SNAPSHOTS, replaced=replaced)
    carried = store.carried_files()
    batches = chain([carried] if carried is not None else [], store.event_files(-1, complete) or ())
    for files in grouped(batches, rows_per_step):
        base = _step(spark, snapshots, base, files, objectives, hour, progress)
        # Only the last snapshot is published.
        snapshots.prune(below=base.number, above=number)
    snapshots.publish(base, IN_SNAPSHOTS)
    store.commit_snapshot()


def forget(spark: SparkSession, store: TableStore, edge_us: int) -> None:
    """Drop jobs that ended before the edge, a midnight in microseconds; their gold stays, and is final."""
    snapshots = _snapshots(store)
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
    done = draft.finish(Contents(contents.batch, contents.objectives, last), IN_SNAPSHOTS)
    snapshots.publish(done, IN_SNAPSHOTS)
    store.commit_snapshot()


def _snapshots(store: TableStore) -> Snapshots:
    if store.state is None:
        raise TypeError(f"{type(store).__name__} without a directory for snapshots")
    return Snapshots(store.state, kept=store.versions_kept)


def _step(
    spark: SparkSession,
    snapshots: Snapshots,
    base: Snapshot,
    files: EventFiles,
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


def _close(snapshots: Snapshots, base: Snapshot, hour: int) -> Snapshot:
    """Count no more events of days that a compaction has closed, and was killed before it dropped them."""
    draft = snapshots.draft(base, number=snapshots.next_number())
    done = draft.finish(Contents(base.contents.batch, base.contents.objectives, hour), IN_SNAPSHOTS)
    snapshots.publish(done, IN_SNAPSHOTS)
    return done


def _adopt_closed(spark: SparkSession, store: TableStore, draft: Draft, edge_us: int) -> None:
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
