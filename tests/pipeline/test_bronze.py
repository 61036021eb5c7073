from pyspark.sql import Row, SparkSession
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from tests.pipeline.histories import START, event, rows, rows_of
from waybill.pipeline.schemas import BRONZE_EVENTS, EVENT, QUARANTINE
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
