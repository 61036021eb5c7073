"""Bronze: rows of the event source split into events that can be used and those that go to quarantine."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses

from waybill.pipeline.schemas import BRONZE_EVENTS, QUARANTINE


def bronze_events(source: DataFrame, batch_id: int) -> DataFrame:
    """The usable rows of `source` (`schemas.EVENT`) as `schemas.BRONZE_EVENTS`.

    The date is that of the event's own time, so that the same range of offsets falls into the same partitions
    whenever it is read again.
    """
    events = source.where(F.col("malformed").isNull()).withColumns(
        {"date": F.to_date("time"), "batch_id": _batch(batch_id)}
    )
    return events.select(*BRONZE_EVENTS.fieldNames())


def quarantined(source: DataFrame, batch_id: int) -> DataFrame:
    """The other rows of `source`, as `schemas.QUARANTINE`."""
    rows = source.where(F.col("malformed").isNotNull())
    return rows.withColumns({"reason": F.col("malformed"), "batch_id": _batch(batch_id)}).select(
        *QUARANTINE.fieldNames()
    )


def _batch(batch_id: int) -> Column:
    return F.lit(batch_id).cast("bigint")
