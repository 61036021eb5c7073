"""Files that are lost or truncated are named: tables and reports are not computed without them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.histories import START, Event, event, history, rows
from tests.pipeline.incremental import write
from waybill.pipeline import gold_tables, incremental, run, tables
from waybill.pipeline.checkpoint_check import check_checkpoint
from waybill.pipeline.compaction import compact
from waybill.pipeline.file_lists import add_batch, check_list, list_all, write_list
from waybill.pipeline.parquet_files import DamagedFileError
from waybill.pipeline.report.figures import collect
from waybill.pipeline.tables import Table, Tables
from waybill.pipeline.transforms.objectives import Objectives

EVENTS: list[Event] = history(5, 12)
DAMAGES: list[Callable[[Path], object]] = [
    Path.unlink,
    lambda file: file.write_bytes(b""),
    lambda file: file.write_bytes(file.read_bytes()[:-1]),
]


def files(root: Path, *names: str) -> list[Path]:
    made = [root / name for name in names]
    for file in made:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    return made


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_of_a_batch_is_named(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    first, second = files(tmp_path, "batch_id=0/a.parquet", "batch_id=1/b.parquet")
    add_batch(tmp_path, 0, [first])
    add_batch(tmp_path, 1, [second])
    check_list(tmp_path)
    damage(second)
    with pytest.raises(
        DamagedFileError, match=r"batch_id=1/b\.parquet (is lost|has \d+ bytes, and was written with 9)"
    ):
        check_list(tmp_path)
    check_list(tmp_path, lambda batch: batch == 0)


def test_an_attempt_replaces_the_files_of_the_one_before(tmp_path: Path) -> None:
    first, second = files(tmp_path, "a.parquet", "b.parquet")
    add_batch(tmp_path, 0, [first])
    add_batch(tmp_path, 0, [second])
    first.unlink()
    check_list(tmp_path)


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    first, second, third = files(tmp_path, "a.parquet", "b.parquet", "c.parquet")
    add_batch(tmp_path, 0, [first])
    add_batch(tmp_path, 1, [second])
    (tmp_path / "_files").write_bytes((tmp_path / "_files").read_bytes()[:-5])
    add_batch(tmp_path, 2, [third])
    second.unlink()
    check_list(tmp_path)
    third.unlink()
    with pytest.raises(DamagedFileError, match=r"c\.parquet is lost"):
        check_list(tmp_path)


def test_the_months_of_a_table_are_checked(tmp_path: Path) -> None:
    (lost,) = files(tmp_path / "parts", "a.parquet")
    write_list(tmp_path / "parts", {-1: [lost]})
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "month=2026-03").symlink_to("../parts")
    check_list(tmp_path / "jobs")
    lost.unlink()
    with pytest.raises(DamagedFileError, match=r"month=2026-03/a\.parquet is lost"):
        check_list(tmp_path / "jobs")
    (tmp_path / "parts").rename(tmp_path / "elsewhere")
    with pytest.raises(DamagedFileError, match="month=2026-03 is lost"):
        check_list(tmp_path / "jobs")


def test_directories_without_a_list_are_not_checked(tmp_path: Path) -> None:
    check_list(tmp_path)
    list_all(tmp_path)
    check_list(tmp_path)


def some_file(store: Tables, table: Table) -> Path:
    # Months are links, which `rglob` does not follow.
    return min(file for depth in ("", "*/", "*/*/") for file in store.path(table).glob(f"{depth}*.parquet"))


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> Tables:
    """Tables of three batches, as a query would have written them."""
    made = Tables(tmp_path)
    made.prepare()
    for number in range(3):
        write(spark, made, number, rows([EVENTS[number::3]]))
        (made.checkpoint / "offsets").mkdir(exist_ok=True)
        (made.checkpoint / "offsets" / str(number)).write_text('v1\n{}\n{"ojs.events":1}')
        (made.checkpoint / "commits" / str(number)).write_text("v1\n{}")
    return made


@pytest.mark.spark
def test_nothing_is_computed_without_a_file_of_bronze(spark: SparkSession, store: Tables) -> None:
    (store.checkpoint / "metadata").write_text('{"id":"10552c07-63cf-4bd5-a4d7-3a8b1f5d2a90"}')
    compact(spark, store)
    check_checkpoint(store)
    # Spark skips empty files.
    some_file(store, tables.EVENTS).write_bytes(b"")
    works: list[Callable[[], object]] = [
        lambda: check_checkpoint(store),
        lambda: run.refresh(spark, store, lambda _: None),
        lambda: run.backfill(spark, store, lambda _: None),
        lambda: incremental.update(spark, store, Objectives(), lambda _: None),
        lambda: compact(spark, store),
    ]
    for work in works:
        with pytest.raises(DamagedFileError, match=r"bronze-events/.*\.parquet .*how tables are repaired"):
            work()
    # A batch that Spark writes again need not be complete.
    (store.checkpoint / "offsets" / "3").write_text("v1\n{}\n{}")
    add_batch(store.path(tables.EVENTS), 3, files(store.path(tables.EVENTS), "date=2026-03-01/batch_id=3/x.parquet"))
    # The way out without a backup.
    (store.path(tables.EVENTS) / "_files").unlink()
    (store.path(tables.EVENTS) / "date=2026-03-01" / "batch_id=3" / "x.parquet").unlink()
    check_checkpoint(store)


@pytest.mark.spark
@pytest.mark.parametrize(("table", "is_folded"), [(gold_tables.FAILURES, False), (tables.JOBS, True)])
def test_no_report_is_made_without_a_file(spark: SparkSession, store: Tables, table: Table, is_folded: bool) -> None:
    def refresh() -> None:
        if is_folded:
            incremental.update(spark, store, Objectives(), lambda _: None)
        else:
            run.refresh(spark, store, lambda _: None)

    refresh()
    some_file(store, table).unlink()
    with pytest.raises(DamagedFileError, match=rf"{table.name}/.*\.parquet is lost"):
        store.read(spark, table)
    if not is_folded:
        with pytest.raises(DamagedFileError, match="is lost"):
            collect(spark, store)
        run.backfill(spark, store, lambda _: None)
    else:
        later = event("job.completed", START, "late", 1, attempt=1, duration_ms=5)
        write(spark, store, 3, rows([[later]]))
        with pytest.raises(DamagedFileError, match=rf"{table.name}/.*\.parquet is lost"):
            incremental.update(spark, store, Objectives(), lambda _: None)
        incremental.rebuild(spark, store, Objectives(), lambda _: None)
    store.check_files(table)
    assert collect(spark, store).totals.jobs
