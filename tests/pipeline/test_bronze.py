from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from tests.pipeline.histories import START, event, rows, rows_of
from waybill.pipeline import run
from waybill.pipeline.schemas import BRONZE_EVENTS, EVENT, QUARANTINE
from waybill.pipeline.tables import EVENTS, Tables
from waybill.pipeline.transforms import bronze


def test_usable_events_go_to_bronze_and_the_others_to_quarantine(spark: SparkSession) -> None:
    good = rows([[event("job.enqueued", START, "j1", 1)]])
    bad = rows_of([b"junk"], first_offset=1)
    source = spark.createDataFrame(good + bad, EVENT)

    kept = bronze.bronze_events(source, 7)
    assertSchemaEqual(kept.schema, BRONZE_EVENTS, ignoreNullable=True)
    assertDataFrameEqual(
        kept.selectExpr("subject", "offset", "cast(date as string) date", "batch_id"),
        [Row(subject="j1", offset=0, date="2026-03-01", batch_id=7)],
    )

    refused = bronze.quarantined(source, 7)
    assertSchemaEqual(refused.schema, QUARANTINE, ignoreNullable=True)
    assertDataFrameEqual(
        refused.selectExpr("offset", "event", "substring(reason, 1, 8) reason", "batch_id"),
        [Row(offset=1, event="junk", reason="not JSON", batch_id=7)],
    )


def test_few_copies_of_large_events_are_held_while_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    """Of 32 MiB each, a hundred rows and their copies would not fit in memory."""
    store = Tables(tmp_path)
    store.prepare()
    large = rows([[event("job.enqueued", START, "j1", 1, args="x" * 3_000_000)]])
    run.write_bronze(spark.createDataFrame(large, EVENT), 0, store)
    (file,) = store.path(EVENTS).rglob("*.parquet")
    metadata = pq.read_metadata(file).row_group(0)
    columns = {metadata.column(index).path_in_schema: metadata.column(index) for index in range(metadata.num_columns)}
    assert columns["event"].statistics is None
    assert not any("DICTIONARY" in encoding for encoding in columns["event"].encodings)
    assert columns["subject"].statistics.max == "j1"
    # How many rows Parquet takes before it looks at their size.
    options = spark._jsparkSession.sessionState().newHadoopConf()
    assert {options.get(f"parquet.{kind}.size.row.check.min") for kind in ("page", "block")} == {"1"}
