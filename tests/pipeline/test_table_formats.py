from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from waybill.cli.pipeline import command as pipeline
from waybill.pipeline.table_formats import open_store, session_options
from waybill.pipeline.tables import Tables, TablesError


def test_tables_are_parquet_unless_told_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    assert isinstance(open_store(spark, tmp_path), Tables)
    assert session_options("parquet") == {}
    with pytest.raises(TablesError, match="take delta"):
        open_store(spark, "s3a://bucket/events")


def test_a_format_that_cannot_be_had_says_why(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TablesError, match=r"spark\.sql\.extensions"):
        open_store(spark, tmp_path, "delta")
    with pytest.raises(TablesError, match="no Iceberg for Spark"):
        open_store(spark, tmp_path, "iceberg")
    with pytest.raises(TablesError, match="parquet, delta"):
        open_store(spark, tmp_path, "orc")


@pytest.mark.parametrize(
    ("version", "expected"), [("4.2.1", "io.delta:delta-spark_4.2_2.13"), ("4.9.0", r"no Delta for Spark 4\.9, only")]
)
def test_delta_comes_with_the_jars_for_this_spark(monkeypatch: pytest.MonkeyPatch, version: str, expected: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    if version.startswith("4.2"):
        assert session_options("delta")["spark.jars.packages"].startswith(expected)
        return
    with pytest.raises(TablesError, match=expected):
        session_options("delta")


@pytest.mark.parametrize("command", [["run", "--uri", "amqp://127.0.0.1"], ["report"], ["compact"], ["backfill"]])
def test_tables_are_not_put_into_a_file(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = CliRunner().invoke(pipeline, [*command, "--data", str(file)])
    assert result.exit_code == 2
    assert f"Directory '{file}' is a file" in result.output
