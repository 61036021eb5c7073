"""Silver and gold by batches are those of all events. `make pipeline-incremental` does more of it, with kills."""

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.incremental import FOR_FEW_ROWS, check, check_rollups, told, write
from waybill.pipeline import incremental, tables
from waybill.pipeline.snapshots import Snapshots
from waybill.pipeline.tables import Tables
from waybill.pipeline.transforms.objectives import Objectives

pytestmark = pytest.mark.spark


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
    check_rollups(spark, store)
    current = Snapshots(tmp_path).current()
    assert current is not None
    assert current.contents.batch == 1
    assert spark.sparkContext._jsc.getPersistentRDDs().isEmpty()
