from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from waybill.pipeline import tables
from waybill.pipeline.table_formats import open_store
from waybill.pipeline.tables import Tables, TablesError
from waybill.pipeline.views import check_catalog_is_persistent, create_views


def test_a_view_shows_the_current_version(spark: SparkSession, tmp_path: Path) -> None:
    store = Tables(tmp_path / "da `ta")

    def replace(*job_ids: str) -> None:
        rows = [(job_id, *([None] * 18)) for job_id in job_ids]
        store.replace(spark.createDataFrame(rows, tables.JOBS.schema).coalesce(1), tables.JOBS)

    replace("a")
    try:
        assert create_views(spark, store, "waybill_views") == ["waybill_views.silver_jobs"]
        for job_ids in (("b", "c"), ("d",)):
            replace(*job_ids)
            found = spark.sql("SELECT job_id FROM waybill_views.silver_jobs ORDER BY 1").collect()
            assert [row["job_id"] for row in found] == list(job_ids)
    finally:
        spark.sql("DROP DATABASE IF EXISTS waybill_views CASCADE")


def test_views_that_cannot_be_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TablesError, match="USING delta LOCATION"):
        create_views(spark, open_store(spark, tmp_path, "delta"), "waybill")
    with pytest.raises(TablesError, match="ends with it: run the command under spark-submit"):
        check_catalog_is_persistent(spark)
