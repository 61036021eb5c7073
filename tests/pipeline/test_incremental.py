"""Silver and gold by batches are those of all events. `make pipeline-incremental` does more of it, with kills."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.incremental import check, check_rollups, told, write
from waybill.pipeline import gold_tables, incremental, tables
from waybill.pipeline.snapshots import Snapshots
from waybill.pipeline.tables import Tables
from waybill.pipeline.transforms.objectives import Objectives

pytestmark = pytest.mark.spark


@pytest.mark.timeout(300)
def test_late_and_odd_events_in_batches_give_the_tables_of_all_events(spark: SparkSession, tmp_path: Path) -> None:
    store = Tables(tmp_path)
    store.prepare()
    store.checkpoint.mkdir()
    rows = told(1, jobs=12, odd=12, long=2)
    middle = len(rows) * 2 // 3
    for number, part in enumerate((rows[:middle], rows[middle:])):
        write(spark, store, number, part)
        incremental.update(spark, store, Objectives(), lambda _: None)
    check(spark, store, (tables.ATTEMPTS, tables.JOBS, gold_tables.ACTIVITY, gold_tables.WORKERS))
    check_rollups(spark, store)
    current = Snapshots(tmp_path).current()
    assert current is not None
    assert current.contents.batch == 1
    assert spark.sparkContext._jsc.getPersistentRDDs().isEmpty()
