"""Delta and Iceberg tables in a directory, written by Spark without any jars."""

import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.pipeline.histories import history, rows
from waybill.pipeline import run, tables
from waybill.pipeline.checkpoint_check import check_events
from waybill.pipeline.compaction import compact_lake
from waybill.pipeline.iceberg_log import open_catalog
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.parquet_files import DamagedFileError
from waybill.pipeline.schemas import EVENT
from waybill.pipeline.storage import Storage
from waybill.pipeline.table_formats import open_store
from waybill.pipeline.tables import Table, TablesError
from waybill.pipeline.transforms import bronze

EVENTS = rows([[one] for one in history(17, 8)])
MALFORMED = ("ojs.events", 900, 0, *([None] * 18), "junk", "bad")


@pytest.fixture(params=["delta", "iceberg"])
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path, table_format: str) -> LakeTables:
    made = open_store(spark, tmp_path / "lake", table_format)
    assert isinstance(made, LakeTables)
    return made


def write(spark: SparkSession, store: LakeTables, batch: int, events: list[tuple[object, ...]]) -> tuple[int, int]:
    written = run.write_bronze(spark.createDataFrame(events, EVENT).coalesce(1), batch, store)
    return written.events, written.malformed


def cells(spark: SparkSession, store: LakeTables, table: Table) -> list[str]:
    return sorted(repr(row) for row in store.read(spark, table).collect())


def job(job_id: str) -> tuple[object, ...]:
    return (job_id, *([None] * 18))


def as_others_read(store: LakeTables, table_format: str, table: Table) -> pl.DataFrame:
    """The table, read with nothing of the pipeline."""
    if table_format == "delta":
        return pl.read_delta(f"{store.root}/{table.name}")
    catalog = open_catalog(Storage.of(store.root), None)
    return pl.DataFrame(catalog.load_table(f"waybill.{table.name.replace('/', '_')}").scan().to_arrow())


def test_a_batch_that_runs_again_is_there_once(spark: SparkSession, store: LakeTables, table_format: str) -> None:
    assert cells(spark, store, tables.EVENTS) == []
    for batch in range(4):
        part = [*EVENTS[batch::4], *([MALFORMED] if batch == 3 else [])]
        counts = len(EVENTS[batch::4]), int(batch == 3)
        assert write(spark, store, batch, part) == counts
        assert write(spark, store, batch, part) == counts
    before = cells(spark, store, tables.EVENTS), cells(spark, store, tables.QUARANTINE)
    assert [len(found) for found in before] == [len(EVENTS), 1]
    others = as_others_read(store, table_format, tables.EVENTS)
    assert sorted(others["event_id"]) == sorted(str(row[4]) for row in EVENTS)
    assert others.filter(pl.col("date") != pl.col("time").dt.date()).is_empty()

    Path(store.checkpoint_location()).mkdir()
    compacted = compact_lake(spark, store)
    assert compacted.files_after < compacted.files_before
    assert write(spark, store, 3, [*EVENTS[3::4], MALFORMED]) == (len(EVENTS[3::4]), 1)
    assert (cells(spark, store, tables.EVENTS), cells(spark, store, tables.QUARANTINE)) == before
    with pytest.raises(TablesError, match="the checkpoint is older"):
        store.write_batch(store.read(spark, tables.EVENTS), tables.EVENTS, 2)
    shutil.rmtree(store.checkpoint_location())
    with pytest.raises(TablesError, match="no checkpoint"):
        store.prepare()


def test_a_table_without_its_log_is_not_taken_for_empty(
    spark: SparkSession, store: LakeTables, table_format: str
) -> None:
    commits = Path(store.checkpoint_location()) / "commits"
    commits.mkdir(parents=True)
    (commits / "0").touch()
    # As after a batch without any event that can be used.
    check_events(store)
    write(spark, store, 1, EVENTS[:20])
    check_events(store)
    root = commits.parent.parent
    if table_format == "delta":
        shutil.rmtree(root / tables.EVENTS.name / "_delta_log")
    else:
        (root / "catalog.db").unlink()
    with pytest.raises(TablesError, match="bronze/events or its log is missing"):
        check_events(open_store(spark, root, table_format))


def test_a_table_whose_log_has_lost_its_end_is_refused(
    spark: SparkSession, store: LakeTables, table_format: str
) -> None:
    """Spark would go on after the lost batch, and nobody would miss its events."""
    commits = Path(store.checkpoint_location()) / "commits"
    commits.mkdir(parents=True)
    root = commits.parent.parent
    malformed: list[tuple[object, ...]] = [MALFORMED]
    for batch, events in enumerate([malformed, EVENTS[:9], EVENTS[9:20], malformed]):
        (commits / str(batch)).touch()
        if batch and table_format == "iceberg":
            shutil.copy(root / "catalog.db", root / "older.db")
        write(spark, store, batch, events)
        check_events(open_store(spark, root, table_format))
    if table_format == "delta":
        max((root / tables.EVENTS.name / "_delta_log").glob("*.json")).unlink()
    else:
        (root / "older.db").replace(root / "catalog.db")
    with pytest.raises(TablesError, match="bronze/events has batches up to 2, but the checkpoint has those up to 3"):
        check_events(open_store(spark, root, table_format))


def test_a_catalog_is_found_in_the_settings(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__SHELF__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHELF__URI", f"sqlite:///{tmp_path}/shelf.db")
    store = open_store(spark, tmp_path / "lake", "iceberg", catalog="shelf")
    store.replace(spark.createDataFrame([job("a")], tables.JOBS.schema).coalesce(1), tables.JOBS)
    assert store.read(spark, tables.JOBS).count() == 1
    assert (tmp_path / "shelf.db").is_file()
    assert not (tmp_path / "lake" / "catalog.db").exists()


def test_old_days_are_dropped(spark: SparkSession, store: LakeTables) -> None:
    late = [(*row[:8], row[8] + timedelta(days=1), *row[9:]) for row in EVENTS if row[8] is not None]  # type: ignore[operator]
    write(spark, store, 0, [*EVENTS, *late])
    Path(store.checkpoint_location()).mkdir()
    days = sorted({row["date"] for row in store.read(spark, tables.EVENTS).select("date").collect()})
    store.replace(spark.createDataFrame([], tables.JOBS.schema), tables.JOBS)
    store.note_refreshed(0)
    assert compact_lake(spark, store, keep_days=0, today=days[-1]).days_dropped == len(days) - 1
    assert {row["date"] for row in store.read(spark, tables.EVENTS).select("date").collect()} == {days[-1]}


def test_a_table_is_replaced_in_one_step(spark: SparkSession, store: LakeTables, table_format: str) -> None:
    assert not store.has(tables.JOBS)
    seen = []
    for job_id in ("a", "b"):
        old = store.read(spark, tables.JOBS)
        store.replace(spark.createDataFrame([job(job_id)], tables.JOBS.schema).coalesce(1), tables.JOBS)
        seen.append([row["job_id"] for row in old.collect()])
        assert as_others_read(store, table_format, tables.JOBS)["job_id"].to_list() == [job_id]
    # A reader goes on with the files of its version.
    assert seen == [[], ["a"]]
    store.replace(spark.createDataFrame([], tables.JOBS.schema), tables.JOBS)
    assert cells(spark, store, tables.JOBS) == []


def test_new_columns_come_without_breaking_old_rows(spark: SparkSession, store: LakeTables, table_format: str) -> None:
    fields = tables.EVENTS.schema.fields
    earlier = Table(
        "bronze/events", StructType([field for field in fields if field.name != "error_type"]), ("date", "batch_id")
    )
    events = spark.createDataFrame(EVENTS, EVENT)
    old = bronze.bronze_events(events, 0)
    store.write_batch(old.select(*earlier.schema.fieldNames()), earlier, 0)
    assert store.read(spark, tables.EVENTS).where("error_type is not null").count() == 0
    store.write_batch(bronze.bronze_events(events, 1), tables.EVENTS, 1)
    failed = sum(1 for row in EVENTS if row[18] is not None)
    assert store.read(spark, tables.EVENTS).where("error_type is not null").count() == failed
    # A reader of the earlier version goes on, and others see the column.
    assert store.read(spark, earlier).count() == 2 * len(EVENTS)
    others = as_others_read(store, table_format, tables.EVENTS)
    assert others["error_type"].is_not_null().sum() == failed


def test_files_that_no_version_has_are_deleted_after_a_week(
    spark: SparkSession, store: LakeTables, table_format: str
) -> None:
    for job_id in ("a", "b"):
        store.replace(spark.createDataFrame([job(job_id)], tables.JOBS.schema).coalesce(1), tables.JOBS)
    left = Path(store.root) / tables.JOBS.name / "data" / "crashed" / "part-0.parquet"
    left.parent.mkdir()
    left.write_bytes(b"half a fi")
    place = Path(store.root) / tables.JOBS.name / "data"
    store.clean()
    assert len(list(place.rglob("*.parquet"))) == 3
    long_ago = time.time() - 30 * 86_400
    os.utime(left, (long_ago, long_ago))
    store.clean()
    assert len(list(place.rglob("*.parquet"))) == 2
    assert cells(spark, store, tables.JOBS) == [
        repr(row) for row in spark.createDataFrame([job("b")], tables.JOBS.schema).collect()
    ]


@pytest.mark.parametrize("size", [0, -1])
def test_a_file_that_is_lost_or_cut_off_is_named(spark: SparkSession, store: LakeTables, size: int) -> None:
    write(spark, store, 0, EVENTS)
    file = min(Path(store.root, tables.EVENTS.name).rglob("*.parquet"))
    # Spark skips empty ones.
    os.truncate(file, max(size, 0))
    if size < 0:
        file.unlink()
    for read in (lambda: store.read(spark, tables.EVENTS), lambda: list(store.event_files(-1) or ())):
        with pytest.raises(DamagedFileError, match=rf"{file.name} (is lost|has 0 bytes)"):
            read()


def test_a_log_of_iceberg_that_is_cut_off_is_named(spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(spark, tmp_path, "iceberg")
    assert isinstance(store, LakeTables)
    write(spark, store, 0, EVENTS)
    logs = Path(store.root, tables.EVENTS.name, "metadata")
    for pattern in ("*-m0.avro", "snap-*.avro", "*.metadata.json"):
        log = max(logs.glob(pattern))
        whole = log.read_bytes()
        log.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(TablesError, match=r"the log of .*bronze/events cannot be read .*how tables are repaired"):
            store.read(spark, tables.EVENTS)
        log.write_bytes(whole)
