"""Delta and Iceberg tables are refreshed from new events, and by hand-over of changed files.

Some minutes long, so not in the suite: `make pipeline-incremental` runs it.
"""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.histories import START
from tests.pipeline.incremental import as_lake, check, dying_at, gold_before, opened, told, write
from tests.pipeline.test_lake_refreshes import state_of
from waybill.pipeline import gold_tables, incremental, snapshot_commits, tables
from waybill.pipeline.compaction import compact_lake
from waybill.pipeline.folding import Folding
from waybill.pipeline.refreshed import NotRefreshedError
from waybill.pipeline.report.inputs import RolledInputs, inputs_of
from waybill.pipeline.schemas import EVENT
from waybill.pipeline.snapshots import Snapshots
from waybill.pipeline.transforms.objectives import Objectives

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TIME = EVENT.fieldNames().index("time")
WANTED = (tables.ATTEMPTS, tables.JOBS, gold_tables.ACTIVITY)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_new_batches_are_folded_and_shown_even_after_a_kill(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    store = as_lake(opened(spark, tmp_path / "lake", table_format))
    rows = told(1, jobs=4, odd=3, long=1)
    middle = len(rows) * 2 // 3
    write(spark, store, 0, rows[:middle])
    incremental.update(spark, store, Objectives(), lambda _: None)
    write(spark, store, 1, rows[middle:])
    before = store.read(spark, tables.JOBS).count()
    assert before
    with dying_at(snapshot_commits, "copy_to", 3):
        incremental.update(spark, store, Objectives(), lambda _: None)
    current = Snapshots(state_of(store)).current()
    assert current is not None
    assert current.contents.batch == 1
    # The events are folded, and only the tables are not complete.
    with dying_at(Folding, "fold", 0):
        incremental.update(spark, store, Objectives(), lambda _: None)
    check(spark, store, WANTED)
    assert isinstance(inputs_of(spark, store), RolledInputs)

    # A compaction changes no batch that is to be folded, and the state is made again if it is lost.
    compact_lake(spark, store)
    assert list(store.event_files(1) or ()) == []
    shutil.rmtree(state_of(store))
    incremental.update(spark, store, Objectives(), lambda _: None)
    check(spark, store, WANTED)


def test_an_older_copy_of_the_state_takes_no_gold_of_dropped_days_away(spark: SparkSession, tmp_path: Path) -> None:
    store = as_lake(opened(spark, tmp_path / "lake", "delta"))
    rows = told(5, jobs=6, odd=0, long=2)
    edge = START.date()
    late = [row for row in rows if row[TIME].date() < edge][::2]  # type: ignore[attr-defined]
    write(spark, store, 0, [row for row in rows if row not in late])
    incremental.update(spark, store, Objectives(), lambda _: None)
    shutil.copytree(state_of(store), tmp_path / "copy", symlinks=True)
    write(spark, store, 1, late)
    # A run without the state has all events. The tables of the state lack the second batch.
    store.note_refreshed(1)
    with pytest.raises(NotRefreshedError, match="run --once"):
        compact_lake(spark, store, keep_days=0, today=edge)
    incremental.update(spark, store, Objectives(), lambda _: None)
    frozen = gold_before(spark, store, edge)
    assert compact_lake(spark, store, keep_days=0, today=edge).days_dropped == 2
    assert gold_before(spark, store, edge) == frozen

    shutil.rmtree(state_of(store))
    (tmp_path / "copy").rename(state_of(store))
    compact_lake(spark, store)
    assert gold_before(spark, store, edge) == frozen
    with pytest.raises(NotRefreshedError):
        compact_lake(spark, store, keep_days=0, today=edge + timedelta(days=1))
    incremental.update(spark, store, Objectives(), lambda _: None)
    assert gold_before(spark, store, edge) == frozen
    assert compact_lake(spark, store, keep_days=0, today=edge + timedelta(days=1)).days_dropped == 1
    assert gold_before(spark, store, edge) == frozen
