"""Reads and writes the files of parts with Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from waybill.pipeline import tables
from waybill.pipeline.snapshots import Draft
from waybill.pipeline.tables import Table

NUMBER: Final = "number"
"""The column with the number of the part for a row."""


def read_files(spark: SparkSession, table: Table, files: Sequence[Path]) -> DataFrame:
    """The rows of some files of a table."""
    if not files:
        # Spark optimizes empty relations away.
        nothing = [F.lit(None).cast(column.dataType).alias(column.name) for column in table.schema.fields]
        return spark.range(1).where("false").select(*nothing)
    return spark.read.schema(table.schema).parquet(*map(str, files))


def write_parts(rows: DataFrame, table: Table, draft: Draft) -> Path:
    """Write rows with a column `number`; returns their place, with a directory for each number (`Draft.replace`)."""
    place = draft.scratch / table.name.replace("/", "-")
    writer = rows.repartition(NUMBER).write.mode("overwrite").options(**tables.WRITTEN_QUICKLY)
    writer.partitionBy(NUMBER).parquet(str(place))
    return place
