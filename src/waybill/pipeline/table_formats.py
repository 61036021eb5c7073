"""The option `table.format`: Parquet in a local directory, or Delta or Iceberg in a directory or a bucket."""

import importlib.util
import os
import re
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.storage import Storage, spark_options
from waybill.pipeline.table_log import TableLog
from waybill.pipeline.tables import Tables, TablesError

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
# Paths have one slash where URIs have two.
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
FORMATS: Final = (PARQUET, DELTA, ICEBERG)
_LIBRARIES: Final = {DELTA: ("deltalake",), ICEBERG: ("pyiceberg", "sqlalchemy")}


def open_store(
    spark: SparkSession,
    directory: Path | str,
    table_format: str = PARQUET,
    *,
    catalog: str | None = None,
    state: Path | None = None,
) -> Tables | LakeTables:
    """The tables below `directory`: a path, or for Delta and Iceberg also the URI of a place in a bucket.

    `catalog` is one of pyiceberg's settings, for Iceberg. `state` is a directory for the state of refreshes, for tables
    in a bucket: with it, refreshes process new events only. Executors must reach it by the same path.

    Raises TablesError if the format is not available.
    """
    check(directory, table_format, catalog)
    if state is not None and "://" not in str(directory):
        raise TablesError(f"--state {state}: tables in a directory have their state there; only a bucket needs it")
    if state is not None and _URI.match(str(state)):
        raise TablesError(f"--state {state}: the state needs a local directory")
    if table_format == PARQUET:
        return Tables(Path(directory))
    storage = Storage.of(directory)
    if table_format == DELTA:
        from waybill.pipeline.delta_log import DeltaLog  # noqa: PLC0415 - an extra that may be missing

        def delta_log(name: str, schema: StructType, by_day: bool) -> TableLog:  # noqa: FBT001 - one of `OpenLog`
            return DeltaLog(f"{storage.uri}/{name}", schema, by_day=by_day)

        return LakeTables(spark, storage, delta_log, state and state.resolve())
    from waybill.pipeline.iceberg_log import IcebergLog, open_catalog  # noqa: PLC0415 - see above

    opened = open_catalog(storage, catalog)

    def iceberg_log(name: str, schema: StructType, by_day: bool) -> TableLog:  # noqa: FBT001 - see above
        return IcebergLog(opened, storage, name, schema, by_day=by_day)

    return LakeTables(spark, storage, iceberg_log, state and state.resolve())


def check(directory: Path | str, table_format: str, catalog: str | None = None) -> None:
    """Raise TablesError if the place does not support this format, or a library is missing."""
    if table_format not in FORMATS:
        raise TablesError(f"table format {table_format!r}: {', '.join(FORMATS)}")
    if table_format == PARQUET and "://" in str(directory):
        raise TablesError(
            f"{directory}: Parquet tables are published by links, which need a directory; in a bucket, use delta or "
            "iceberg"
        )
    if catalog is not None and table_format != ICEBERG:
        raise TablesError(f"--catalog {catalog}: only Iceberg tables have a catalog")
    missing = [name for name in _LIBRARIES.get(table_format, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise TablesError(f"table format {table_format} needs {', '.join(missing)}: pip install 'waybill-amqp[lake]'")


def session_options(directory: Path | str | None, table_format: str) -> dict[str, str]:
    """Options of a local session for tables of this format. Raises TablesError."""
    if directory is None or table_format == PARQUET:
        return {}
    return {
        # Files of a table are listed one by one. With the default, 10,000 tasks, listing takes longer than reading.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
        **spark_options(Storage.of(directory), os.environ),
    }
