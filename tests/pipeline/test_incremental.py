"""Silver and gold by batches are those of all events. `make pipeline-incremental` does more of it, with kills."""

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.histories import START
from tests.pipeline.incremental import check, check_report, told, write
from waybill.pipeline import incremental, tables
from waybill.pipeline.snapshots import Snapshots
from waybill.pipeline.tables import Tables
from waybill.pipeline.transforms.objectives import Objectives

pytestmark = pytest.mark.spark
# To compile so many plans for so few rows takes longer than anything else, and to plan them anew in between comes next.
FOR_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.mark.timeout(300)
def test_late_and_odd_events_in_batches_give_the_tables_of_all_events(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for name, value in FOR_FEW_ROWS.items():
        request.addfinalizer(partial(spark.conf.set, name, str(spark.conf.get(name))))
        spark.conf.set(name, value)
    store = Tables(tmp_path)
    store.prepare()
    store.checkpoint.mkdir()
    rows = told(1, jobs=12, odd=12)
    for number, part in enumerate((rows[:90], rows[90:])):
        write(spark, store, number, part)
        incremental.update(spark, store, Objectives(), lambda _: None)
    check(spark, store, (tables.ATTEMPTS, tables.JOBS, tables.ACTIVITY, tables.WORKERS))
    # The clock of whoever makes the report is in the middle of the history, and of an hour.
    check_report(spark, store, START - timedelta(hours=20, minutes=13))
    current = Snapshots(tmp_path).current()
    assert current is not None
    assert current.contents.batch == 1
    assert spark.sparkContext._jsc.getPersistentRDDs().isEmpty()
