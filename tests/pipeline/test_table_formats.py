import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from waybill.cli.pipeline import command as pipeline
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.storage import Storage, spark_options
from waybill.pipeline.table_formats import open_store, session_options
from waybill.pipeline.tables import Tables, TablesError


def test_tables_are_parquet_unless_told_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    assert isinstance(open_store(spark, tmp_path), Tables)
    assert isinstance(open_store(spark, tmp_path, "delta"), LakeTables)
    assert session_options(tmp_path, "parquet") == {}


def test_what_cannot_be_had_says_why(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TablesError, match="use delta or iceberg"):
        open_store(spark, "s3a://bucket/events")
    with pytest.raises(TablesError, match="parquet, delta"):
        open_store(spark, tmp_path, "orc")
    with pytest.raises(TablesError, match="only Iceberg"):
        open_store(spark, tmp_path, "delta", catalog="lake")
    with pytest.raises(TablesError, match="need a catalog"):
        open_store(spark, "s3a://bucket/events", "iceberg")
    with pytest.raises(TablesError, match="'nowhere' cannot be used"):
        open_store(spark, tmp_path, "iceberg", catalog="nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TablesError, match=r"needs deltalake: pip install 'waybill-amqp\[lake\]'"):
        open_store(spark, tmp_path, "delta")


@pytest.mark.parametrize(
    ("place", "root", "uri"),
    [
        ("/data/a b", "/data/a b", "/data/a b"),
        ("file:///data/a%20b", "/data/a b", "/data/a b"),
        ("s3a://bucket/a/", "s3a://bucket/a", "s3://bucket/a"),
        ("s3://bucket", "s3a://bucket", "s3://bucket"),
    ],
)
def test_a_place_has_a_name_for_spark_and_one_for_the_formats(place: str, root: str, uri: str) -> None:
    storage = Storage.of(place)
    assert (storage.root, storage.uri) == (root, uri)
    assert storage.for_spark(f"{uri}/x") == f"{root}/x"


@pytest.mark.parametrize("place", ["gs://bucket/a", "s3a:///a", "amqp://host"])
def test_other_places_are_refused(place: str) -> None:
    with pytest.raises(TablesError, match="s3a://BUCKET/PREFIX"):
        Storage.of(place)


def test_a_session_reaches_the_store_that_the_environment_names() -> None:
    storage = Storage.of("s3a://bucket/events")
    assert "spark.hadoop.fs.s3a.endpoint" not in spark_options(storage, {})
    options = spark_options(storage, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_SECRET_ACCESS_KEY": "secret"})
    assert options["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert "org.apache.hadoop:hadoop-aws" in options["spark.jars.packages"]
    assert "secret" not in "".join(options.values())
    assert spark_options(Storage.of("/data"), {}) == {}


@pytest.mark.parametrize("command", [["run", "--uri", "amqp://127.0.0.1"], ["report"], ["compact"], ["backfill"]])
def test_tables_are_not_put_into_a_file(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = CliRunner().invoke(pipeline, [*command, "--data", str(file)])
    assert result.exit_code == 2
    assert f"Directory '{file}' is a file" in result.output
