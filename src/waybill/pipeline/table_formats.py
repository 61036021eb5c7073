"""The option `table.format`: Parquet on a file system of this machine, or Delta wherever Spark can write.

Delta needs jars, which fit one version of Spark only. `session_options` adds them to a local session. A session of a
cluster must have them; otherwise `open_store` says what is missing.
"""

from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from waybill.pipeline.delta_tables import CATALOG, EXTENSION, DeltaTables
from waybill.pipeline.tables import Tables, TablesError

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
FORMATS: Final = (PARQUET, DELTA, ICEBERG)
# By the version of Spark, as Maven Central names it.
_DELTA_PACKAGES: Final = {"4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"}
_NO_ICEBERG: Final = (
    "table format iceberg: there is no Iceberg for Spark 4.2 or later, which this pipeline needs. The newest, 1.12 for "
    "Spark 4.1, fails with IncompatibleClassChangeError (SparkView). Take parquet or delta."
)


def open_store(spark: SparkSession, directory: Path | str, table_format: str = PARQUET) -> Tables | DeltaTables:
    """The tables below `directory`, for Delta a path or a URI. Raises TablesError if the format is not available."""
    if table_format == PARQUET:
        if "://" in str(directory):
            raise TablesError(f"{directory}: Parquet tables are kept in a directory; on other storage, take delta")
        return Tables(Path(directory))
    if table_format == DELTA:
        return DeltaTables(spark, str(directory))
    raise TablesError(
        _NO_ICEBERG if table_format == ICEBERG else f"table format {table_format!r}: {', '.join(FORMATS)}"
    )


def session_options(table_format: str) -> dict[str, str]:
    """What a local session needs for the format. Raises TablesError if nothing fits this version of Spark."""
    if table_format == ICEBERG:
        raise TablesError(_NO_ICEBERG)
    if table_format != DELTA:
        return {}
    version = ".".join(pyspark.__version__.split(".")[:2])
    package = _DELTA_PACKAGES.get(version)
    if package is None:
        known = ", ".join(_DELTA_PACKAGES)
        raise TablesError(
            f"table format delta: there is no Delta for Spark {version}, only for {known}; with another version it "
            f"fails with NoSuchMethodError. Install 'pyspark=={known}.*'."
        )
    return {
        "spark.jars.packages": package,
        # Spark has it, and a local Maven repository that knows it without its jar stops Ivy.
        "spark.jars.excludes": "org.slf4j:slf4j-api",
        # Delta's log is read with so many tasks: the default, 50, is for tables of millions of files.
        "spark.databricks.delta.snapshotPartitions": "2",
        # VACUUM lists files with so many tasks, however few there are. The default, 10,000, takes a minute a table.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.spark_catalog": CATALOG,
    }
