import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.histories import START, event, history, rows
from waybill.pipeline import run, tables
from waybill.pipeline.schemas import EVENT
from waybill.pipeline.tables import Tables, TablesError


def cells(spark: SparkSession, store: Tables, table: tables.Table) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in store.read(spark, table).collect()), key=repr)


def test_a_batch_that_runs_again_replaces_itself(spark: SparkSession, tmp_path: Path) -> None:
    store = Tables(tmp_path)
    messages = [[one] for one in history(5, 8)]
    good = rows(messages)
    first = spark.createDataFrame(good[:10], EVENT)
    second = spark.createDataFrame([*good[10:], ("ojs.events", 900, 0, *([None] * 18), "junk", "bad")], EVENT)
    written = run.write_bronze(first, 0, store), run.write_bronze(second, 1, store)
    assert [(step.events, step.malformed) for step in written] == [(10, 0), (len(good) - 10, 1)]
    before = cells(spark, store, tables.EVENTS), cells(spark, store, tables.QUARANTINE)
    assert len(before[0]) == len(good)
    run.write_bronze(second, 1, store)
    assert (cells(spark, store, tables.EVENTS), cells(spark, store, tables.QUARANTINE)) == before


def test_a_new_version_takes_the_place_of_the_old_one(spark: SparkSession, tmp_path: Path) -> None:
    store = Tables(tmp_path)
    assert store.read(spark, tables.JOBS).count() == 0
    seen = []
    for job_id in ("a", "b", "c"):
        store.replace(spark.createDataFrame([(job_id, *([None] * 18))], tables.JOBS.schema), tables.JOBS)
        seen.append(store.path(tables.JOBS))
        assert [row["job_id"] for row in store.read(spark, tables.JOBS).collect()] == [job_id]
    assert [path.is_dir() for path in seen] == [False, True, True]


def test_a_reader_keeps_its_version_while_the_next_is_written(spark: SparkSession, tmp_path: Path) -> None:
    store = Tables(tmp_path)
    store.replace(spark.createDataFrame([("a", *([None] * 18))], tables.JOBS.schema), tables.JOBS)
    old = store.read(spark, tables.JOBS)
    store.replace(old.selectExpr("concat(job_id, 'a') job_id", *tables.JOBS.schema.fieldNames()[1:]), tables.JOBS)
    assert [row["job_id"] for row in old.collect()] == ["a"]
    assert [row["job_id"] for row in store.read(spark, tables.JOBS).collect()] == ["aa"]


def test_events_without_their_checkpoint_are_refused(tmp_path: Path) -> None:
    store = Tables(tmp_path)
    (tmp_path / tables.EVENTS.name / "date=2026-03-01").mkdir(parents=True)
    with pytest.raises(TablesError, match="no checkpoint"):
        store.prepare()


def test_what_an_interrupted_write_left_is_cleared_away(tmp_path: Path) -> None:
    store = Tables(tmp_path)
    store.checkpoint.mkdir()
    staging = tmp_path / tables.EVENTS.name / ".spark-staging-1"
    staging.mkdir(parents=True)
    store.prepare()
    assert not staging.exists()
    shutil.rmtree(tmp_path)


def test_tables_of_a_small_history_change_together(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Tables(tmp_path)
    store.prepare()
    store.versions_kept = 2
    store.checkpoint.mkdir()
    seen: list[list[int]] = []

    def counts() -> list[int]:
        return [store.read(spark, table).count() for table in (tables.ATTEMPTS, tables.JOBS)]

    for batch, job in enumerate(("a", "b")):
        events = [event("job.started", START, job, 1, attempt=1), event("job.completed", START, job, 2, attempt=1)]
        run.write_bronze(spark.createDataFrame(rows([events]), EVENT), batch, store)
        run.refresh(spark, store, lambda _: seen.append(counts()))
    # While the tables were written, readers saw those of before.
    assert seen == [*([[0, 0]] * 8), *([[1, 1]] * 8)]
    assert counts() == [2, 2]
    reader = store.read(spark, tables.JOBS)
    run.refresh(spark, store, lambda _: None)
    assert reader.count() == 2
    assert len(list((tmp_path / "snapshots").iterdir())) == 2
