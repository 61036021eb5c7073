"""Checkpoints that are damaged, or not those of the tables, are refused before Spark starts. No Spark session."""

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from waybill.pipeline import tables
from waybill.pipeline.checkpoint_check import check_checkpoint, check_events
from waybill.pipeline.compaction import compact
from waybill.pipeline.run import backfill
from waybill.pipeline.tables import Tables, TablesError

BATCHES = 4


@pytest.fixture
def spark_is_not_asked() -> SparkSession:
    return Mock(SparkSession)


@pytest.fixture
def store(tmp_path: Path) -> Tables:
    """Tables with batches 0 to 3, and their checkpoint."""
    made = Tables(tmp_path)
    (made.checkpoint / "offsets").mkdir(parents=True)
    (made.checkpoint / "commits").mkdir()
    (made.checkpoint / "metadata").write_text('{"id":"10552c07-63cf-4bd5-a4d7-3a8b1f5d2a90"}')
    for number in range(BATCHES):
        (made.checkpoint / "offsets" / str(number)).write_text(f'v1\n{{"conf":{{}}}}\n{{"ojs.events":{number}}}')
        (made.checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        (tmp_path / tables.EVENTS.name / "date=2026-03-01" / f"batch_id={number}").mkdir(parents=True)
    return made


def test_what_a_run_or_a_crash_leaves_is_taken(store: Tables) -> None:
    check_checkpoint(store)
    (store.checkpoint / "offsets" / ".4.crc").touch()
    (store.checkpoint / "offsets" / "4.tmp").touch()
    (store.checkpoint / "commits" / "3").unlink()
    (store.checkpoint / "offsets" / "3").write_text('v2\n{"conf":{}}\n{"ojs.events":3}')
    (store.path(tables.EVENTS) / ".DS_Store").touch()
    (store.path(tables.EVENTS) / "date=2026-03-01" / "batch_id=x").mkdir()
    check_checkpoint(store)
    shutil.rmtree(store.checkpoint)
    check_checkpoint(store)


def test_missing_events_are_not_replaced_by_none(store: Tables, spark_is_not_asked: SparkSession) -> None:
    events = store.directory / tables.EVENTS.name
    works: list[Callable[[], object]] = [
        lambda: check_checkpoint(store),
        lambda: backfill(spark_is_not_asked, store, print),
        lambda: compact(spark_is_not_asked, store),
    ]
    for is_dangling in (False, True):
        if is_dangling:
            events.symlink_to("../nowhere")
        else:
            shutil.rmtree(events)
        for work in works:
            with pytest.raises(
                TablesError, match="bronze/events or its log is missing, but the checkpoint has its batches"
            ):
                work()
    # As after a first run that was killed.
    shutil.rmtree(store.checkpoint / "commits")
    check_events(store)


@pytest.mark.parametrize("name", ["offsets/3", "offsets/2", "commits/3"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-3]),
        lambda path: path.write_bytes(b"\0" * 100),
        lambda path: path.write_bytes(b"\xff" + path.read_bytes()),
        lambda path: path.write_bytes(b"v1\n" + b"[" * 5000),
    ],
)
def test_a_damaged_record_is_named_with_a_way_out(store: Tables, name: str, damage: Callable[[Path], object]) -> None:
    damage(store.checkpoint / name)
    with pytest.raises(TablesError, match=f"checkpoint/{name} is damaged .*from one backup"):
        check_checkpoint(store)


def test_a_record_is_cut_off_after_its_version(store: Tables) -> None:
    (store.checkpoint / "offsets" / "3").write_text("v1\n")
    with pytest.raises(TablesError, match=r"offsets/3 is damaged \(empty or cut off\)"):
        check_checkpoint(store)


@pytest.mark.parametrize("damaged", [b"", b"[1]", b'{"id":"x"}', b'{"id":5}', b"\xff", None])
def test_the_id_of_the_query_is_replaced_if_it_is_lost(store: Tables, damaged: bytes | None) -> None:
    """Spark makes no other one where there are batches: `delete it` was no help."""
    metadata = store.checkpoint / "metadata"
    metadata.unlink(missing_ok=True)
    if damaged is not None:
        metadata.write_bytes(damaged)
    with pytest.raises(TablesError, match=r"metadata is damaged .*: replace it by a file with this line") as refused:
        check_checkpoint(store)
    metadata.write_text(str(refused.value).partition("line: ")[2])
    check_checkpoint(store)


@pytest.mark.parametrize("kept", [0, 1, 3])
@pytest.mark.parametrize("has_commits", [False, True])
def test_a_checkpoint_that_is_older_than_the_tables_is_refused(store: Tables, kept: int, has_commits: bool) -> None:
    for number in range(kept, BATCHES):
        (store.checkpoint / "offsets" / str(number)).unlink()
        if not has_commits:
            (store.checkpoint / "commits" / str(number)).unlink()
    with pytest.raises(TablesError, match=f"has batches up to 3, but its checkpoint only knows those up to {kept - 1}"):
        check_checkpoint(store)
