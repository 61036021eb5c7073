"""The state from which Delta and Iceberg tables are refreshed, and their files of events by batch.

`make pipeline-incremental` refreshes them: see `lake_refreshes`.
"""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.incremental import as_lake, opened, told, write
from waybill.pipeline import incremental, tables
from waybill.pipeline.event_files import EventFiles
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.snapshots import Snapshots
from waybill.pipeline.table_formats import open_store
from waybill.pipeline.tables import TablesError
from waybill.pipeline.transforms.objectives import Objectives

pytestmark = pytest.mark.spark


@pytest.fixture(params=["delta", "iceberg"])
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def state_of(store: LakeTables) -> Path:
    assert store.state is not None
    return store.state


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
