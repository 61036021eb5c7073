"""Dropping days loses no event and no row of gold, in whichever step a run or a compaction is killed."""

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.histories import START
from tests.pipeline.incremental import Contents, check_rebuild, dying_at, gold_before, plain, told, write
from waybill.pipeline import incremental, run, tables
from waybill.pipeline.compaction import compact, compact_lake
from waybill.pipeline.event_counts import EVENT_COUNTS
from waybill.pipeline.gold_tables import GOLD
from waybill.pipeline.progress_reports import Compacted
from waybill.pipeline.refreshed import NotRefreshedError
from waybill.pipeline.table_formats import open_store
from waybill.pipeline.tables import Tables, TableStore
from waybill.pipeline.transforms.objectives import Objectives

pytestmark = pytest.mark.spark

WHOLE = told(7, jobs=4, odd=2, long=3)
ROWS, LATE = WHOLE[: -len(WHOLE) // 6], WHOLE[-len(WHOLE) // 6 :]
FIRST_EDGE, EDGE = START.date() - timedelta(days=1), START.date() + timedelta(days=1)
# A compaction publishes the closed rows of each table, the edge, carried events, and what is left of bronze.
EDGE_AT = len(GOLD) + 1


def refresh(spark: SparkSession, store: TableStore) -> None:
    if isinstance(store, Tables):
        incremental.update(spark, store, Objectives(), lambda _: None)
    else:
        run.refresh(spark, store, lambda _: None)


def gold(spark: SparkSession, store: TableStore) -> Contents:
    counts = [EVENT_COUNTS] if store.has(EVENT_COUNTS) else []
    return {table.name: plain(store.read(spark, table), table) for table in (*GOLD, *counts)}


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet tables with days dropped once, and days to drop."""
    store = Tables(tmp_path_factory.mktemp("dropped"))
    store.prepare()
    write(spark, store, 0, ROWS)
    refresh(spark, store)
    compact(spark, store, keep_days=0, today=FIRST_EDGE)
    return store.directory


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Iterator[Tables]:
    shutil.copytree(made, tmp_path / "tables", symlinks=True)
    yield Tables(tmp_path / "tables")
    shutil.rmtree(tmp_path / "tables")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", [2, EDGE_AT + 1], ids=["closed rows", "carried events"])
def test_a_backfill_after_a_killed_compaction_has_all_gold(spark: SparkSession, store: Tables, step: int) -> None:
    before = gold(spark, store)
    with dying_at(Tables, "publish", step):
        compact(spark, store, keep_days=0, today=EDGE)
    run.backfill(spark, store, lambda _: None)
    assert gold(spark, store) == before
    assert compact(spark, store, keep_days=0, today=EDGE).days_dropped
    run.backfill(spark, store, lambda _: None)
    assert gold(spark, store) == before


@pytest.mark.timeout(300)
def test_events_after_a_killed_compaction_count_as_in_a_backfill(spark: SparkSession, store: Tables) -> None:
    frozen = gold_before(spark, store, EDGE)
    # The edge is written, and no day is dropped.
    with dying_at(Tables, "publish", EDGE_AT + 1):
        compact(spark, store, keep_days=0, today=EDGE)
    write(spark, store, 1, LATE)
    refresh(spark, store)
    assert gold_before(spark, store, EDGE) == frozen
    check_rebuild(spark, store)


def test_small_tables_are_whole_after_a_killed_compaction(spark: SparkSession, tmp_path: Path) -> None:
    store = Tables(tmp_path)
    store.prepare()
    write(spark, store, 0, ROWS)
    run.refresh(spark, store, lambda _: None)
    before = gold(spark, store)
    for step in (2, len(GOLD) + 1):
        with dying_at(Tables, "publish", step):
            compact(spark, store, keep_days=0, today=EDGE)
        run.backfill(spark, store, lambda _: None)
        assert gold(spark, store) == before


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_days_whose_events_gold_lacks_are_not_dropped(spark: SparkSession, tmp_path: Path, table_format: str) -> None:
    store = open_store(spark, tmp_path / "tables", table_format)
    store.prepare()
    Path(store.checkpoint_location()).mkdir(parents=True, exist_ok=True)

    def drop() -> Compacted:
        whole = compact if isinstance(store, Tables) else compact_lake
        return whole(spark, store, keep_days=0, today=EDGE)  # type: ignore[arg-type]

    middle = len(ROWS) // 2
    write(spark, store, 0, ROWS[:middle])
    with pytest.raises(NotRefreshedError, match="run --once"):
        drop()
    run.refresh(spark, store, lambda _: None)
    # A run is killed before its refresh. To merge files makes no difference.
    write(spark, store, 1, ROWS[middle:])
    compact(spark, store) if isinstance(store, Tables) else compact_lake(spark, store)
    with pytest.raises(NotRefreshedError):
        drop()
    assert store.read(spark, tables.EVENTS).count()
    run.refresh(spark, store, lambda _: None)
    before = gold(spark, store)
    assert drop().days_dropped
    assert gold(spark, store) == before


def test_a_batch_that_spark_will_write_again_is_not_dropped(spark: SparkSession, store: Tables) -> None:
    write(spark, store, 1, LATE)
    (store.checkpoint / "offsets").mkdir()
    (store.checkpoint / "offsets" / "1").write_text("v1")
    (store.checkpoint / "commits" / "1").unlink()
    refresh(spark, store)
    with pytest.raises(NotRefreshedError):
        compact(spark, store, keep_days=0, today=EDGE)


def test_a_run_that_compacts_first_refreshes_what_an_earlier_one_left(spark: SparkSession, store: Tables) -> None:
    write(spark, store, 1, LATE)
    shutil.copytree(store.directory, store.directory / "copy", symlinks=True)
    refresh(spark, copy := Tables(store.directory / "copy"))
    expected = gold(spark, copy)
    done: list[object] = []
    settings = run.Settings("amqp://localhost", store.directory, compact_hours=0.0, keep_days=0)
    following = run._Following(spark, settings, store, done.append)
    (store.checkpoint / "offsets").mkdir()
    (store.checkpoint / "offsets" / "1").write_text("v1")
    (store.checkpoint / "commits" / "1").unlink()
    following.between()
    assert not [step for step in done if isinstance(step, Compacted)]
    # Spark has written it again.
    following.written = 1
    following.between()
    assert [step.files_after for step in done if isinstance(step, Compacted)] == [0]
    assert gold(spark, store) == expected
