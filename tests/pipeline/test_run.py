"""The whole pipeline, from a stream on either broker to tables."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.pipeline.histories import history
from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.reference_fold import fold
from tests.pipeline.streams import Stream
from tests.pipeline.whole_run import EVENTS as WHOLE
from tests.pipeline.whole_run import JOBS, WholeRun
from waybill.pipeline import compaction, tables
from waybill.pipeline import run as run_module
from waybill.pipeline.progress_reports import BatchWritten, Compacted, TableWritten
from waybill.pipeline.run import PipelineError, Settings, ingest, run_continuously
from waybill.pipeline.tables import Tables

EVENTS = history(11, 40)


def run(spark: SparkSession, stream: Stream, directory: Path, limit: int = 500_000) -> list[BatchWritten]:
    """Bring bronze up to date; the batches that were written."""
    steps: list[object] = []
    ingest(spark, Settings(stream.uri, directory, stream=stream.name, max_offsets_per_trigger=limit), steps.append)
    return [step for step in steps if isinstance(step, BatchWritten)]


def places(spark: SparkSession, directory: Path) -> list[tuple[int, int]]:
    """Where the events of bronze came from, in order."""
    rows = Tables(directory).read(spark, tables.EVENTS).select("offset", "position").collect()
    return sorted((row["offset"], row["position"]) for row in rows)


def test_each_event_gets_into_bronze_once_over_several_runs(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    half = len(EVENTS) // 2
    stream.publish_events(EVENTS[:half])
    first = run(spark, stream, tmp_path, limit=half - 3)
    assert [step.events for step in first] == [half - 3, 3]
    stream.publish_events(EVENTS[half:], batch=7)
    stream.publish(b"no event")
    (second,) = run(spark, stream, tmp_path)
    assert (second.events, second.malformed) == (len(EVENTS) - half, 1)

    seen = places(spark, tmp_path)
    assert len(seen) == len(set(seen)) == len(EVENTS)
    # A crash between writing a batch and noting that it is done: the batch runs again, and nothing changes.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    (again,) = run(spark, stream, tmp_path)
    assert again == second
    assert places(spark, tmp_path) == seen
    assert Tables(tmp_path).read(spark, tables.QUARANTINE).count() == 1


def test_a_run_brings_all_tables_up_to_date(spark: SparkSession, whole_run: WholeRun) -> None:
    names = [step.name for step in whole_run.steps if isinstance(step, TableWritten)]
    assert names == [
        "silver/attempts",
        "silver/jobs",
        "gold/activity",
        "gold/failures",
        "gold/dead_letters",
        "gold/retries",
        "gold/objectives",
        "gold/workers",
    ]
    states = {row["job_id"]: row["state"] for row in whole_run.store.read(spark, tables.JOBS).collect()}
    assert states == {job_id: job.state for job_id, job in fold(WHOLE).items()}
    totals = whole_run.report.totals
    assert (totals.events, totals.malformed, totals.jobs) == (len(WHOLE), 1, JOBS)
    # What was kept between the tables is given up, or a run that follows a stream would fill the disk.
    assert spark.sparkContext._jsc.getPersistentRDDs().isEmpty()


def test_messages_are_read_by_offset_as_a_batch(spark: SparkSession, stream: Stream) -> None:
    stream.publish(*(f"{index}".encode() for index in range(50)), type="t", headers={"n": 1})
    reader = spark.read.format("amqp").option("uri", stream.uri).option("subscribe", stream.name)
    whole = reader.option("minPartitions", "3").load()
    assert whole.rdd.getNumPartitions() == 3
    rows = whole.orderBy("offset").collect()
    assert [(row["offset"], bytes(row["body"])) for row in rows] == [(n, str(n).encode()) for n in range(50)]
    assert (rows[0]["stream"], rows[0]["properties"]["type"], rows[0]["headers"]) == (stream.name, "t", {"n": "1"})
    part = reader.option("startingOffsets", "10").option("endingOffsets", json.dumps({stream.name: 1000})).load()
    assert part.count() == 40


def test_what_is_wrong_is_said_with_the_address_and_without_the_password(
    spark: SparkSession, stream: Stream, tmp_path: Path
) -> None:
    wrong = stream.uri.replace("guest@", "secret@")
    with pytest.raises(PipelineError, match=r"127\.0\.0\.1:\d+/%2Fojs.*ACCESS_REFUSED") as caught:
        ingest(spark, Settings(wrong, tmp_path, stream=stream.name), lambda step: None)
    assert "secret" not in str(caught.value)
    with pytest.raises(PySparkException, match="unknown option 'polltimeout': did you mean 'pollTimeoutMs'"):
        spark.read.format("ojs").option("uri", stream.uri).option("pollTimeout", "1").load().collect()
    shutil.rmtree(tmp_path)


class EnoughError(Exception):
    """The run has done what the test looks at."""


def test_a_run_compacts_between_batches_and_loses_none(
    spark: SparkSession, own_broker: OwnBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doing: list[str] = []
    rewritten: list[int] = []
    whole = compaction.compact_held

    def compact_held(*given: Any, **more: Any) -> Compacted:
        doing.append("compact")
        done = whole(*given, **more)
        doing.append("compacted")
        rewritten.append(done.days_rewritten)
        return done

    def note(step: object) -> None:
        doing.append(type(step).__name__)
        if isinstance(step, Compacted) and doing.count("BatchWritten") > 4:
            raise EnoughError

    monkeypatch.setattr(run_module, "compact_held", compact_held)
    # Silver and gold have tests of their own, and take longest.
    monkeypatch.setattr(run_module, "refresh", lambda *_, **__: None)
    with Stream(own_broker.uri, "compacted") as stream:
        stream.publish_events(EVENTS)
        settings = Settings(
            stream.uri,
            tmp_path,
            stream=stream.name,
            max_offsets_per_trigger=9,
            trigger_seconds=0.0,
            compact_hours=0.0,
        )
        with pytest.raises(EnoughError):
            run_continuously(spark, settings, note)
        assert all(later != "BatchWritten" for one, later in pairwise(doing) if one == "compact")
        run(spark, stream, tmp_path)
    seen = places(spark, tmp_path)
    assert len(seen) == len(set(seen)) == len(EVENTS)
    assert any(rewritten)
