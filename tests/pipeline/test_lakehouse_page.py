"""The programs of docs/how-to/lakehouse.md, on tables of each format."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.page import DOCS, Page
from tests.pipeline.whole_run import WholeRun
from waybill.pipeline import gold_tables, tables
from waybill.pipeline.table_formats import open_store

BLOCKS = {block.file: block.text for block in Page(DOCS / "how-to" / "lakehouse.md").blocks if block.file}


def run(name: str) -> None:
    exec(compile(BLOCKS[name], "lakehouse.md", "exec"), {})  # noqa: S102 - a program of our own page


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_other_tools_read_the_tables(
    table_format: str,
    spark: SparkSession,
    whole_run: WholeRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if table_format == "parquet":
        Path("events").symlink_to(whole_run.store.directory)
    else:
        store = open_store(spark, "events", table_format)
        for table in (tables.JOBS, gold_tables.ACTIVITY):
            store.replace(whole_run.store.read(spark, table).coalesce(1), table)
    run(f"query_{table_format}.py")
    told = capfd.readouterr().out
    completed = whole_run.store.read(spark, tables.JOBS).where("state = 'completed'").count()
    assert f"completed    {completed}" in told
    for row in whole_run.store.read(spark, tables.JOBS).select("queue").distinct().collect():
        assert told.count(row["queue"]) >= 2


def test_percentiles_are_merged_without_spark(
    whole_run: WholeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events").symlink_to(whole_run.store.directory)
    run("merge_percentiles.py")
    wanted = whole_run.report.totals.run
    assert wanted is not None
    assert f"in ms: [{wanted.p50}, {wanted.p95}, {wanted.p99}]" in capfd.readouterr().out
