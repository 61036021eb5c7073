"""Metrics of queries, and the lag that a checkpoint tells."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from tests.pipeline.histories import history
from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.streams import Stream
from waybill.cli.main import main
from waybill.pipeline.progress_reports import TableWritten
from waybill.pipeline.query_metrics import QUERIES_MAX, QueryMetrics
from waybill.pipeline.run import PipelineError, Settings, ingest

EVENTS = history(5, 20)


def heard(spark: SparkSession) -> None:
    """Spark tells listeners from a queue of its own: wait until it is empty."""
    bus = spark.sparkContext._jsc.sc().listenerBus()
    bus.waitUntilEmpty()


def test_a_run_is_measured_and_its_checkpoint_tells_its_lag(
    spark: SparkSession, own_broker: OwnBroker, tmp_path: Path
) -> None:
    registry, metrics = CollectorRegistry(), QueryMetrics()
    registry.register(metrics)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"ojs_pipeline_{name}", labels)

    def lag(*words: str) -> tuple[int, str]:
        given = ["pipeline", "lag", "--uri", own_broker.uri, "--stream", "measured", "--data", str(tmp_path)]
        done = CliRunner().invoke(main, [*given, *words])
        return done.exit_code, done.output

    spark.streams.addListener(metrics.listener)
    try:
        with Stream(own_broker.uri, "measured") as stream:
            stream.publish_events(EVENTS)
            stream.publish(b"no event")
            settings = Settings(stream.uri, tmp_path, stream=stream.name)
            assert "is not a checkpoint of a streaming query" in lag()[1]
            ingest(spark, settings, metrics.note)
            assert json.loads(lag("--json")[1])["lag"] == 0
            stream.publish(b"more", b"and more")
            end = len(EVENTS) + 3
            assert json.loads(lag("--json")[1]) == {
                "lag": 2,
                "streams": {"measured": {"read_to": end - 2, "end": end, "lag": 2}},
            }
            assert lag("--max", "2")[0] == 0
            assert lag("--max", "1")[0] == 1
            # A mark that is another one than that of the stream ends the query.
            stream.delete()
            stream.declare()
            with pytest.raises(PipelineError):
                ingest(spark, settings, metrics.note)
            heard(spark)
    finally:
        spark.streams.removeListener(metrics.listener)
    # A batch with malformed events is read twice: see `write_bronze`.
    assert value("rows_total", query="bronze") == 2 * (len(EVENTS) + 1)
    assert value("batches_total", query="bronze") == 1
    assert value("batch_duration_seconds_count", query="bronze") == 1
    assert value("lag_messages", query="bronze", stream="measured") == 0
    assert (value("active", query="bronze"), value("failures_total", query="bronze")) == (0, 1)
    assert (value("last_progress_timestamp_seconds", query="bronze") or 0) > 0
    assert value("events_total", kind="usable") == len(EVENTS)
    assert value("events_total", kind="malformed") == 1


def test_refreshes_of_tables_are_counted_and_names_of_queries_are_limited() -> None:
    registry, metrics = CollectorRegistry(), QueryMetrics()
    registry.register(metrics)
    metrics.note(TableWritten("gold/activity", 1.5))
    metrics.note(TableWritten("gold/activity", 0.25))
    assert registry.get_sample_value("ojs_pipeline_table_seconds_total", {"table": "gold/activity"}) == 1.75
    assert registry.get_sample_value("ojs_pipeline_table_refreshes_total", {"table": "gold/activity"}) == 2
    for number in range(QUERIES_MAX + 5):
        metrics.started(f"id-{number}", None)
    metrics.started("named", "one more")
    assert registry.get_sample_value("ojs_pipeline_active", {"query": "id-199"}) == 1
    assert registry.get_sample_value("ojs_pipeline_active", {"query": "other"}) == 1
    assert len(next(one for one in registry.collect() if one.name == "ojs_pipeline_active").samples) == QUERIES_MAX + 1
