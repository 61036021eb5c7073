"""Delta and Iceberg tables are refreshed from new events, and by hand-over of changed files.

`make pipeline-incremental FORMAT=delta` does more of it.
"""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.histories import START
from tests.pipeline.incremental import as_lake, check, dying_at, gold_before, opened, told, write
from waybill.pipeline import gold_tables, incremental, snapshot_commits, tables
from waybill.pipeline.compaction import compact_lake
from waybill.pipeline.event_files import EventFiles
from waybill.pipeline.folding import Folding
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.refreshed import NotRefreshedError
from waybill.pipeline.report.inputs import RolledInputs, inputs_of
from waybill.pipeline.schemas import EVENT
from waybill.pipeline.snapshots import Snapshots
from waybill.pipeline.table_formats import open_store
from waybill.pipeline.tables import TablesError
from waybill.pipeline.transforms.objectives import Objectives

pytestmark = pytest.mark.spark

TIME = EVENT.fieldNames().index("time")
WANTED = (tables.ATTEMPTS, tables.JOBS, gold_tables.ACTIVITY)


@pytest.fixture(params=["delta", "iceberg"])
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def state_of(store: LakeTables) -> Path:
    assert store.state is not None
    return store.state


@pytest.mark.timeout(300)
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


def test_files_of_merged_batches_that_are_folded_in_part_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    store = as_lake(opened(spark, tmp_path / "lake", "delta"))
    rows = told(2, jobs=2, odd=0, long=0)
    for batch in range(5):
        write(spark, store, batch, rows[batch::5])
    assert [files.batch for files in store.event_files(1) or ()] == [2, 3, 4]
    store.merge_files(refreshed=3)
    assert [files.batch for files in store.event_files(3) or ()] == [4]
    assert store.event_files(1) is None
    found: list[EventFiles] = list(store.event_files(-1) or ())
    assert sum(files.rows for files in found) == store.read(spark, tables.EVENTS).count()


def test_only_tables_in_a_bucket_take_a_directory_for_their_state(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TablesError, match="only a bucket needs it"):
        open_store(spark, tmp_path, "delta", state=tmp_path / "state")
    with pytest.raises(TablesError, match="needs a local directory"):
        open_store(spark, "s3a://bucket/events", "delta", state=Path("s3a://bucket/state"))
    assert open_store(spark, "s3a://bucket/events", "delta").state is None


def test_tables_that_were_refreshed_with_a_state_need_it(spark: SparkSession, tmp_path: Path) -> None:
    store = as_lake(opened(spark, tmp_path / "lake", "delta"))
    write(spark, store, 0, told(4, jobs=1, odd=0, long=0))
    assert not incremental.is_folded(store)
    incremental.update(spark, store, Objectives(), lambda _: None)
    shutil.rmtree(state_of(store))
    assert incremental.is_folded(store)
    # Tables in a bucket that nobody gives a state.
    store._states = None
    with pytest.raises(TablesError, match="an empty directory will do"), store.locked():
        pass


@pytest.mark.timeout(300)
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


def test_another_table_at_the_same_place_has_another_state(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    states = []
    for _ in range(2):
        store = as_lake(opened(spark, tmp_path / "lake", table_format))
        assert Snapshots(state_of(store)).current() is None
        write(spark, store, 0, told(3, jobs=1, odd=0, long=0))
        states.append(store.state)
        shutil.rmtree(tmp_path / "lake")
    assert states[0] != states[1]
