"""Compaction changes files and no rows, whatever happens in between."""

import shutil
from datetime import date, timedelta
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import BinaryType

from tests.pipeline.histories import START, Event, event, history, rows, stamp
from waybill.pipeline import gold_tables, run, tables
from waybill.pipeline.compaction import compact
from waybill.pipeline.retention import keep_what_is_needed
from waybill.pipeline.schemas import EVENT
from waybill.pipeline.tables import Tables, TablesError

pytestmark = pytest.mark.spark

EVENTS = history(3, 30)


def write(spark: SparkSession, store: Tables, batch_id: int, events: list[Event]) -> None:
    run.write_bronze(spark.createDataFrame(rows([events]), EVENT).repartition(3), batch_id, store)
    commits = store.checkpoint / "commits"
    commits.mkdir(parents=True, exist_ok=True)
    (commits / str(batch_id)).write_text("v1")


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bronze of four batches, as a query would have written them."""
    made = Tables(tmp_path_factory.mktemp("compaction"))
    made.prepare()
    quarter = len(EVENTS) // 4
    for number in range(4):
        write(spark, made, number, EVENTS[number * quarter : (number + 1) * quarter])
    return made.directory


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Tables:
    """A copy of it for each test."""
    shutil.copytree(written, tmp_path / "tables", symlinks=True)
    return Tables(tmp_path / "tables")


def events(spark: SparkSession, store: Tables) -> list[Row]:
    found: list[Row] = store.read(spark, tables.EVENTS).drop("batch_id").orderBy("event_id", "offset").collect()
    return found


def test_many_files_become_few_and_no_row_changes(spark: SparkSession, store: Tables) -> None:
    before = events(spark, store)
    reader = store.read(spark, tables.EVENTS)
    done = compact(spark, store)
    assert done.files_after < done.files_before
    assert done.days_rewritten > 0
    assert events(spark, store) == before
    # Whoever had begun to read before goes on with the old files.
    assert reader.count() == len(before)
    again = compact(spark, store)
    assert events(spark, store) == before
    assert again.files_after <= done.files_after
    files = list(store.path(tables.EVENTS).rglob("*.parquet"))
    assert [file for file in files if not file.with_name(f".{file.name}.crc").exists()] == []


def test_the_last_batch_can_run_again_after_it(spark: SparkSession, store: Tables) -> None:
    before = events(spark, store)
    compact(spark, store)
    quarter = len(EVENTS) // 4
    write(spark, store, 3, EVENTS[3 * quarter : 4 * quarter])
    assert events(spark, store) == before


def test_old_days_are_dropped(spark: SparkSession, store: Tables) -> None:
    days = sorted({row["date"] for row in store.read(spark, tables.EVENTS).select("date").distinct().collect()})
    last = days[-1]
    run.refresh(spark, store, lambda _: None)
    done = compact(spark, store, keep_days=0, today=last)
    assert done.days_dropped == len(days) - 1
    assert {row["date"] for row in store.read(spark, tables.EVENTS).collect()} == {last}
    assert compact(spark, store, keep_days=0, today=date(2100, 1, 1)).files_after == 0
    assert events(spark, store) == []


def gold_of(spark: SparkSession, store: Tables) -> dict[str, set[str]]:
    """All rows of gold. Sketches, which are the same in other octets, are told by their percentiles."""
    found = {}
    for table in gold_tables.GOLD:
        columns = [field.name for field in table.schema.fields if not isinstance(field.dataType, BinaryType)]
        found[table.name] = set(map(repr, store.read(spark, table).select(*columns).collect()))
    return found


def test_gold_of_dropped_days_stays_and_jobs_across_the_edge_are_whole(spark: SparkSession, store: Tables) -> None:
    midnight = START + timedelta(seconds=30)
    more = [
        event("worker.started", START - timedelta(days=3), "w1", 1, worker_id="w1", concurrency=4),
        event("job.enqueued", START - timedelta(days=2), "open", 1),
        event("job.enqueued", START - timedelta(days=2), "done", 1),
        event("job.completed", START - timedelta(days=2), "done", 2, attempt=1, duration_ms=5),
    ]
    write(spark, store, 4, more)
    run.refresh(spark, store, lambda _: None)
    gold = gold_of(spark, store)
    jobs = {row["job_id"]: row for row in store.read(spark, tables.JOBS).collect()}
    assert any("places=4" in row for row in gold[gold_tables.WORKERS.name])
    assert compact(spark, store, keep_days=0, today=midnight.date()).days_dropped == 3
    # To drop no more days changes nothing.
    compact(spark, store, keep_days=1, today=midnight.date())
    write(spark, store, 5, [event("job.completed", midnight + timedelta(hours=2), "open", 2, attempt=1, duration_ms=5)])
    run.refresh(spark, store, lambda _: None)
    left = {row["job_id"]: row for row in store.read(spark, tables.JOBS).collect()}
    opened = left.pop("open")
    assert (opened["state"], opened["latency_ms"]) == ("completed", 2 * 86_400_000 + 7_230_000)
    reaching = {str(one["subject"]) for one in EVENTS if str(one["time"]) >= stamp(midnight)}
    assert reaching <= set(left) < set(jobs) - {"done"}
    assert all(row == jobs[job_id] for job_id, row in left.items())
    for name, rows_after in gold_of(spark, store).items():
        assert gold[name] <= rows_after
        assert all("2026, 3, 2, 2, 0" in row for row in rows_after - gold[name])


def test_the_places_of_a_worker_are_carried_with_its_job_across_the_edge(spark: SparkSession, tmp_path: Path) -> None:
    store = Tables(tmp_path)
    store.prepare()
    midnight = START + timedelta(seconds=30)
    reports = [
        event("worker.started", START, worker, 1, worker_id=worker, concurrency=4) for worker in ("w8", "w9", "idle")
    ]
    across = [
        event("job.started", START, "long", 1, worker_id="w9", attempt=1),
        # It does not tell its worker.
        event("job.completed", midnight, "long", 2, attempt=1),
    ]
    later = event("job.started", midnight, "later", 1, worker_id="w8", attempt=1)
    write(spark, store, 0, [*reports, *across, later])
    keep_what_is_needed(spark, store, midnight.date())
    carried = store.read(spark, tables.CARRIED).select("type", "worker_id").collect()
    assert sorted(map(tuple, carried)) == [
        ("job.started", "w9"),
        ("worker.started", "w8"),
        ("worker.started", "w9"),
    ]


def test_it_does_not_run_beside_a_writer(spark: SparkSession, store: Tables) -> None:
    with store.locked(), pytest.raises(TablesError, match="in use by another process"):
        compact(spark, store)


def test_a_compaction_that_died_leaves_everything_as_it_was(
    spark: SparkSession, store: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = events(spark, store)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Tables, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            compact(spark, store)
    assert events(spark, store) == before
    assert compact(spark, store).days_rewritten > 0
    assert events(spark, store) == before
